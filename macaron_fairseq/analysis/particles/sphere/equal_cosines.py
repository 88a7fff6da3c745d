"""Particles of which all pairs have the same cosine: by symmetry it stays so.

Those that start orthogonal are what random ones are in the limit of many dimensions. Their arrival
is the boundary beta(t) of the phase diagrams.

Source: arXiv 2312.10794, section 6 and the curve in its phase diagrams.
"""

import numpy as np
from scipy.integrate import quad

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import simulation


def rate(rho: Floats, beta: float, n: int, name: str) -> Floats:
    """rho' where all pairs have the cosine rho, without a perceptron.

    By symmetry rho' = 2 <x_1', x_2>. The drift of particle 1 is g (e^beta x_1 + e^{beta rho} s)
    with s the sum of the others, <s, x_2> = 1 + (n-2) rho and <s, x_1> = (n-1) rho, so that

        rho' = 2 g e^{beta rho} (1 + (n-2) rho - (n-1) rho^2)
             = 2 g e^{beta rho} (1 - rho) ((n-1) rho + 1)

    with 1/g = e^beta + (n-1) e^{beta rho} for SA, 1/g = n for USA and 1/g = n e^beta for scaled
    USA.
    """
    shape = 2 * (1 - rho) * ((n - 1) * rho + 1)
    if name != "usa":
        other = np.exp(beta * (rho - 1))  # the weight of another particle where one's own is 1
        return shape * other / (1 + (n - 1) * other if name == "sa" else n)
    return shape * np.exp(beta * rho) / n


def start(n: int, rho: float) -> Floats:
    """n particles in n dimensions whose cosines all are rho, in (-1 / (n - 1), 1): (n, n).

    More dimensions would change nothing: particles stay in the span of their start.
    """
    return np.asarray(np.linalg.cholesky((1 - rho) * np.eye(n) + rho), dtype=np.float64)


def curve(rho: float, beta: float, n: int, name: str, times: Floats) -> Floats:
    """The common cosine of n particles by its own differential equation, from rho: (t,).

    Raises:
        UserError: if SciPy gives up.
    """

    def velocity(value: Floats) -> Floats:
        return rate(value, beta, n, name)

    # Stiff where USA has arrived.
    return simulation.flow(velocity, np.array([float(rho)]), times, stiff=True)[:, 0]


def arrival_time(cosine: float, beta: float, n: int, name: str = "sa") -> float:
    """When n orthogonal particles all have that cosine, below 1: inf if that exceeds fp64.

    The relative error is about 1e-10.

    The cosine follows y' = f(y) by `rate`, so the time is the integral of dy / f(y). It is taken
    over s = -ln(1 - y), in which the integrand stays finite.
    """

    def slowness(s: float) -> float:
        speed = float(rate(np.array(-np.expm1(-s)), beta, n, name))
        return float(np.exp(-s)) / speed if speed else np.inf

    # The peaks are at y = 0, where attention begins to tell a pair from a particle itself, and
    # where the others together outweigh it.
    end = -np.log1p(-cosine)
    outweighed = np.log1p(np.exp(min(beta, 50)) / n)
    kinks = [x for x in (0.5, 1.0, 2.0, np.log1p(beta), outweighed) if 0 < x < end]
    with np.errstate(over="ignore"):
        return float(quad(slowness, 0, end, points=kinks, epsabs=1e-10, epsrel=1e-10, limit=200)[0])
