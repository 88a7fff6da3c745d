"""Sub-steps: how one step of a scheme follows the flow x' = f(x) of its operators.

Each gives the slope k of the step x <- x + h k, from one or several evaluations of f. States may be
of any type that adds and scales: tensors in a layer, arrays in a toy system.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from macaron_fairseq.common.names import look_up

Field = Callable[[Any], Any]
Gate = Callable[[Any, Any], Any]  # of two slopes: the share of the first, from 0 to 1


def euler(f: Field, x: Any, h: float, gate: Gate | None = None) -> Any:
    """f(x): the networks as published."""
    return f(x)


def midpoint(f: Field, x: Any, h: float, gate: Gate | None = None) -> Any:
    """f(x + h/2 f(x))."""
    return f(x + h / 2 * f(x))


def rk4(f: Field, x: Any, h: float, gate: Gate | None = None) -> Any:
    """The classic Runge-Kutta method: (k1 + 2 k2 + 2 k3 + k4) / 6."""
    k1 = f(x)
    k2 = f(x + h / 2 * k1)
    k3 = f(x + h / 2 * k2)
    k4 = f(x + h * k3)
    return (k1 + 2 * k2 + 2 * k3 + k4) / 6


def gated_rk2(f: Field, x: Any, h: float, gate: Gate | None = None) -> Any:
    """g k1 + (1 - g) k2 with k2 = f(x + h k1) and g = gate(k1, k2), one for each token.

    The ODE Transformer's (Li et al. 2022, RK2 with learnt coefficients), of which h is 1. Without a
    gate g is 1/2, Heun's method.
    """
    k1 = f(x)
    k2 = f(x + h * k1)
    g = gate(k1, k2) if gate else 1 / 2
    return g * k1 + (1 - g) * k2


@dataclass(frozen=True)
class SubStep:
    """A method, and what is known of it."""

    slope: Callable[[Field, Any, float, Gate | None], Any]
    evaluations: int  # of the field in a step
    formula: str  # of the slope
    is_gated: bool = False


SUBSTEPS = {
    "euler": SubStep(euler, 1, "f(x)"),
    "midpoint": SubStep(midpoint, 2, "f(x + h/2 f(x))"),
    "rk4": SubStep(
        rk4,
        4,
        "(k1 + 2 k2 + 2 k3 + k4)/6, k1 = f(x), k2 = f(x + h/2 k1), k3 = f(x + h/2 k2), "
        "k4 = f(x + h k3)",
    ),
    "gated-rk2": SubStep(
        gated_rk2,
        2,
        "g k1 + (1 - g) k2, k1 = f(x), k2 = f(x + h k1), g = sigmoid(W [k1; k2] + b)",
        is_gated=True,
    ),
}

DEFAULT = "euler"


def get(name: str, flag: str = "--macaron-substep") -> SubStep:
    """The sub-step of that name; a `UserError` shows the nearest names to a misspelt one."""
    return look_up(SUBSTEPS, name, "sub-step", flag)
