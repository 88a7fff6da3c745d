"""When particles have come to rest, and what they are then: clusters, modes, masses.

Rest is metastability here: nobody moves faster than a low speed. Clusters that are far apart move
more slowly than that, and may still merge after a time that grows exponentially with beta.

Source of the criteria: the code of arXiv 2601.21366. Its modes are counted in a smoothed histogram
on the circle; here by the density at the particles, which works on every sphere.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from macaron_fairseq.analysis import blocks, measures
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import simulation
from macaron_fairseq.analysis.particles.systems import System
from macaron_fairseq.common.errors import UserError

WINDOW = 5  # looks in a row at which the number of clusters must be the same
EVERY = 1.0  # the time between two looks
LOOKS = 2 * WINDOW + 1  # that are computed at a time
NEAREST = 1e-7  # the least angle, in radians, whose cosine is well below 1
LOWEST_PEAK = 0.2  # of the highest density, what a mode must reach

Labels = NDArray[np.intp]


def threshold(scale: float, beta: float, dim: int) -> float:
    """How far apart particles of a cluster may be: min(scale / sqrt(beta), pi / (2 d)), radians.

    Raises:
        UserError: if that is too near for cosines in double precision.
    """
    widest = np.pi / (2 * dim)
    found = float(min(scale / np.sqrt(beta), widest)) if beta > 0 else widest
    if found < NEAREST:
        raise UserError(
            f"--cluster-scale {scale:g} at beta {beta:g} is {found:.2g} radians, which cosines do "
            f"not tell from 0: give at least {1.1 * NEAREST * np.sqrt(beta):.2g}"
        )
    return found


def cluster_labels(x: Floats, angle: float) -> Labels:
    """For each of the unit vectors (n, d) the number of its cluster, from 0: (n,).

    On the circle, clusters are arcs of at most that angle. One begins behind the widest gap, the
    next one where the first cannot reach. On other spheres they are the connected components of the
    graph that joins two points at most that far apart.
    """
    if x.shape[1] > 2:
        return measures.cluster_labels(x, np.cos(angle)).astype(np.intp)
    angles = np.arctan2(x[:, 1], x[:, 0])
    order = np.argsort(angles)
    ordered = angles[order]
    gaps = np.diff(ordered, append=ordered[0] + 2 * np.pi)
    first = (int(gaps.argmax()) + 1) % len(x)
    order = np.roll(order, -first)
    from_first = (angles[order] - angles[order[0]]) % (2 * np.pi)
    from_first[0] = 0
    labels = np.zeros(len(x), dtype=np.intp)
    number, begin = 0, 0.0
    for particle, place in zip(order, from_first, strict=True):
        if place - begin > angle:
            number, begin = number + 1, place
        labels[particle] = number
    return labels


def masses(labels: Labels) -> Floats:
    """The share of the particles in each cluster, the largest first: (clusters,)."""
    return np.sort(np.bincount(labels))[::-1] / len(labels)


def modes(x: Floats, angle: float) -> int:
    """How many peaks the particles' density has, from 1 to n.

    The density at a point is the mean of e^((<x, x_j> - 1) / h^2) over the particles, h half the
    angle. A peak is a particle with no denser one within the angle, and with a fifth of the highest
    density. Peaks that are that near count once.
    """
    x = measures.directions(x)

    def at(rows: slice) -> Floats:
        return np.exp((_cosines(x, rows) - 1) / (angle / 2) ** 2).mean(axis=1)

    density = np.concatenate([*blocks.over_rows(len(x), at)])

    def highest_near(rows: slice) -> Floats:
        return np.where(_cosines(x, rows) >= np.cos(angle), density, 0).max(axis=1)

    highest = np.concatenate([*blocks.over_rows(len(x), highest_near)])
    is_peak = (density >= highest * (1 - 1e-9)) & (density >= LOWEST_PEAK * density.max())
    peaks = x[is_peak]
    return 1 if len(peaks) < 2 else measures.clusters(peaks, np.cos(angle))


def spread(x: Floats, labels: Labels) -> float:
    """The largest angle between two particles of one cluster, in radians."""
    x = measures.directions(x)

    def least(rows: slice) -> float:
        together = labels[rows, None] == labels
        return float(np.where(together, _cosines(x, rows), 1).min())

    return float(np.arccos(min(blocks.over_rows(len(x), least))))


def _cosines(x: Floats, rows: slice) -> Floats:
    """Those of some of the directions x, (n, d), with all of them, within [-1, 1]: (rows, n)."""
    return np.clip(x[rows] @ x.T, -1, 1)


@dataclass(frozen=True)
class Settled:
    """Particles that are metastable, or not yet."""

    positions: Floats  # (n, d)
    labels: Labels  # the cluster of each, (n,)
    time: float
    converged: bool


def settle(system: System, start: Floats, angle: float, time: float, drift: float) -> Settled:
    """Follow particles until they rest, but no longer than that time.

    They rest if the number of clusters is the same at `WINDOW` looks in a row. No cluster may then
    be wider than the angle, and no particle faster than `drift`, though one was before: a random
    start of many dimensions, a large beta or many particles is slow from the first. On the circle
    no cluster is wider by construction; on other spheres a chain of near particles can be.

    Args:
        system: what moves them.
        start: unit vectors, (n, d).
        angle: of the clusters, see `threshold`.
        time: after which to give up.
        drift: the highest |x_i'| of particles at rest.

    Raises:
        UserError: see `simulation.refuse_fast`.
    """
    simulation.refuse_fast(system, time)
    counts: deque[int] = deque(maxlen=WINDOW)
    x, reached = start, 0.0
    has_moved = not system.velocity(start).any()  # or never will
    while True:
        times = np.minimum(reached + EVERY * np.arange(LOOKS), time)
        times = np.unique(times)
        for now, positions in zip(times, simulation.integrate(system, x, times), strict=True):
            if now == reached and counts:  # looked at already
                continue
            labels = cluster_labels(positions, angle)
            counts.append(int(labels.max()) + 1)
            speed = np.linalg.norm(system.velocity(positions), axis=1).max()
            has_moved |= bool(speed > drift)
            is_stable = len(counts) == WINDOW and len(set(counts)) == 1
            is_slow = has_moved and speed <= drift
            converged = bool(is_stable and is_slow and spread(positions, labels) <= angle)
            if converged or now >= time:
                return Settled(positions, labels, float(now), converged)
        x, reached = positions, now
