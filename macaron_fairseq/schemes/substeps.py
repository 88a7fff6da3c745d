"""Sub-steps: how one step of a scheme follows the flow x' = f(x) of its operators.

Each gives the slope k of the step x <- x + h k, from one or several evaluations of f.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from macaron_fairseq.common.names import look_up

Field = Callable[[Tensor], Tensor]
Gate = Callable[[Tensor], Tensor]


def euler(f: Field, x: Tensor, h: float, gate: Gate | None = None) -> Tensor:
    """f(x): the networks as published."""
    return f(x)


def midpoint(f: Field, x: Tensor, h: float, gate: Gate | None = None) -> Tensor:
    """f(x + h/2 f(x))."""
    return f(torch.add(x, f(x), alpha=h / 2))


def rk4(f: Field, x: Tensor, h: float, gate: Gate | None = None) -> Tensor:
    """The classic Runge-Kutta method: (k1 + 2 k2 + 2 k3 + k4) / 6."""
    k1 = f(x)
    k2 = f(torch.add(x, k1, alpha=h / 2))
    k3 = f(torch.add(x, k2, alpha=h / 2))
    k4 = f(torch.add(x, k3, alpha=h))
    return (k1 + 2 * k2 + 2 * k3 + k4) / 6


def gated_rk2(f: Field, x: Tensor, h: float, gate: Gate | None = None) -> Tensor:
    """g k1 + (1 - g) k2 with k2 = f(x + h k1) and g = sigmoid(gate([k1; k2])), one for each token.

    The ODE Transformer's (Li et al. 2022, RK2 with learnt coefficients), of which h is 1. Without a
    gate g is 1/2, Heun's method.
    """
    k1 = f(x)
    k2 = f(torch.add(x, k1, alpha=h))
    if gate is None:
        return (k1 + k2) / 2
    g = gate(torch.cat((k1, k2), -1)).sigmoid()
    return g * k1 + (1 - g) * k2


@dataclass(frozen=True)
class SubStep:
    """A method, and what is known of it."""

    slope: Callable[[Field, Tensor, float, Gate | None], Tensor]
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


def new_gate(width: int) -> nn.Linear:
    """The gate of a field of that width; training starts from Heun's method."""
    gate = nn.Linear(2 * width, 1)
    nn.init.zeros_(gate.weight)
    nn.init.zeros_(gate.bias)
    return gate
