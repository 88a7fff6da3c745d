"""Metastability on the circle: which number of clusters many particles form first, and where.

Angles follow USA, and the density u of many of them the mean-field equation,

    theta_i' = -1/n sum_j K(theta_i - theta_j),    u_t = d/dtheta( u (K * u) ),
    K(theta) = e^{beta cos theta} sin theta = sum_k (2 k / beta) I_k(beta) sin(k theta)

with I_k the modified Bessel functions. Around the uniform density the Fourier mode k grows like
e^{rt} with r = k^2 I_k(beta) / beta. So after a while the fastest one is all that is seen: k
clusters. They are where the real part of mu_k e^{ik theta} is largest, at (2 pi j - arg mu_k) / k.
Here mu_k = 1/n sum_i e^{-ik theta_i} is that of the start.

Source: Bruno, Pasqualotto and Agazzi, arXiv 2410.23228; gamma_k there is r / pi.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ive

from macaron_fairseq.analysis import integrators
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import localization
from macaron_fairseq.common.errors import UserError

MOST_STEPS = 1e5  # of an explicit method; beyond it, hours
LARGEST_BETA = 300  # e^beta and its products stay within the range of numbers
BINS = 180
MOST_PATHS = 300  # that are written down


def growth_rates(beta: float, modes: NDArray[np.int64]) -> Floats:
    """The rate r of each mode k, beta above 0: of the shape of `modes`.

    Raises:
        UserError: if e^beta leaves the range of numbers.
    """
    refuse_overflow(beta)
    return np.exp(beta) * localization.growth_rates(beta, int(modes.max()))[modes]


def fastest_rate(beta: float) -> float:
    """The largest of the rates; see `growth_rates`."""
    return float(growth_rates(beta, shown_modes(beta)).max())


def shown_modes(beta: float) -> NDArray[np.int64]:
    """Modes up to about twice the fastest."""
    return np.arange(1, max(9, 2 * localization.predicted_mode(beta) + 1))


def refuse_overflow(beta: float) -> None:
    """Raise a `UserError` if e^beta and sums of it may leave the range of numbers."""
    if beta > LARGEST_BETA:
        raise UserError(
            f"e^beta leaves the range of numbers at beta {beta:g}: give a --beta of at most "
            f"{LARGEST_BETA}"
        )


def series(beta: float) -> Floats:
    """The coefficients (2 k / beta) I_k(beta) of K, k = 1, 2, ..., as many as fp64 sees: (m,)."""
    refuse_overflow(beta)
    modes = np.arange(1, 30 + int(10 * np.sqrt(beta)))
    found = 2 * modes / beta * ive(modes, beta)
    return found[: np.flatnonzero(found > 1e-17 * found.max())[-1] + 1] * np.exp(beta)


def velocity(theta: Floats, coefficients: Floats) -> Floats:
    """theta' of n angles by the series of K, in a time like n m and memory like n: (n,)."""
    turn = np.exp(1j * theta)
    powers, found = np.ones_like(turn), np.zeros_like(theta)
    for coefficient in coefficients:
        powers = powers * turn
        found -= coefficient * (powers * powers.mean().conjugate()).imag
    return found


def fourier(theta: Floats, k: int) -> complex:
    """mu_k, the mean of e^{-ik theta} over the particles."""
    return complex(np.exp(-1j * k * theta).mean())


def predicted_angles(mu: complex, k: int) -> Floats:
    """(2 pi j - arg mu) / k for j = 0, ..., k - 1, from 0 to 2 pi, in that order: (k,)."""
    return np.asarray((2 * np.pi * np.arange(k) - np.angle(mu)) / k % (2 * np.pi))


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
    found: Floats  # the highest maxima of the smoothed density at the time `best`, at most k
    best: int  # the number of that time


def first_clusters(
    start: Floats, beta: float, times: Floats, passed: Callable[[float], object] = lambda time: None
) -> FirstClusters:
    """Follow particles from these angles, (n,), at ascending times, (t,).

    Args:
        start: (n,).
        beta: above 0.
        times: (t,).
        passed: called with how much time has passed since it was called last.

    Raises:
        UserError: if beta or the duration is too large for an explicit method.
    """
    coefficients = series(beta)
    if np.exp(beta) * times[-1] > MOST_STEPS:
        raise UserError(
            f"speeds like e^{beta:g} over a time of {times[-1]:g} need too many steps: lower "
            f"--time below {MOST_STEPS / np.exp(beta):.3g}"
        )
    reached = times[0]

    def field(time: float, theta: Floats) -> Floats:
        nonlocal reached
        if time > reached:
            passed(time - reached)
            reached = time
        return velocity(theta, coefficients)

    theta = integrators.flow(field, start, times)
    k = localization.predicted_mode(beta)
    shown = shown_modes(beta)
    amplitudes = np.abs([[fourier(at, int(mode)) for mode in shown] for at in theta])
    edges = np.linspace(0, 2 * np.pi, BINS + 1)
    counts = np.array([np.histogram(at % (2 * np.pi), edges)[0] for at in theta])
    best = int(amplitudes[:, k - 1].argmax())
    return FirstClusters(
        times=times,
        angles=theta[:, :: -(-len(start) // MOST_PATHS)] % (2 * np.pi),
        modes=shown,
        rates=growth_rates(beta, shown),
        amplitudes=amplitudes,
        fastest=k,
        predicted=predicted_angles(fourier(start, k), k),
        densities=counts / (len(start) * edges[1]),
        found=highest_maxima(smoothed(counts[best]), k),
        best=best,
    )


def highest_maxima(density: Floats, count: int) -> Floats:
    """The angles of the highest maxima above twice the mean, ascending, at most so many.

    Args:
        density: in cells of the same width from 0 to 2 pi, (m,).
        count: how many.
    """
    width = 2 * np.pi / len(density)
    higher = (density > np.roll(density, 1)) & (density >= np.roll(density, -1))
    tops = np.flatnonzero(higher & (density > 2 * density.mean()))
    return np.sort((tops[np.argsort(-density[tops])[:count]] + 0.5) * width)


def smoothed(counts: NDArray[np.int64]) -> Floats:
    """Counts in cells of the circle, each shared with those 3 to the left and to the right."""
    weights = np.array([1, 6, 15, 20, 15, 6, 1]) / 64
    return np.asarray(sum(w * np.roll(counts, i - 3) for i, w in enumerate(weights)))


def usual_duration(n: float, beta: float) -> float:
    """A time after which n independent particles show the clusters of the fastest mode.

    The mode has to grow from 1 / sqrt(n) to about 1; some more is for its end, where growth slows.
    """
    return 2.2 * float(np.log(n)) / 2 / fastest_rate(beta)
