"""The ideal systems: tokens as particles on the unit sphere, layers as time.

Each particle x_i, of n in d dimensions, follows

    x_i' = P_i( attention_i + perceptron(x_i) ),    P_i v = v - <x_i, v> x_i

with P_i the projection to the tangent space at x_i, which keeps |x_i| = 1.

Source: Geshkovski, Letrouit, Polyanskiy and Rigollet, arXiv 2312.10794, with query, key and value
matrices the identity. The perceptron block, a drift that each particle feels on its own: Alvarez-
Lopez, Geshkovski and Ruiz-Balet, arXiv 2601.21366.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from macaron_fairseq.analysis import blocks, measures
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError

# --- the perceptron block ------------------------------------------------------------------------


def _gelu_integral(u: Floats) -> Floats:
    density = np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi)
    return ((u**2 - 1) * ndtr(u) + u * density) / 2


class Activation(NamedTuple):
    """A function sigma of any array, and its integral S, which makes the potential."""

    value: Callable[[Floats], Floats]
    integral: Callable[[Floats], Floats]


ACTIVATIONS = {
    "relu": Activation(lambda u: np.maximum(u, 0), lambda u: np.maximum(u, 0) ** 2 / 2),
    "gelu": Activation(lambda u: u * ndtr(u), _gelu_integral),
    # ln cosh u, which overflows as it is written
    "tanh": Activation(np.tanh, lambda u: np.logaddexp(u, -u) - np.log(2)),
}


@dataclass(frozen=True)
class Perceptron:
    """The drift sum_m w_m sigma(a_m . x) of m neurons."""

    activation: str  # sigma, a name of `ACTIVATIONS`
    a: Floats  # what the neurons look for, (m, d)
    w: Floats  # what they add, (m, d)
    s: Floats | None = None  # in gradient form, w_m = s_m a_m, the strengths (m,)

    def drift(self, x: Floats) -> Floats:
        """The drift at the points x, (..., d), before it is projected."""
        return ACTIVATIONS[self.activation].value(x @ self.a.T) @ self.w

    def potential(self, x: Floats) -> Floats:
        """V(x) = sum_m s_m S(a_m . x) with S' = sigma, whose gradient is the drift: (...).

        Raises:
            ValueError: if the perceptron is not in gradient form.
        """
        if self.s is None:
            raise ValueError("only a perceptron in gradient form, w_m = s_m a_m, has a potential")
        return ACTIVATIONS[self.activation].integral(x @ self.a.T) @ self.s


def gradient_form(activation: str, a: Floats, s: Floats) -> Perceptron:
    """A perceptron whose drift is a gradient, w_m = s_m a_m, from a of (m, d) and s of (m,)."""
    return Perceptron(activation, a, s[:, None] * a, s)


def random_perceptron(
    activation: str, neurons: int, dim: int, strength: float, seed: int
) -> Perceptron:
    """A perceptron in gradient form: a_m uniform on the sphere, s_m = strength or -strength."""
    # Not the generator of the particles' start, so that a perceptron does not change the start.
    generator = np.random.default_rng([seed, 1])
    a = generator.normal(size=(neurons, dim))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    return gradient_form(activation, a, strength * generator.choice([-1.0, 1.0], size=neurons))


def read_perceptron(path: Path, activation: str, dim: int) -> Perceptron:
    """A perceptron from a JSON file with the weights "a" and either "s" or "w".

    Raises:
        UserError: if the file holds no such weights in this dimension.
    """
    hint = f'give a JSON file {{"a": [[{dim} numbers], ...], "s": [a number for each of them]}}'
    found = files.read_json(path, {"a": list}, hint)
    forms = [name for name in ("s", "w") if name in found]
    if len(forms) != 1:
        raise UserError(f'{path} must hold "a" and one of "s" and "w": {hint}')
    a, other = (_numbers(found[name], path, hint) for name in ("a", *forms))
    in_gradient_form = forms == ["s"]
    if a.shape != (len(a), dim) or other.shape != (a.shape[:1] if in_gradient_form else a.shape):
        raise UserError(f"{path} does not hold weights for {dim} dimensions: {hint}")
    if in_gradient_form:
        return gradient_form(activation, a, other)
    return Perceptron(activation, a, other)


def _numbers(value: Any, path: Path, hint: str) -> Floats:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} does not hold numbers in a regular shape: {hint}") from error
    if not np.isfinite(numbers).all():
        raise UserError(f"{path} holds a number that is not finite: {hint}")
    return numbers


# --- attention, and all together -----------------------------------------------------------------


# What particles at queries, (..., m, d), feel of those at keys, (..., n, d): (..., m, d).


def self_attention(queries: Floats, keys: Floats, beta: float) -> Floats:
    """SA: sum_j e^{beta <x_i, x_j>} x_j / Z_i, with Z_i the sum of the weights."""
    logits = queries @ keys.swapaxes(-1, -2)
    logits *= beta
    logits -= logits.max(axis=-1, keepdims=True)  # no beta overflows
    weights = np.exp(logits, out=logits)
    return weights @ keys / weights.sum(axis=-1, keepdims=True)


def unnormalized_self_attention(queries: Floats, keys: Floats, beta: float) -> Floats:
    """USA: sum_j e^{beta <x_i, x_j>} x_j / n."""
    logits = queries @ keys.swapaxes(-1, -2)
    logits *= beta
    return np.exp(logits, out=logits) @ keys / keys.shape[-2]


def scaled_unnormalized_self_attention(queries: Floats, keys: Floats, beta: float) -> Floats:
    """USA times e^-beta: the same paths, but the speed does not grow with beta.

    The form of arXiv 2601.21366. A perceptron's speed does not depend on beta either, so with one
    this is another system than USA.
    """
    logits = queries @ keys.swapaxes(-1, -2)
    logits -= 1
    logits *= beta
    return np.exp(logits, out=logits) @ keys / keys.shape[-2]


def no_attention(queries: Floats, keys: Floats, beta: float) -> Floats:
    """Nothing that lets one particle feel another."""
    return np.zeros_like(queries)


SYSTEMS: dict[str, Callable[[Floats, Floats, float], Floats]] = {
    "sa": self_attention,
    "usa": unnormalized_self_attention,
    "usa-scaled": scaled_unnormalized_self_attention,
    "none": no_attention,
}


def by_rows(part: Callable[[Floats, Floats], Floats], x: Floats) -> Floats:
    """part(x, x), or where its n x n matrix is large, the same in blocks of rows: (..., n, d).

    Args:
        part: what the particles of its first argument, (..., m, d), feel of all those of its
            second, (..., n, d): (..., m, d).
        x: the particles, (..., n, d).
    """
    n = x.shape[-2]
    if n * n <= blocks.ENTRIES:
        return part(x, x)
    if x.ndim > 2:
        return np.stack([by_rows(part, cloud) for cloud in x])
    return np.concatenate([*blocks.over_rows(n, lambda rows: part(x[rows], x))])


@dataclass(frozen=True)
class System:
    """One of the `SYSTEMS`, at an inverse temperature beta, with or without a perceptron block.

    USA with a perceptron in gradient form climbs, with speed x_i' = n dF/dx_i on the sphere,

        F = e^beta E_beta(x_1, ..., x_n) + 1/n sum_i V(x_i)

    with E_beta that of `measures.energy` and V the perceptron's potential. Scaled USA climbs F with
    e^beta left out, with the same speed. SA without a perceptron climbs E_beta too, since its x_i'
    is that of USA times n / Z_i > 0. A system that descends goes down instead.
    """

    name: str
    beta: float
    perceptron: Perceptron | None = None
    descends: bool = False  # x_i' with the opposite sign

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
        attention = SYSTEMS[self.name]
        drift = by_rows(lambda queries, keys: attention(queries, keys, self.beta), x)
        if self.perceptron:
            drift = drift + self.perceptron.drift(x)
        tangent: Floats = drift - (drift * x).sum(axis=-1, keepdims=True) * x
        return -tangent if self.descends else tangent

    @property
    def potential_weight(self) -> float:
        """How much of the mean potential stands next to E_beta in `energy`.

        What that gives is climbed by USA and scaled USA. SA with a perceptron need not climb it.
        """
        return float(np.exp(-self.beta)) if self.name == "usa" else 1.0

    def energy(self, x: Floats) -> float:
        """E_beta of the points (n, d) and, with a perceptron, `potential_weight` times mean V.

        Raises:
            ValueError: if the perceptron is not in gradient form.
        """
        energy = measures.energy(x, self.beta)
        if self.perceptron:
            energy += self.potential_weight * float(self.perceptron.potential(x).mean())
        return energy
