"""A layer of any scheme and sub-step on any operators: the toy systems' or a trained layer's."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

import torch
from torch import Tensor

from macaron_fairseq.schemes.splitting import Operator, Steps
from macaron_fairseq.schemes.substeps import Gate, SubStep

Apply = Callable[[Operator, Tensor], Tensor]  # what an operator gives for a state
Gates = Mapping[tuple[Operator, ...], Gate]  # of the steps along these operators


def advance(
    steps: Steps,
    apply: Apply,
    substep: SubStep,
    gates: Gates,
    x: Tensor,
    h: float,
) -> Tensor:
    """The state x after a layer whose steps are `h` times as long; without a gate it is 1/2."""
    for step in steps:
        field, size = partial(total, apply, step.operators), h * step.size
        x = x + size * substep.slope(field, x, size, gates.get(step.operators))
    return x


def total(apply: Apply, operators: Sequence[Operator], x: Tensor) -> Tensor:
    """What these operators give, in sum."""
    return reduce(torch.add, [apply(operator, x) for operator in operators])
