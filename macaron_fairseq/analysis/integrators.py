"""A layer of any scheme and sub-step on any operators.

The operators may be a toy system's, a trained layer's or an ideal one's. The sub-steps themselves
are in `macaron_fairseq.schemes.substeps`.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add

from torch import Tensor

from macaron_fairseq.schemes.splitting import Operator, Step, Steps
from macaron_fairseq.schemes.substeps import Gate, SubStep

Apply = Callable[[Operator, Tensor], Tensor]  # what an operator gives for a state
Gates = Mapping[tuple[Operator, ...], Gate]  # of the steps along these operators


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
