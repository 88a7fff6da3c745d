"""Many particles on the circle, and the clusters that the fastest of the `modes` predicts.

The series of K in Fourier modes gives their velocities without a sum over pairs.

Source: Bruno, Pasqualotto and Agazzi, arXiv 2410.23228.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ive

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import growth, simulation
from macaron_fairseq.analysis.particles.metastability import modes

BINS = 180
MOST_PATHS = 300  # that are written down


def series(beta: float) -> Floats:
    """The coefficients (2 k / beta) I_k(beta) of K, k = 1, 2, ..., as many as fp64 sees: (m,)."""
    modes.refuse_overflow(beta)
    k = np.arange(1, 30 + int(10 * np.sqrt(beta)))
    found = 2 * k / beta * ive(k, beta)
    return found[: np.flatnonzero(found > 1e-17 * found.max())[-1] + 1] * np.exp(beta)


def velocity(theta: Floats, coefficients: Floats) -> Floats:
    """theta' of n angles by the series of K, in a time like n m and memory like n: (n,)."""
    turn = np.exp(1j * theta)
    powers, found = np.ones_like(turn), np.zeros_like(theta)
    for coefficient in coefficients:
        powers = powers * turn
        found -= coefficient * (powers * powers.mean().conjugate()).imag
    return found


@dataclass(frozen=True)
class FirstClusters:
    """Many particles on the circle, and the clusters that the fastest mode predicts."""

    times: Floats  # (t,)
    angles: Floats  # of MOST_PATHS particles or all, from 0 to 2 pi, (t, paths)
    modes: NDArray[np.int64]  # k = 1, ..., (m,)
    rates: Floats  # r of each, (m,)
    amplitudes: Floats  # |mu_k| over time, (t, m)
    fastest: int
    predicted: Floats  # where the clusters of the fastest mode are to be, (k,)
    densities: Floats  # particles per radian over their number, in BINS of the circle, (t, BINS)
    found: Floats  # all maxima of the smoothed density at the last time, ascending


def first_clusters(
    start: Floats, beta: float, times: Floats, passed: Callable[[float], object] = lambda time: None
) -> FirstClusters:
    """Follow particles from these angles, (n,), at ascending times, (t,).

    Args:
        start: (n,).
        beta: above 0.
        times: (t,).
        passed: see `simulation.flow`.

    Raises:
        UserError: if beta or the duration is too large for an explicit method.
    """
    coefficients = series(beta)
    simulation.refuse_fast_rate(np.exp(beta), times[-1], " or --beta")
    theta = simulation.flow(lambda at: velocity(at, coefficients), start, times, passed)
    k = growth.predicted_mode(beta)
    shown = modes.shown_modes(beta)
    amplitudes = np.abs([[modes.fourier(at, int(mode)) for mode in shown] for at in theta])
    edges = np.linspace(0, 2 * np.pi, BINS + 1)
    counts = np.array([np.histogram(at % (2 * np.pi), edges)[0] for at in theta])
    return FirstClusters(
        times=times,
        angles=theta[:, :: -(-len(start) // MOST_PATHS)] % (2 * np.pi),
        modes=shown,
        rates=modes.growth_rates(beta, shown),
        amplitudes=amplitudes,
        fastest=k,
        predicted=modes.predicted_angles(modes.fourier(start, k), k),
        densities=counts / (len(start) * edges[1]),
        # At the last time, not when mode k is largest: that would favour k clusters.
        found=modes.maxima(smoothed(counts[-1])),
    )


def smoothed(counts: NDArray[np.int64]) -> Floats:
    """Counts in cells of the circle, each shared with those 3 to the left and to the right."""
    weights = np.array([1, 6, 15, 20, 15, 6, 1]) / 64
    return np.asarray(sum(w * np.roll(counts, i - 3) for i, w in enumerate(weights)))
