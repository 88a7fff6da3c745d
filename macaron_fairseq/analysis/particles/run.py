"""Experiments with the ideal systems, from their parameters to their files.

The parameters are those of `choices`, by name; the JSON file of a run has them.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from macaron_fairseq.analysis import interactive_page, output
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import (
    block_figures,
    block_run,
    choices,
    experiments,
    figures,
    localization,
    movies,
    page,
    perspective,
    settings,
    simulation,
    systems,
)
from macaron_fairseq.analysis.particles.found import Found
from macaron_fairseq.analysis.particles.kept_parts import KeptParts
from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up


def run(
    experiment: str,
    parameters: Mapping[str, Any],
    folder: Path,
    animate: Path | None = None,
    with_page: bool = False,
) -> str:
    """Run an experiment, write its numbers and its picture, and return what it found, in words.

    Args:
        experiment: a name of `EXPERIMENTS`.
        parameters: by name, see `choices`; what is left out has its default.
        folder: for EXPERIMENT.json, which holds all that the picture shows and what made it, and
            for EXPERIMENT.png. The weights of a perceptron are in the former; those of a sweep
            follow from its parameters. While a phase diagram is not complete, its parts are in
            EXPERIMENT.parts there.
        animate: a movie to write as well, of an experiment that has one.
        with_page: whether to write EXPERIMENT.html, too, of an experiment that has one.

    Raises:
        UserError: if there is no such parameter, they do not go together, or a file cannot be
            written.
    """
    usual = choices.defaults(experiment)
    for name in parameters:
        look_up(usual, name, "parameter", experiment)
    parameters = {**usual, **parameters}
    if animate:
        movies.refuse_unwritable(animate)
    if with_page:
        interactive_page.library()  # if it is missing, one is to learn it now
    kept = KeptParts(folder / f"{experiment}.parts")
    found = EXPERIMENTS[experiment](Namespace(**parameters, kept=kept))
    if (animate and not found.movie) or (with_page and not found.page):
        raise UserError(f"{experiment} has no such view: leave out --animate and --page")
    perceptron = found.system.perceptron if found.system else None
    content = {
        "experiment": experiment,
        "parameters": parameters,
        "perceptron": asdict(perceptron) if perceptron else None,
        "versions": environment.versions(),
        "results": asdict(found.result),
    }
    contents: dict[str, output.Content] = {
        f"{experiment}.json": content,
        f"{experiment}.png": found.picture,
    }
    if with_page and found.page:
        contents[f"{experiment}.html"] = found.page()
    numbers, *others = output.write(folder, contents, [f"{experiment}.html"])
    kept.remove()
    names = [path.name for path in others]
    if animate and found.movie:
        movies.write(found.movie(), animate)
        names.append(str(animate))
    wrote = f"wrote {', '.join([str(numbers), *names[:-1]])} and {names[-1]}"
    return "".join(line + "\n" for line in [wrote, *found.lines])


def trajectories(args: Namespace) -> Found:
    """Follow one cloud of particles."""
    system = settings.system(args, args.beta)
    result = experiments.trajectories(system, _start(args), settings.times(args), args.cosine)
    shown = result, _title(args, args.dim, args.beta), args.cosine
    return Found(
        result,
        figures.trajectories(*shown),
        _clusters(args, result),
        system,
        partial(movies.trajectories, *shown),
        partial(page.trajectories, *shown, _facts(args)),
    )


def histograms(args: Namespace) -> Found:
    """Count cosines over time."""
    shown = args.shown or [args.time * part for part in (0, 1 / 8, 1 / 4, 1 / 2, 1)]
    if max(shown) > args.time:
        raise UserError(f"--shown {max(shown):g} is after the end: raise --time {args.time:g}")
    system = settings.system(args, args.beta)
    result = experiments.histograms(system, _start(args), settings.times(args), args.cosine)
    title = _title(args, args.dim, args.beta)
    picture, movie = figures.histograms(result, title, shown), partial(movies.histograms, result)
    return Found(result, picture, _clusters(args, result), system, partial(movie, title))


def phase(args: Namespace) -> Found:
    """Draw the phase diagram."""
    betas = settings.betas(args)
    system = settings.system(args, betas[-1])
    settings.refuse_large_phase(args)
    starts = simulation.random_start(args.particles, args.dim, args.seed, args.trials)
    simulation.refuse_fast(system, args.time)  # before anything is kept
    block = asdict(system.perceptron) if system.perceptron else None
    settings.keep_parts(args, perceptron_weights=block)
    times = settings.times(args)
    result = experiments.phase(system, starts, times, betas, args.cosine, args.kept.part)
    title = _title(args, args.dim, trials=args.trials)
    lines = [
        f"beta {betas[row]:g}, time {args.time:g}: all pairs are above the cosine {args.cosine:g} "
        f"in {result.all_pairs[row, -1]:.0%} of the trials"
        for row in (0, -1)
    ]
    return Found(result, figures.phase(result, title, args.cosine), lines, system)


def equiangular(args: Namespace) -> Found:
    """Compare particles of equal cosines with the equation of the cosine."""
    look_up(systems.SYSTEMS, args.system, "system", "--system")
    if args.system == "none":
        raise UserError("without attention the cosines stay as they are: take --system sa or usa")
    lowest = -1 / (args.particles - 1)
    if not lowest < args.rho < 1:
        raise UserError(
            f"{args.particles} particles cannot all have the cosine --rho {args.rho:g}: choose one "
            f"above {lowest:.4g} and below 1"
        )
    settings.refuse_many(args.particles, args.particles, args.frames, "lower --frames")
    result = experiments.equiangular(
        args.system, args.particles, args.rho, settings.times(args), args.beta
    )
    lines = [
        f"beta {beta:g}: particles and equation differ by {difference:.1e} at most"
        for beta, difference in zip(args.beta, result.difference, strict=True)
    ]
    return Found(result, figures.equiangular(result, _title(args, args.particles)), lines)


def landscape(args: Namespace) -> Found:
    """Let particles on the circle go, at each beta."""
    betas = settings.betas(args)
    system = settings.system(args, betas[-1])
    if system.perceptron is None or system.perceptron.s is None:
        raise UserError('a landscape needs weights in gradient form, "a" and "s": see --help')
    start = simulation.random_start(args.particles, args.dim, args.seed)
    result = experiments.landscape(system, start, args.time, betas, args.cosine)
    lines = [
        f"beta {betas[row]:g}: clusters at time {args.time:g}: {result.clusters[row]}"
        for row in (0, -1)
    ]
    return Found(result, figures.landscape(result, _title(args, args.dim)), lines, system)


EXPERIMENTS: dict[str, Callable[[Namespace], Found]] = {
    x.__name__: x for x in (trajectories, histograms, phase, equiangular, landscape)
}


# The perceptron paper, arXiv 2601.21366.
def modes(args: Namespace) -> Found:
    """Draw how fast waves on the circle grow."""
    result = localization.modes(np.array(sorted({*args.beta})))
    lines = [
        f"beta {beta:g}: mode {k} grows fastest"
        for beta, k in zip(result.betas, result.predicted, strict=True)
    ]
    return Found(result, block_figures.modes(result), lines)


EXPERIMENTS |= {"modes": modes, **block_run.EXPERIMENTS, **perspective.EXPERIMENTS}


def _clusters(args: Namespace, result: Any) -> list[str]:
    start, end = result.clusters[0], result.clusters[-1]
    return [f"clusters at time 0 and {args.time:g}: {start} and {end}"]


def _facts(args: Namespace) -> list[tuple[str, str]]:
    """What a page says of how it was made."""
    made = output.provenance()
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return [("Command", f"<code>{escape(made['command'])}</code>"), ("Versions", escape(versions))]


def _start(args: Namespace) -> Floats:
    settings.refuse_many(args.particles, args.dim, args.frames, "lower --frames")
    return simulation.random_start(args.particles, args.dim, args.seed)


def _title(args: Namespace, dim: int, beta: float | None = None, trials: int = 1) -> str:
    parts = [figures.SYSTEM_NAMES[args.system], f"{args.particles} particles", f"d = {dim}"]
    if beta is not None and args.system != "none":
        parts.append(f"β = {beta:g}")
    if getattr(args, "perceptron", None):
        parts.append(f"{args.perceptron} perceptron")
    if trials > 1:
        parts.append(f"{trials} trials")
    return ", ".join(parts)
