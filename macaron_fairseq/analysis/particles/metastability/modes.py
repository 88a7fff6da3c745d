"""Linear theory: which number of clusters many particles on the circle form first, and where.

Angles follow USA, and the density u of many of them the mean-field equation,

    theta_i' = -1/n sum_j K(theta_i - theta_j),    u_t = d/dtheta( u (K * u) ),
    K(theta) = e^{beta cos theta} sin theta = sum_k (2 k / beta) I_k(beta) sin(k theta)

with I_k the modified Bessel functions. Around the uniform density the Fourier mode k grows like
e^{rt} with r = k^2 I_k(beta) / beta. So after a while the fastest one is all that is seen: k
clusters. They are where the real part of mu_k e^{ik theta} is largest, at (2 pi j - arg mu_k) / k.
Here mu_k = 1/n sum_i e^{-ik theta_i} is that of the start.

Source: Bruno, Pasqualotto and Agazzi, arXiv 2410.23228; gamma_k there is r / pi.
"""

import numpy as np
from numpy.typing import NDArray

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import growth
from macaron_fairseq.common.errors import UserError

LARGEST_BETA = 300  # e^beta and its products stay within the range of numbers


def growth_rates(beta: float, modes: NDArray[np.int64]) -> Floats:
    """The rate r of each mode k, beta above 0: of the shape of `modes`.

    It is e^beta times that of `growth.rates`, whose system is scaled by e^-beta.

    Raises:
        UserError: if e^beta leaves the range of numbers.
    """
    refuse_overflow(beta)
    return np.exp(beta) * growth.rates(beta, int(modes.max()))[modes]


def fastest_rate(beta: float) -> float:
    """The largest of the rates; see `growth_rates`."""
    return float(growth_rates(beta, shown_modes(beta)).max())


def usual_duration(n: float, beta: float) -> float:
    """A time after which n independent particles show the clusters of the fastest mode.

    The mode has to grow from 1 / sqrt(n) to about 1; some more is for its end, where growth slows.
    """
    return 2.2 * float(np.log(n)) / 2 / fastest_rate(beta)


def shown_modes(beta: float) -> NDArray[np.int64]:
    """Modes up to about twice the fastest."""
    return np.arange(1, max(9, 2 * growth.predicted_mode(beta) + 1))


def refuse_overflow(beta: float) -> None:
    """Raise a `UserError` if e^beta and sums of it may leave the range of numbers."""
    if beta > LARGEST_BETA:
        raise UserError(
            f"e^beta leaves the range of numbers at beta {beta:g}: give a --beta of at most "
            f"{LARGEST_BETA}"
        )


def fourier(theta: Floats, k: int) -> complex:
    """mu_k, the mean of e^{-ik theta} over the particles."""
    return complex(np.exp(-1j * k * theta).mean())


def predicted_angles(mu: complex, k: int) -> Floats:
    """(2 pi j - arg mu) / k for j = 0, ..., k - 1, from 0 to 2 pi, in that order: (k,)."""
    return np.asarray((2 * np.pi * np.arange(k) - np.angle(mu)) / k % (2 * np.pi))


def maxima(density: Floats) -> Floats:
    """The angles of all maxima above twice the mean, ascending; of a plateau, its middle.

    Args:
        density: in cells of the same width from 0 to 2 pi, (m,).
    """
    starts = np.flatnonzero(density != np.roll(density, 1))  # of runs of equal cells
    lengths = (np.roll(starts, -1) - starts) % len(density)
    heights = density[starts]
    is_top = (heights > np.roll(heights, 1)) & (heights > np.roll(heights, -1))
    is_top &= heights > 2 * density.mean()
    middles = (starts + lengths / 2)[is_top] % len(density)
    return np.sort(middles) * (2 * np.pi / len(density))
