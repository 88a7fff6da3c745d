"""When particles that start orthogonal meet: the boundary beta(t) of the phase diagrams.

Source: arXiv 2312.10794, section 6 and the curve in its phase diagrams.
"""

import numpy as np
from scipy.integrate import quad

from macaron_fairseq.analysis.particles.systems import equiangular_rate


def arrival_time(cosine: float, beta: float, n: int, name: str = "sa") -> float:
    """When n orthogonal particles all have that cosine, below 1: inf if that exceeds fp64.

    The relative error is about 1e-10.

    The cosine follows y' = f(y) by `equiangular_rate`, so the time is the integral of dy / f(y).
    It is taken over s = -ln(1 - y), in which the integrand stays finite.
    """

    def slowness(s: float) -> float:
        rate = float(equiangular_rate(np.array(-np.expm1(-s)), beta, n, name))
        return float(np.exp(-s)) / rate if rate else np.inf

    # The peaks are at y = 0, where attention begins to tell a pair from a particle itself, and
    # where the others together outweigh it.
    end = -np.log1p(-cosine)
    outweighed = np.log1p(np.exp(min(beta, 50)) / n)
    kinks = [x for x in (0.5, 1.0, 2.0, np.log1p(beta), outweighed) if 0 < x < end]
    with np.errstate(over="ignore"):
        return float(quad(slowness, 0, end, points=kinks, epsabs=1e-10, epsrel=1e-10, limit=200)[0])
