"""Experiments with a perceptron block and without it, from their parameters to their pictures.

They are those of arXiv 2601.21366; `particles.run` writes what they return.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import drawing, settings, simulation
from macaron_fairseq.analysis.particles.block import (
    experiments,
    figures,
    localization,
    settling,
    views,
)
from macaron_fairseq.analysis.particles.block.experiments import Criteria, Ends, Paths
from macaron_fairseq.analysis.particles.choices import NEURONS, STRENGTH
from macaron_fairseq.analysis.particles.outcome import Outcome
from macaron_fairseq.analysis.particles.systems import Perceptron, System
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up

DIRECTIONS = {"ascent": False, "descent": True}
MOST_DIMENSIONS = 4096  # of a sweep
FEWER = "lower --particles"
DIMENSIONS = 2  # of a sweep over something else


def paths(args: Namespace) -> Outcome:
    """Follow particles with and without the block, and draw their paths."""
    system = _with_potential(args)
    times = experiments.times_of_both_scales(args.time)
    result = experiments.paths(system, _start(args, times), times, args.cluster_scale)
    picture = views.paths(result, _block(system), _title(args))
    return Outcome(result, picture, _clusters_of(result), system)


def frames(args: Namespace) -> Outcome:
    """Follow particles with and without the block, and draw them at a few times."""
    system = _with_potential(args)
    parts = (0, 0.5, 1) if args.dim == 2 else (0, 0.25, 0.5, 0.75, 1)
    shown = sorted({*args.shown}) if args.shown else [part * args.time for part in parts]
    times = np.union1d([0.0], shown)
    if not 0 < times[-1] <= args.time:
        raise UserError(f"--shown needs a time above 0, and none after --time {args.time:g}")
    result = experiments.frames(system, _start(args, times), times, args.cluster_scale)
    picture = views.frames(result, _block(system), _title(args))
    return Outcome(result, picture, _clusters_of(result.paths), system)


def counts(args: Namespace) -> Outcome:
    """Count clusters, modes and masses at each beta."""
    betas = _ascending(args.beta, "--beta")
    system = _directed(args, betas[-1])
    result = experiments.counts(system, _starts(args), betas, _criteria(args))
    lines = [
        f"beta {beta:g}: {_words(result.without, i)} without the block, "
        f"{_words(result.with_block, i)} with it"
        for i, beta in enumerate(betas)
    ]
    picture = figures.counts(result, _block(system), _title(args), args.mass)
    return Outcome(result, picture, lines, system)


def energy(args: Namespace) -> Outcome:
    """Follow the energy at each beta."""
    betas = _ascending(args.beta, "--beta")
    system = _with_potential(args)
    times = experiments.times_of_both_scales(args.time)
    settings.refuse_many(args.particles, args.dim, len(times), FEWER)
    start = simulation.random_start(args.particles, args.dim, args.seed)
    result = experiments.energies(system, start, times, betas)
    lines = [
        f"beta {beta:g}: energy from {path[0]:.4g} to {path[-1]:.4g} with the block"
        for beta, path in zip(betas, result.with_block, strict=True)
    ]
    return Outcome(result, figures.energies(result, _title(args)), lines, system)


def sweep(args: Namespace) -> Outcome:
    """Let particles come to rest with blocks of several strengths, or in several dimensions."""
    values = _ascending(args.values or look_up(SWEPT, args.over, "sweep", "--over"), "--values")
    if args.over == "dim" and ((values % 1 != 0) | (values < 2) | (values > MOST_DIMENSIONS)).any():
        raise UserError(f"--values holds no dimensions: give whole numbers, 2 to {MOST_DIMENSIONS}")
    if args.over == "strength" and values[0] <= 0:
        raise UserError("--values holds a strength that is not above 0")
    if len({*args.system}) < len(args.system):
        raise UserError("--system holds a name twice")
    if args.weights:
        raise UserError("a sweep draws its own weights: leave out --weights")
    if args.over == "strength" and args.strength:
        raise UserError("--values are the strengths of this sweep: leave out --strength")
    if args.over == "dim" and args.dim:
        raise UserError("--values are the dimensions of this sweep: leave out --dim")
    args.dim = args.dim or DIMENSIONS

    def at(value: float, **others: Any) -> Namespace:
        typed = int(value) if args.over == "dim" else float(value)
        return Namespace(**{**vars(args), args.over: typed, **others})

    def system_at(name: str, value: float) -> System:
        return _directed(at(value, system=name), args.beta)

    def starts_at(value: float) -> Floats:
        return _starts(at(value))

    result = experiments.sweep(
        args.over, values, args.system, system_at, starts_at, _criteria(args)
    )
    lines = [
        f"{name}, {args.over} {value:g}: {_words(ends, i)}"
        for name, ends in zip(result.systems, result.with_block, strict=True)
        for i, value in enumerate(values)
    ]
    return Outcome(result, figures.sweep(result, _title(args)), lines)


def modes(args: Namespace) -> Outcome:
    """Draw how fast waves on the circle grow."""
    result = localization.modes(np.array(sorted({*args.beta})))
    lines = [
        f"beta {beta:g}: mode {k} grows fastest"
        for beta, k in zip(result.betas, result.predicted, strict=True)
    ]
    return Outcome(result, figures.modes(result), lines)


# What is swept over, and by default through which values.
SWEPT: dict[str, list[float]] = {
    "strength": [0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2],
    "dim": [2, 3, 4, 6, 8, 12, 16, 32, 64],
}
EXPERIMENTS: dict[str, Callable[[Namespace], Outcome]] = {
    "block-paths": paths,
    "block-frames": frames,
    "block-counts": counts,
    "block-energy": energy,
    "block-sweep": sweep,
    "modes": modes,
}


def _directed(args: Namespace, beta: float) -> System:
    look_up(DIRECTIONS, args.direction, "direction", "--direction")
    system = replace(settings.system(args, beta), descends=DIRECTIONS[args.direction])
    _block(system)
    return system


def _with_potential(args: Namespace) -> System:
    beta = max(args.beta) if isinstance(args.beta, list) else args.beta
    system = _directed(args, beta)
    if _block(system).s is None:
        raise UserError('a potential needs weights in gradient form, "a" and "s": see --help')
    return system


def _block(system: System) -> Perceptron:
    if system.perceptron is None:
        raise UserError("there is no block: add --perceptron relu, gelu or tanh")
    return system.perceptron


def _start(args: Namespace, times: Floats) -> Floats:
    if args.dim not in (2, 3):
        raise UserError(f"--dim {args.dim} cannot be drawn: choose 2, the circle, or 3, the sphere")
    settings.refuse_many(args.particles, args.dim, len(times), FEWER)
    return simulation.random_start(args.particles, args.dim, args.seed)


def _starts(args: Namespace) -> Floats:
    settings.refuse_many(args.particles, args.dim, args.trials + settling.LOOKS, FEWER)
    return simulation.random_start(args.particles, args.dim, args.seed, args.trials)


def _criteria(args: Namespace) -> Criteria:
    return Criteria(args.cluster_scale, args.drift, args.time, args.mass)


def _title(args: Namespace) -> str:
    names = [args.system] if isinstance(args.system, str) else args.system
    parts = [", ".join(drawing.SYSTEM_NAMES[name] for name in names), args.direction]
    parts.append(f"{args.particles} particles")
    swept = getattr(args, "over", None)
    if swept != "dim":
        parts.append(f"d = {args.dim}")
    if not isinstance(args.beta, list):
        parts.append(f"β = {args.beta:g}")
    if args.weights:
        parts.append(f"{args.perceptron} block of {args.weights.name}")
    else:
        parts.append(f"{args.perceptron} block of {args.neurons or NEURONS} neurons")
        if swept != "strength":
            parts.append(f"strength {args.strength or STRENGTH:g}")
    trials = getattr(args, "trials", 1)
    return ", ".join(parts) + (f", {trials} starts" if trials > 1 else "")


def _ascending(values: list[float], option: str) -> Floats:
    if len({*values}) < len(values):
        raise UserError(f"{option} holds a value twice")
    return np.sort(np.array(values, dtype=float))


def _clusters_of(result: Paths) -> list[str]:
    without, with_block = (int(x.labels.max()) + 1 for x in (result.without, result.with_block))
    return [f"clusters at the end: {without} without the block, {with_block} with it"]


def _words(ends: Ends, row: int) -> str:
    clusters, rest = ends.clusters[row], ends.converged[row]
    return f"{clusters.mean():.3g} clusters ({rest.sum()} of {len(rest)} starts metastable)"
