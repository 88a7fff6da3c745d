"""Integrators: a layer of any scheme and sub-step on any operators, and flows of small systems.

The operators may be a toy system's, a trained layer's or an ideal one's. The sub-steps themselves
are in `macaron_fairseq.schemes.substeps`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from scipy.integrate import solve_ivp

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.schemes.splitting import Operator, Step, Steps

if TYPE_CHECKING:  # the ideal systems are to start without PyTorch, which takes seconds
    from torch import Tensor

    from macaron_fairseq.schemes.substeps import Gate, SubStep

    Apply = Callable[[Operator, Tensor], Tensor]  # what an operator gives for a state
    Gates = Mapping[tuple[Operator, ...], Gate]  # of the steps along these operators

# Of the adaptive steps, for each coordinate.
RELATIVE, ABSOLUTE = 1e-8, 1e-10


def increment(
    step: Step, apply: Apply, substep: SubStep, gate: Gate | None, x: Tensor, h: float = 1.0
) -> Tensor:
    """What a step that is `h` times as long adds to x; a gate that is not given is 1/2."""

    def field(x: Tensor) -> Tensor:
        return reduce(add, [apply(operator, x) for operator in step.operators])

    size = h * step.size
    return size * substep.slope(field, x, size, gate)


def advance(
    steps: Steps, apply: Apply, substep: SubStep, gates: Gates, x: Tensor, h: float = 1.0
) -> Tensor:
    """The state x after a layer whose steps are `h` times as long."""
    for step in steps:
        x = x + increment(step, apply, substep, gates.get(step.operators), x, h)
    return x


def flow(
    velocity: Callable[[float, Floats], Floats], start: Floats, times: Floats, stiff: bool = False
) -> Floats:
    """The solution of x' = velocity(t, x) at each of the ascending times, by adaptive steps.

    Args:
        velocity: of a state, (n,), at a time.
        start: the state at the first time, (n,).
        times: (t,).
        stiff: whether the fastest rate is far above what moves the state.

    Returns:
        The states, (t, n).

    Raises:
        UserError: if SciPy gives up.
    """
    # SciPy rather than torchdiffeq: nothing here needs gradients or a GPU.
    solved = solve_ivp(
        velocity,
        (times[0], times[-1]),
        start,
        method="LSODA" if stiff else "DOP853",
        t_eval=times,
        rtol=RELATIVE,
        atol=ABSOLUTE,
    )
    if not solved.success:
        reached = solved.t[-1] if len(solved.t) else times[0]
        raise UserError(f"the integration stopped at time {reached:g}: {solved.message}")
    return solved.y.T
