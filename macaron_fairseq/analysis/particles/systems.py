"""The ideal systems: tokens as particles on the unit sphere, layers as time.

Each particle x_i, of n in d dimensions, follows

    x_i' = P_i( attention_i + perceptron(x_i) ),    P_i v = v - <x_i, v> x_i

with P_i the projection to the tangent space at x_i, which keeps |x_i| = 1.

Source: Geshkovski, Letrouit, Polyanskiy and Rigollet, arXiv 2312.10794, with query, key and value
matrices the identity; the perceptron block: `perceptron.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles.perceptron import Perceptron


def self_attention(x: Floats, beta: float) -> Floats:
    """SA: sum_j e^{beta <x_i, x_j>} x_j / Z_i, with Z_i the sum of the weights; (..., n, d)."""
    logits = beta * (x @ x.swapaxes(-1, -2))
    logits -= logits.max(axis=-1, keepdims=True)  # no beta overflows
    weights = np.exp(logits)
    return weights @ x / weights.sum(axis=-1, keepdims=True)


def unnormalized_self_attention(x: Floats, beta: float) -> Floats:
    """USA: sum_j e^{beta <x_i, x_j>} x_j / n; (..., n, d)."""
    return np.exp(beta * (x @ x.swapaxes(-1, -2))) @ x / x.shape[-2]


def no_attention(x: Floats, beta: float) -> Floats:
    """Nothing that lets one particle feel another."""
    return np.zeros_like(x)


SYSTEMS: dict[str, Callable[[Floats, float], Floats]] = {
    "sa": self_attention,
    "usa": unnormalized_self_attention,
    "none": no_attention,
}


@dataclass(frozen=True)
class System:
    """One of the `SYSTEMS`, at an inverse temperature beta, with or without a perceptron block.

    USA with a perceptron in gradient form climbs, with speed x_i' = n dF/dx_i on the sphere,

        F = e^beta E_beta(x_1, ..., x_n) + 1/n sum_i V(x_i)

    with E_beta that of `measures.energy` and V the perceptron's potential. SA without a perceptron
    climbs E_beta too, since its x_i' is that of USA times n / Z_i > 0.
    """

    name: str
    beta: float
    perceptron: Perceptron | None = None

    @property
    def rate(self) -> float:
        """How fast things can change, as an order of magnitude: what limits the time step."""
        attention = float(np.exp(min(self.beta, 700))) if self.name == "usa" else 1.0
        if self.perceptron is None:
            return attention
        norms = (
            np.linalg.norm(weights, axis=1) for weights in (self.perceptron.a, self.perceptron.w)
        )
        return attention + float(np.prod(list(norms), axis=0).sum())

    def velocity(self, x: Floats) -> Floats:
        """x' at unit vectors x, both (..., n, d): one cloud of particles, or many at once."""
        drift = SYSTEMS[self.name](x, self.beta)
        if self.perceptron:
            drift = drift + self.perceptron.drift(x)
        return drift - (drift * x).sum(axis=-1, keepdims=True) * x


def equiangular_rate(rho: Floats, beta: float, n: int, name: str) -> Floats:
    """rho' where all pairs have the cosine rho, which then stays so; without a perceptron.

    By symmetry rho' = 2 <x_1', x_2>. The drift of particle 1 is g (e^beta x_1 + e^{beta rho} s)
    with s the sum of the others, <s, x_2> = 1 + (n-2) rho and <s, x_1> = (n-1) rho, so that

        rho' = 2 g e^{beta rho} (1 + (n-2) rho - (n-1) rho^2)
             = 2 g e^{beta rho} (1 - rho) ((n-1) rho + 1)

    with 1/g = e^beta + (n-1) e^{beta rho} for SA (arXiv 2312.10794, section 6) and 1/g = n for USA.
    """
    shape = 2 * (1 - rho) * ((n - 1) * rho + 1)
    if name == "sa":
        other = np.exp(beta * (rho - 1))  # the weight of another particle beside one's own
        return shape * other / (1 + (n - 1) * other)
    return shape * np.exp(beta * rho) / n
