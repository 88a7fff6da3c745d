"""Experiments with self-attention on the sphere: the numbers, as they are written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from macaron_fairseq.analysis import blocks, measures
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import simulation
from macaron_fairseq.analysis.particles.kept_parts import PartOf, keep_nothing
from macaron_fairseq.analysis.particles.sphere import equal_cosines
from macaron_fairseq.analysis.particles.systems import System
from macaron_fairseq.common.progress import bar, following

LARGE = 1000  # clouds whose measures take long enough to tell of it

BINS = 50


@dataclass(frozen=True)
class Trajectories:
    """Particles over time, with what `measures` says of them at each of the t times, (t,)."""

    times: Floats
    positions: Floats  # (t, n, d)
    clusters: NDArray[np.int64]  # at the cosine threshold
    mean_cosine: Floats  # of all pairs
    share_above: Floats  # of the pairs above the cosine threshold
    effective_rank: Floats
    participation_ratio: Floats
    energy: Floats  # E_beta
    potential: Floats | None  # the mean of the perceptron's; None without one
    total: Floats | None  # `System.energy`, which never falls along USA and scaled USA
    speed: Floats  # the root mean square of |x_i'|


def trajectories(system: System, start: Floats, times: Floats, cosine: float) -> Trajectories:
    """Follow the particles; `cosine` is the threshold of the clusters."""
    x = _follow(system, start, times)
    energy = np.array([measures.energy(points, system.beta) for points in _frames(x)])
    block = system.perceptron
    potential = block.potential(x).mean(axis=1) if block and block.s is not None else None
    return Trajectories(
        times=times,
        positions=x,
        clusters=np.array([measures.clusters(points, cosine) for points in x]),
        mean_cosine=np.array([measures.mean_cosine(points) for points in x]),
        share_above=np.array([measures.share_above(points, cosine) for points in x]),
        effective_rank=np.array([measures.effective_rank(points) for points in x]),
        participation_ratio=np.array([measures.participation_ratio(points) for points in x]),
        energy=energy,
        potential=potential,
        total=None if potential is None else energy + system.potential_weight * potential,
        speed=np.array([_speed(system, points) for points in x]),
    )


@dataclass(frozen=True)
class Histograms:
    """How many pairs have which cosine."""

    times: Floats  # (t,)
    edges: Floats  # of the bins of cosines, from -1 to 1, (BINS + 1,)
    counts: NDArray[np.int64]  # pairs in each bin, (t, BINS)
    clusters: NDArray[np.int64]  # (t,)


def histograms(system: System, start: Floats, times: Floats, cosine: float) -> Histograms:
    """Count the cosines of all pairs over time."""
    x = _follow(system, start, times)
    counts = [measures.histogram(points, BINS) for points in _frames(x)]
    return Histograms(
        times=times,
        edges=np.linspace(-1, 1, BINS + 1),
        counts=np.array(counts),
        clusters=np.array([measures.clusters(points, cosine) for points in x]),
    )


@dataclass(frozen=True)
class Phase:
    """Over time and beta, how far particles from random starts have come.

    `equiangular_time` is when particles that start orthogonal reach the cosine by
    `equal_cosines.rate`. Random ones start so in the limit of many dimensions. It is NaN if that is
    after the last time, and with a perceptron, which the rate does not know.
    """

    times: Floats  # (t,)
    betas: Floats  # (b,)
    all_pairs: Floats  # the share of the trials where each pair is above the cosine, (b, t)
    pairs: Floats  # the share of all pairs that are, over all trials, (b, t)
    equiangular_time: Floats  # (b,)


def phase(
    system: System,
    starts: Floats,
    times: Floats,
    betas: Floats,
    cosine: float,
    part_of: PartOf = keep_nothing,
) -> Phase:
    """The phase diagram of `system` at each of `betas`.

    Args:
        system: its name and perceptron.
        starts: (trials, n, d), the same for each beta.
        times: (t,).
        betas: (b,).
        cosine: what a pair's cosine must exceed.
        part_of: gives the part of a name, see `KeptParts.part`.
    """
    simulation.refuse_fast(replace(system, beta=float(betas.max())), times[-1])
    trials, n, _ = starts.shape
    parts = simulation.split(starts, len(times))
    joined = np.zeros((len(betas), len(times)))
    pairs = np.zeros((len(betas), len(times)))
    work = list(product(range(len(betas)), range(len(parts))))

    def counted(row: int, part: int) -> list[list[int]]:
        at_beta = replace(system, beta=float(betas[row]))
        x = simulation.integrate(at_beta, parts[part], times)
        return [[*_above(clouds, cosine)] for clouds in x]

    for row, part in following(work, "phase diagram"):
        name = f"beta-{row + 1}-part-{part + 1}-of-{len(parts)}"
        counts = np.array(part_of(name, partial(counted, row, part)))
        joined[row] += counts[:, 0]
        pairs[row] += counts[:, 1]
    return Phase(
        times=times,
        betas=betas,
        all_pairs=joined / trials,
        pairs=pairs / (trials * n * (n - 1) // 2),
        equiangular_time=np.array(
            [_equiangular_time(replace(system, beta=float(b)), n, times, cosine) for b in betas]
        ),
    )


@dataclass(frozen=True)
class Equiangular:
    """Particles that start with equal cosines, and the differential equation of the cosine."""

    times: Floats  # (t,)
    betas: Floats  # (b,)
    equation: Floats  # the cosine by its differential equation, (b, t)
    simulation: Floats  # the mean over the pairs of the particles, (b, t)
    spread: Floats  # the largest minus the smallest cosine of a pair, (b, t)
    difference: Floats  # the largest between a pair and the equation, over all times, (b,)


def equiangular(
    name: str, n: int, rho: float, times: Floats, betas: Sequence[float]
) -> Equiangular:
    """For each beta, simulate n particles whose cosines all start at rho; solve the equation."""
    simulation.refuse_fast(System(name, max(betas)), times[-1])
    equation = [equal_cosines.curve(rho, beta, n, name, times) for beta in betas]
    start = equal_cosines.start(n, rho)
    figures = np.array(
        [
            [  # of the pairs at one time, which are too many to keep
                (pairs.mean(), np.ptp(pairs), np.abs(pairs - cosine).max())
                for cosine, pairs in zip(
                    curve,
                    map(measures.cosines, _follow(System(name, beta), start, times)),
                    strict=True,
                )
            ]
            for beta, curve in zip(betas, equation, strict=True)
        ]
    )
    return Equiangular(
        times=times,
        betas=np.array(betas),
        equation=np.array(equation),
        simulation=figures[:, :, 0],
        spread=figures[:, :, 1],
        difference=figures[:, :, 2].max(axis=1),
    )


@dataclass(frozen=True)
class Landscape:
    """Where particles on the circle end, over beta, on the landscape of a perceptron."""

    angles: Floats  # in radians, from -pi to pi, (361,)
    potential: Floats  # the perceptron's, at these angles, (361,)
    betas: Floats  # (b,)
    final_angles: Floats  # of the particles, (b, n)
    clusters: NDArray[np.int64]  # (b,)
    separation: Floats  # the smallest angle between two clusters; NaN for one cluster, (b,)
    speed: Floats  # the root mean square of |x_i'| at the end, (b,): how far from rest


def landscape(
    system: System, start: Floats, time: float, betas: Floats, cosine: float
) -> Landscape:
    """Let the same particles on the circle, (n, 2), go for that time, at each beta.

    Raises:
        ValueError: if the system has no perceptron in gradient form.
    """
    if system.perceptron is None:
        raise ValueError("a landscape needs a perceptron")
    simulation.refuse_fast(replace(system, beta=float(betas.max())), time)
    angles = np.linspace(-np.pi, np.pi, 361)
    potential = system.perceptron.potential(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    systems = [replace(system, beta=float(beta)) for beta in betas]
    ends = [
        simulation.integrate(one, start, np.array([0.0, time]))[-1]
        for one in following(systems, "landscape")
    ]
    return Landscape(
        angles=angles,
        potential=potential,
        betas=betas,
        final_angles=np.array([np.arctan2(x[:, 1], x[:, 0]) for x in ends]),
        clusters=np.array([measures.clusters(x, cosine) for x in ends]),
        separation=np.array([measures.separation(x, cosine) for x in ends]),
        speed=np.array([_speed(one, x) for one, x in zip(systems, ends, strict=True)]),
    )


def _above(clouds: Floats, cosine: float) -> tuple[int, int]:
    """How many clouds, (trials, n, d), have all pairs above the cosine; how many pairs are."""
    n = clouds.shape[1]
    if n * n > blocks.ENTRIES:
        pairs = np.array([measures.pairs_above(cloud, cosine) for cloud in clouds])
    else:  # in one go, since there can be many small ones
        above = clouds @ clouds.swapaxes(1, 2) > cosine
        above &= np.tri(n, k=-1, dtype=bool)
        pairs = above.sum(axis=(1, 2))
    return int((pairs == n * (n - 1) // 2).sum()), int(pairs.sum())


def _frames(x: Floats) -> Iterator[Floats]:
    """The points at each time, (n, d), of (t, n, d); shows how far those who measure them are."""
    return following(x, "measures") if x.shape[1] > LARGE else iter(x)


def _follow(system: System, start: Floats, times: Floats) -> Floats:
    with bar(f"beta {system.beta:g}", total=float(times[-1]), leave=False) as shown:
        return simulation.integrate(system, start, times, shown.update)


def _speed(system: System, points: Floats) -> float:
    return float(np.sqrt((system.velocity(points) ** 2).sum(axis=1).mean()))


def _equiangular_time(system: System, n: int, times: Floats, cosine: float) -> float:
    if system.name == "none" or system.perceptron:
        return float("nan")
    arrival = equal_cosines.arrival_time(max(cosine, 0), system.beta, n, system.name)
    return arrival if arrival <= times[-1] else float("nan")
