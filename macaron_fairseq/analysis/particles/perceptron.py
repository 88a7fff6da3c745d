"""The perceptron block: a drift that each particle feels on its own.

Source: Alvarez-Lopez, Geshkovski and Ruiz-Balet, arXiv 2601.21366.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError


def _relu(u: Floats) -> Floats:
    return np.maximum(u, 0)


def _relu_integral(u: Floats) -> Floats:
    return np.maximum(u, 0) ** 2 / 2


def _tanh_integral(u: Floats) -> Floats:
    return np.logaddexp(u, -u) - np.log(2)  # ln cosh u, which overflows as it is written


def _gelu(u: Floats) -> Floats:
    return u * ndtr(u)


def _gelu_integral(u: Floats) -> Floats:
    density = np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi)
    return ((u**2 - 1) * ndtr(u) + u * density) / 2


# Each with its integral, which makes the potential.
ACTIVATIONS: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "relu": (_relu, _relu_integral),
    "gelu": (_gelu, _gelu_integral),
    "tanh": (np.tanh, _tanh_integral),
}


@dataclass(frozen=True)
class Perceptron:
    """The drift sum_m w_m sigma(a_m . x) of m neurons.

    Attributes:
        activation: sigma, a name of `ACTIVATIONS`.
        a: what the neurons look for, (m, d).
        w: what they add, (m, d).
        s: in gradient form, w_m = s_m a_m, the strengths (m,); otherwise None.
    """

    activation: str
    a: Floats
    w: Floats
    s: Floats | None = None

    def drift(self, x: Floats) -> Floats:
        """The drift at the points x, (..., d), before it is projected."""
        return ACTIVATIONS[self.activation][0](x @ self.a.T) @ self.w

    def potential(self, x: Floats) -> Floats:
        """V(x) = sum_m s_m S(a_m . x) with S' = sigma, whose gradient is the drift: (...).

        Raises:
            ValueError: if the perceptron is not in gradient form.
        """
        if self.s is None:
            raise ValueError("only a perceptron in gradient form, w_m = s_m a_m, has a potential")
        return ACTIVATIONS[self.activation][1](x @ self.a.T) @ self.s


def gradient_form(activation: str, a: Floats, s: Floats) -> Perceptron:
    """A perceptron whose drift is a gradient, w_m = s_m a_m, from a of (m, d) and s of (m,)."""
    return Perceptron(activation, a, s[:, None] * a, s)


def random(activation: str, neurons: int, dim: int, strength: float, seed: int) -> Perceptron:
    """A perceptron in gradient form: a_m uniform on the sphere, s_m = strength or -strength."""
    # Not the generator of the particles' start, so that a perceptron does not change the start.
    generator = np.random.default_rng([seed, 1])
    a = generator.normal(size=(neurons, dim))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    return gradient_form(activation, a, strength * generator.choice([-1.0, 1.0], size=neurons))


def read(path: Path, activation: str, dim: int) -> Perceptron:
    """A perceptron from a JSON file with the weights "a" and either "s" or "w".

    Raises:
        UserError: if the file holds no such weights in this dimension.
    """
    hint = f'give a JSON file {{"a": [[{dim} numbers], ...], "s": [a number for each of them]}}'
    found = files.read_json(path, {"a": list}, hint)
    forms = [name for name in ("s", "w") if name in found]
    if len(forms) != 1:
        raise UserError(f'{path} holds not one of "s" and "w" beside "a": {hint}')
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
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} does not hold numbers in a regular shape: {hint}") from error
    if not np.isfinite(numbers).all():
        raise UserError(f"{path} holds a number that is not finite: {hint}")
    return numbers
