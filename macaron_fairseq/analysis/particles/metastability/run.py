"""Experiments on metastability, from their parameters to their pictures.

They are those of arXiv 2410.06833 and 2410.23228; `particles.run` writes what they return.
"""

from argparse import Namespace
from collections.abc import Callable

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import settings
from macaron_fairseq.analysis.particles.drawing import SYSTEM_NAMES
from macaron_fairseq.analysis.particles.metastability import (
    figures,
    first_clusters,
    mean_field,
    modes,
    staircase,
)
from macaron_fairseq.analysis.particles.outcome import Outcome
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up
from macaron_fairseq.common.progress import bar


def energy_staircase(args: Namespace) -> Outcome:
    """Follow few particles until all are one, over orders of magnitude of time."""
    look_up(dict.fromkeys(("sa", "usa-scaled")), args.system, "system", "--system")
    if min(args.beta) <= 1:
        raise UserError(f"--beta {min(args.beta):g}: a staircase needs a beta above 1")
    result = staircase.staircase(np.array(args.gaps), np.array(args.beta), args.system)
    lines = [
        f"beta {beta:g}: mergers at ln t = {', '.join(f'{x:.1f}' for x in mergers)}"
        for beta, mergers in zip(args.beta, result.mergers, strict=True)
    ]
    title = f"{SYSTEM_NAMES[args.system]}, {len(args.gaps) + 1} particles on the circle"
    return Outcome(result, figures.staircase(result, title), lines)


def clusters(args: Namespace) -> Outcome:
    """Compare the clusters of many particles with the fastest mode's."""
    _refuse_zero(args.beta)
    time = args.time or modes.usual_duration(args.particles, args.beta)
    settings.refuse_many(args.particles, 1, args.frames, "lower --frames")
    times = np.linspace(0, time, args.frames)
    start = np.random.default_rng(args.seed).uniform(0, 2 * np.pi, args.particles)
    with bar(f"beta {args.beta:g}", total=time, leave=False) as shown:
        result = first_clusters.first_clusters(start, args.beta, times, shown.update)
    lines = [
        f"fastest mode: {result.fastest}; its clusters are to be at {_listed(result.predicted)}",
        f"maxima of the density at time {times[-1]:.3g}: {_listed(result.found)}",
    ]
    title = f"{args.particles:,} particles on the circle, USA, β = {args.beta:g}"
    return Outcome(result, figures.first_clusters(result, title), lines)


def density(args: Namespace) -> Outcome:
    """Solve the mean-field equation."""
    _refuse_zero(args.beta)
    look_up(mean_field.SCHEMES, args.scheme, "scheme", "--scheme")
    cells = f"{args.cells:,} cells, {args.frames:,} times,"
    settings.refuse_large(args.cells * args.frames, cells, "lower --frames")
    # The noise of the fastest mode is that of as many particles as make it so large.
    enough = 1 + args.cells / (2 * np.pi * args.noise) ** 2
    time = args.time or modes.usual_duration(enough, args.beta)
    start = mean_field.disturbed(args.cells, args.noise, args.seed)
    times = np.linspace(0, time, args.frames)
    result = mean_field.mean_field(start, args.beta, times, args.scheme)
    lines = [
        f"mass differs from 1 by {np.abs(result.mass - 1).max():.1e} at most, in {result.steps} "
        "steps",
        f"fastest mode: {result.fastest}; its clusters are to be at {_listed(result.predicted)}",
        f"maxima of the density at the end: {_listed(result.found)}",
    ]
    title = f"mean-field equation, β = {args.beta:g}, {args.cells} cells, {args.scheme}"
    return Outcome(result, figures.mean_field(result, title), lines)


EXPERIMENTS: dict[str, Callable[[Namespace], Outcome]] = {
    "staircase": energy_staircase,
    "first-clusters": clusters,
    "mean-field": density,
}


def _listed(angles: Floats) -> str:
    return ", ".join(f"{x:.2f}" for x in np.sort(angles))


def _refuse_zero(beta: float) -> None:
    if beta == 0:
        raise UserError("--beta 0 has no kernel with modes: give one above 0")
