"""The sum of a loss over rows of an output layer's logits, some rows at a time.

For any loss that autograd can differentiate. Those of `chunked_loss`, and that of word level, have
their gradients by hand instead, which takes less time and memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from macaron_fairseq.fast.chunked_loss import chunks
from macaron_fairseq.fast.linear_gradients import LARGEST_FEATURE, SCALE


def chunked_sum(
    loss: Callable[..., Tensor],
    weight: Tensor,
    parameters: Sequence[Tensor],
    states: Tensor,
    *constants: Tensor,
    steepest: float = 1.0,
) -> Tensor:
    """The sum, in fp32 at least. Logits and their gradients are there for some rows alone.

    Args:
        loss: a function of these rows of states and constants.
        weight: of an output layer, whose types say how many rows are computed together.
        parameters: what the loss computes with and is learnt.
        states: the student's, (rows, dim).
        constants: (rows, ...), which have no gradient.
        steepest: the most that a gradient by a logit may be.
    """
    parts = chunks(len(states), weight)

    def loss_of(some: Tensor, rows: slice) -> Tensor:
        return loss(some, *(x[rows] for x in constants))

    scale = SCALE / max(steepest, 1.0)
    return ChunkedSum.apply(loss_of, parts, scale, states, *parameters)


class ChunkedSum(torch.autograd.Function):
    """`chunked_sum`; gradients are computed in the forward pass, as in `ChunkedLoss`."""

    @staticmethod
    def forward(
        ctx: Any,
        loss_of: Callable[[Tensor, slice], Tensor],
        parts: Sequence[slice],
        most: float,
        states: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        """Add up the loss, and its gradients times a scale, as `LinearGradients` has it."""
        dtype = torch.promote_types(states.dtype, torch.float32)
        total, by_states = states.new_zeros((), dtype=dtype), torch.empty_like(states)
        scale = torch.full_like(total, most)
        is_half = any(x.dtype == torch.float16 for x in (states, *parameters))
        if is_half and states.numel():  # or the weight's gradient could leave fp16
            largest = torch.linalg.vector_norm(states, torch.inf, dtype=dtype)
            scale *= LARGEST_FEATURE / largest.clamp_min(LARGEST_FEATURE)
        by_parameters = [torch.zeros_like(x, dtype=dtype) for x in parameters]
        for rows in parts:
            some = states[rows].detach().requires_grad_()
            with torch.enable_grad():
                part = loss_of(some, rows)
                scaled = scale * part
            by_states[rows], *found = torch.autograd.grad(scaled, (some, *parameters))
            for gradient, x in zip(by_parameters, found, strict=True):
                gradient += x
            total += part.detach()
        ctx.save_for_backward(scale, by_states, *by_parameters)
        ctx.dtypes = [x.dtype for x in (states, *parameters)]
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, sum_grad: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the kept gradients; three arguments have none."""
        scale, *gradients = ctx.saved_tensors
        share = sum_grad / scale
        found = (x * share for x in gradients)
        return None, None, None, *(x.to(y) for x, y in zip(found, ctx.dtypes, strict=True))
