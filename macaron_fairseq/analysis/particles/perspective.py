"""The choices of `macaron-fairseq particles` for arXiv 2312.10794 and its relatives.

Each takes the command's parameters; `run` writes what they return.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import (
    mean_field,
    metastability,
    perspective_figures,
    random_matrices,
    rescaled,
    settings,
    simulation,
    staircase,
)
from macaron_fairseq.analysis.particles.found import Found
from macaron_fairseq.analysis.particles.simulation import TooManyStepsError
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up
from macaron_fairseq.common.progress import bar


def phase_random(args: Namespace) -> Found:
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
    return Found(result, perspective_figures.phase_random(result, title, args.cosine), lines)


def rescaled_tokens(args: Namespace) -> Found:
    """Follow rescaled tokens with one of the value matrices."""
    look_up(rescaled.GEOMETRIES, args.geometry, "geometry", "--geometry")
    if args.positive is not None and args.geometry not in ("codimension", "product"):
        raise UserError("--positive is of --geometry codimension and product")
    positive = args.dim - 1 if args.positive is None else args.positive
    if positive > args.dim:
        raise UserError(f"--positive {positive} is above --dim {args.dim}")
    settings.refuse_many(args.particles, args.dim, args.frames, "lower --frames")
    values = rescaled.value_matrix(args.geometry, args.dim, positive, args.seed)
    half = rescaled.HALF_SIDE if args.dim <= rescaled.DRAWN else rescaled.HALF_SIDE_OF_MANY
    start = rescaled.cube_start(args.particles, args.dim, half, args.seed)
    result = rescaled.rescaled(values, start, settings.times(args), args.step)
    title = f"{args.geometry}: {args.particles} rescaled tokens, d = {args.dim}"
    eigenvalues = _first(f"{x:.3g}" for x in result.eigenvalues[:, 0])
    lines = [
        f"eigenvalues of V, real parts: {eigenvalues}",
        f"values along the growing eigenvectors at time {args.time:g}: "
        f"{_first(map(str, result.groups[-1]))}",
        f"places at time 0 and {args.time:g}: {result.places[0]} and {result.places[-1]}",
    ]
    return Found(result, perspective_figures.rescaled(result, title), lines)


def leaders(args: Namespace) -> Found:
    """Look at the attention matrix of rescaled tokens."""
    weights = f"the attention weights of {args.particles:,} tokens, {args.frames:,} times,"
    settings.refuse_large(args.frames * args.particles**2, weights, "lower --frames")
    values = rescaled.gram_matrix(args.dim, args.seed)
    start = rescaled.cube_start(args.particles, args.dim, 1.0, args.seed)
    result = rescaled.leaders(values, start, settings.times(args), args.step, 4)
    lines = [
        f"time {result.times[row]:g}: attention of rank {result.rank[row]} and effective rank "
        f"{result.effective_rank[row]:.1f}, {result.leaders[row]} leaders"
        for row in (0, -1)
    ]
    title = f"attention of {args.particles} tokens, d = {args.dim}"
    return Found(result, perspective_figures.leaders(result, title), lines)


def energy_staircase(args: Namespace) -> Found:
    """Follow few particles until all are one, over orders of magnitude of time."""
    look_up(dict.fromkeys(("sa", "usa")), args.system, "system", "--system")
    if min(args.beta) <= 1:
        raise UserError(f"--beta {min(args.beta):g}: a staircase needs a beta above 1")
    result = staircase.staircase(np.array(args.gaps), np.array(args.beta), args.system)
    lines = [
        f"beta {beta:g}: mergers at ln t = {', '.join(f'{x:.1f}' for x in mergers)}"
        for beta, mergers in zip(args.beta, result.mergers, strict=True)
    ]
    title = f"{args.system.upper()}, {len(args.gaps) + 1} particles on the circle"
    return Found(result, perspective_figures.staircase(result, title), lines)


def first_clusters(args: Namespace) -> Found:
    """Compare the clusters of many particles with the fastest mode's."""
    _refuse_zero(args.beta)
    time = args.time or metastability.usual_duration(args.particles, args.beta)
    settings.refuse_many(args.particles, 1, args.frames, "lower --frames")
    times = np.linspace(0, time, args.frames)
    start = np.random.default_rng(args.seed).uniform(0, 2 * np.pi, args.particles)
    with bar(f"beta {args.beta:g}", total=time, leave=False) as shown:
        result = metastability.first_clusters(start, args.beta, times, shown.update)
    lines = [
        f"fastest mode: {result.fastest}; its clusters are to be at {_listed(result.predicted)}",
        f"maxima of the density at time {times[result.best]:.3g}: {_listed(result.found)}",
    ]
    title = f"{args.particles:,} particles on the circle, USA, β = {args.beta:g}"
    return Found(result, perspective_figures.first_clusters(result, title), lines)


def density(args: Namespace) -> Found:
    """Solve the mean-field equation."""
    _refuse_zero(args.beta)
    look_up(mean_field.SCHEMES, args.scheme, "scheme", "--scheme")
    cells = f"{args.cells:,} cells, {args.frames:,} times,"
    settings.refuse_large(args.cells * args.frames, cells, "lower --frames")
    # The noise of the fastest mode is that of as many particles as make it so large.
    enough = 1 + args.cells / (2 * np.pi * args.noise) ** 2
    time = args.time or metastability.usual_duration(enough, args.beta)
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
    return Found(result, perspective_figures.mean_field(result, title), lines)


EXPERIMENTS: dict[str, Callable[[Namespace], Found]] = {
    "phase-random": phase_random,
    "rescaled": rescaled_tokens,
    "leaders": leaders,
    "staircase": energy_staircase,
    "first-clusters": first_clusters,
    "mean-field": density,
}


def _first(words: Iterable[str], most: int = 6) -> str:
    shown = list(words)
    return ", ".join(shown[:most] + ["..."] * (len(shown) > most))


def _listed(angles: Floats) -> str:
    return ", ".join(f"{x:.2f}" for x in np.sort(angles))


def _refuse_zero(beta: float) -> None:
    if beta == 0:
        raise UserError("--beta 0 has no kernel with modes: give one above 0")
