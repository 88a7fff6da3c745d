"""Experiments on the sphere, from their parameters to their pictures.

They are those of arXiv 2312.10794; `particles.run` writes what they return.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from html import escape
from typing import Any

from macaron_fairseq.analysis import measures, output
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import drawing, settings, simulation, systems
from macaron_fairseq.analysis.particles.outcome import Outcome
from macaron_fairseq.analysis.particles.simulation import TooManyStepsError
from macaron_fairseq.analysis.particles.sphere import (
    experiments,
    figures,
    movies,
    page,
    random_matrices,
)
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up


def trajectories(args: Namespace) -> Outcome:
    """Follow one cloud of particles."""
    system = settings.system(args, args.beta)
    result = experiments.trajectories(system, _start(args), settings.times(args), args.cosine)
    shown = result, _title(args, args.dim, args.beta), args.cosine
    return Outcome(
        result,
        figures.trajectories(*shown),
        _clusters(args, result),
        system,
        partial(movies.trajectories, *shown),
        partial(page.trajectories, *shown, _facts()),
    )


def histograms(args: Namespace) -> Outcome:
    """Count cosines over time."""
    shown = args.shown or [args.time * part for part in (0, 1 / 8, 1 / 4, 1 / 2, 1)]
    if max(shown) > args.time:
        raise UserError(f"--shown {max(shown):g} is after the end: raise --time {args.time:g}")
    system = settings.system(args, args.beta)
    result = experiments.histograms(system, _start(args), settings.times(args), args.cosine)
    title = _title(args, args.dim, args.beta)
    picture, movie = figures.histograms(result, title, shown), partial(movies.histograms, result)
    return Outcome(result, picture, _clusters(args, result), system, partial(movie, title))


def phase(args: Namespace) -> Outcome:
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
    return Outcome(result, figures.phase(result, title, args.cosine), lines, system)


def equiangular(args: Namespace) -> Outcome:
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
    return Outcome(result, figures.equiangular(result, _title(args, args.particles)), lines)


def landscape(args: Namespace) -> Outcome:
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
    return Outcome(result, figures.landscape(result, _title(args, args.dim)), lines, system)


def phase_random(args: Namespace) -> Outcome:
    """Draw the phase diagrams of random matrices."""
    for table, option, what in (
        (random_matrices.VALUES, "value-matrix", "value matrix"),
        (random_matrices.KEYS, "key-matrix", "key matrix"),
        (random_matrices.SHARED, "shared", "way to share matrices"),
    ):
        look_up(dict.fromkeys(table), vars(args)[option.replace("-", "_")], what, f"--{option}")
    betas = settings.betas(args)
    matrices = random_matrices.Matrices(
        args.value_matrix, args.key_matrix, args.shared, args.regenerate
    )
    settings.refuse_large_phase(args)
    count = args.trials if args.shared == "no" else 1
    numbers_of = f"{count:,} random matrices in {args.dim:,} dimensions"
    settings.refuse_large(count * args.dim**2, numbers_of, "lower --dim or --trials")
    starts = simulation.random_start(args.particles, args.dim, args.seed, args.trials)
    times = settings.times(args)
    settings.keep_parts(args)
    try:
        result = random_matrices.phase(
            matrices, starts, times, betas, args.cosine, args.seed, args.kept.part
        )
    except TooManyStepsError:  # the same settings never come to an end
        args.kept.remove()
        raise
    drawn = f", drawn anew every {args.regenerate:g}" if args.regenerate else ""
    title = (
        f"V: {args.value_matrix}, B: {args.key_matrix}{drawn}; {args.particles} particles, "
        f"d = {args.dim}, {args.trials} trials"
    )
    lines = [
        f"beta {betas[row]:g}, time {args.time:g}: {result.pairs[row, -1]:.0%} of the pairs above "
        f"the cosine, {result.clusters[row, -1]:.2f} clusters, "
        f"{result.eigenvalues[row, -1]:.2f} eigenvalues"
        for row in (0, -1)
    ]
    return Outcome(result, figures.phase_random(result, title, args.cosine), lines)


EXPERIMENTS: dict[str, Callable[[Namespace], Outcome]] = {
    "trajectories": trajectories,
    "histograms": histograms,
    "phase": phase,
    "phase-random": phase_random,
    "equiangular": equiangular,
    "landscape": landscape,
}


def _clusters(args: Namespace, result: Any) -> list[str]:
    start, end = result.clusters[0], result.clusters[-1]
    found = [f"clusters at time 0 and {args.time:g}: {start} and {end}"]
    near = args.particles * measures.share_of_cap(args.cosine, args.dim)
    if near > 1:
        found.append(
            f"so many particles are in chains from the first: at random, {near:.0f} of them are "
            f"within the cosine {args.cosine:g} of each. Give a larger --cosine"
        )
    return found


def _facts() -> list[tuple[str, str]]:
    """What a page says of how it was made."""
    made = output.provenance()
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return [("Command", f"<code>{escape(made['command'])}</code>"), ("Versions", escape(versions))]


def _start(args: Namespace) -> Floats:
    settings.refuse_many(args.particles, args.dim, args.frames, "lower --frames")
    return simulation.random_start(args.particles, args.dim, args.seed)


def _title(args: Namespace, dim: int, beta: float | None = None, trials: int = 1) -> str:
    parts = [drawing.SYSTEM_NAMES[args.system], f"{args.particles} particles", f"d = {dim}"]
    if beta is not None and args.system != "none":
        parts.append(f"β = {beta:g}")
    if getattr(args, "perceptron", None):
        parts.append(f"{args.perceptron} perceptron")
    if trials > 1:
        parts.append(f"{trials} trials")
    return ", ".join(parts)
