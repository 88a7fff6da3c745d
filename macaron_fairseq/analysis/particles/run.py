"""Experiments with the ideal systems, from their parameters to their files.

The parameters are those of `macaron-fairseq particles`, by name; the JSON file of a run has them.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from macaron_fairseq.analysis import output
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import (
    block_figures,
    block_run,
    experiments,
    figures,
    localization,
    perspective,
    simulation,
    systems,
)
from macaron_fairseq.analysis.particles.systems import System
from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up


@dataclass(frozen=True)
class Found:
    """What an experiment found."""

    result: Any  # a dataclass of `experiments`
    picture: bytes  # a PNG file
    lines: list[str]  # in words
    system: System | None = None


def run(experiment: str, parameters: Mapping[str, Any], folder: Path) -> str:
    """Run an experiment, write its numbers and its picture, and return what it found, in words.

    Args:
        experiment: a name of `EXPERIMENTS`.
        parameters: by name, all that `macaron-fairseq particles EXPERIMENT --help` lists.
        folder: for EXPERIMENT.json, which holds all that the picture shows and what made it, the
            perceptron's weights included, and for EXPERIMENT.png.

    Raises:
        UserError: if the parameters do not go together, or a file cannot be written.
    """
    found = EXPERIMENTS[experiment](Namespace(**parameters))
    perceptron = found.system.perceptron if found.system else None
    content = {
        "experiment": experiment,
        "parameters": parameters,
        "perceptron": asdict(perceptron) if perceptron else None,
        "versions": environment.versions(),
        "results": asdict(found.result),
    }
    numbers, picture = output.write(
        folder, {f"{experiment}.json": content, f"{experiment}.png": found.picture}
    )
    return "".join(line + "\n" for line in [f"wrote {numbers} and {picture.name}", *found.lines])


def trajectories(args: Namespace) -> Found:
    """Follow one cloud of particles."""
    system = _system(args, args.beta)
    start = simulation.random_start(args.particles, args.dim, args.seed)
    result = experiments.trajectories(system, start, _times(args), args.cosine)
    picture = figures.trajectories(result, _title(args, args.dim, args.beta), args.cosine)
    return Found(result, picture, _clusters(args, result), system)


def histograms(args: Namespace) -> Found:
    """Count cosines over time."""
    shown = args.shown or [args.time * part for part in (0, 1 / 8, 1 / 4, 1 / 2, 1)]
    if max(shown) > args.time:
        raise UserError(f"--shown {max(shown):g} is after the end: raise --time {args.time:g}")
    system = _system(args, args.beta)
    start = simulation.random_start(args.particles, args.dim, args.seed)
    result = experiments.histograms(system, start, _times(args), args.cosine)
    picture = figures.histograms(result, _title(args, args.dim, args.beta), shown)
    return Found(result, picture, _clusters(args, result), system)


def phase(args: Namespace) -> Found:
    """Draw the phase diagram."""
    betas = _betas(args)
    system = _system(args, betas[-1])
    starts = simulation.random_start(args.particles, args.dim, args.seed, args.trials)
    result = experiments.phase(system, starts, _times(args), betas, args.cosine)
    title = _title(args, args.dim, trials=args.trials)
    lines = [
        f"beta {betas[row]:g}: {result.all_pairs[row, -1]:.0%} of the trials in a point at time "
        f"{args.time:g}"
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
    result = experiments.equiangular(args.system, args.particles, args.rho, _times(args), args.beta)
    lines = [
        f"beta {beta:g}: particles and equation differ by {difference:.1e} at most"
        for beta, difference in zip(args.beta, result.difference, strict=True)
    ]
    return Found(result, figures.equiangular(result, _title(args, args.particles)), lines)


def landscape(args: Namespace) -> Found:
    """Let particles on the circle go, at each beta."""
    betas = _betas(args)
    system = _system(args, betas[-1])
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


def _block(name: str) -> Callable[[Namespace], Found]:
    def experiment(args: Namespace) -> Found:
        result, picture, lines, system = block_run.EXPERIMENTS[name](args, _system)
        return Found(result, picture, lines, system)

    return experiment


EXPERIMENTS |= {"modes": modes, **{name: _block(name) for name in block_run.EXPERIMENTS}}


# arXiv 2312.10794 and its relatives.
def _of_perspective(
    parts: Callable[[Namespace], perspective.Parts],
) -> Callable[[Namespace], Found]:
    return lambda args: Found(*parts(args))


EXPERIMENTS |= {name: _of_perspective(parts) for name, parts in perspective.EXPERIMENTS.items()}


def _clusters(args: Namespace, result: Any) -> list[str]:
    start, end = result.clusters[0], result.clusters[-1]
    return [f"clusters at time 0 and {args.time:g}: {start} and {end}"]


def _system(args: Namespace, beta: float) -> System:
    look_up(systems.SYSTEMS, args.system, "system", "--system")
    if args.perceptron is not None:
        look_up(systems.ACTIVATIONS, args.perceptron, "activation", "--perceptron")
    block = None
    own = [option for option in ("neurons", "strength", "weights") if getattr(args, option)]
    if args.perceptron is None:
        if own:
            raise UserError(f"--{own[0]} is of a perceptron: add --perceptron relu, gelu or tanh")
    elif args.weights is None:
        neurons, strength = args.neurons or 4, args.strength or 1.0
        block = systems.random_perceptron(args.perceptron, neurons, args.dim, strength, args.seed)
    elif len(own) > 1:
        raise UserError(f"--weights holds all neurons and their strengths: leave out --{own[0]}")
    else:
        block = systems.read_perceptron(Path(args.weights), args.perceptron, args.dim)
    return System(args.system, float(beta), block)


def _times(args: Namespace) -> Floats:
    return np.linspace(0, args.time, args.frames)


def _betas(args: Namespace) -> Floats:
    if args.beta_min >= args.beta_max:
        raise UserError(f"--beta-min {args.beta_min:g} is not below --beta-max {args.beta_max:g}")
    return np.linspace(args.beta_min, args.beta_max, args.betas)


def _title(args: Namespace, dim: int, beta: float | None = None, trials: int = 1) -> str:
    parts = [figures.SYSTEM_NAMES[args.system], f"{args.particles} particles", f"d = {dim}"]
    if beta is not None and args.system != "none":
        parts.append(f"β = {beta:g}")
    if getattr(args, "perceptron", None):
        parts.append(f"{args.perceptron} perceptron")
    if trials > 1:
        parts.append(f"{trials} trials")
    return ", ".join(parts)
