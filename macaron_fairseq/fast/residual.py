"""The end of a step, x + h dropout(y): one pass over what a linear map has just given, on a CPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from macaron_fairseq.fast.dropout import (
    draw_kept,
    draw_mask,
    is_replaceable,
    loops,
    loops_draw_alike,
    masked,
    scale_of,
    vector,
)


def add(x: Tensor, y: Tensor, size: float, dropout: nn.Module, is_owned: bool) -> Tensor:
    """x + size dropout(y).

    Args:
        x: the state.
        y: a slope, of the same shape.
        size: h, the step's.
        dropout: a dropout module.
        is_owned: whether nothing else needs y, so that the result may be in its place.
    """
    if is_owned and is_known(x, y, dropout):
        return ResidualDropout.apply(x, y, size, dropout.p)
    if is_coarse(x, y, dropout):
        return CoarseResidualDropout.apply(x, y, size, dropout.p)
    return torch.add(x, to_add(dropout(y), x), alpha=size)


def to_add(y: Tensor, x: Tensor) -> Tensor:
    """y in x's type on a CPU, which takes longer to add fp32 and bf16 than for a cast and a sum."""
    return y.to(x.dtype) if y.device.type == "cpu" else y


def is_known(x: Tensor, y: Tensor, dropout: nn.Module) -> bool:
    """Whether the compiled loop computes this, and something is dropped."""
    return is_plain(x, y, dropout) and y.dtype == torch.float32 and loops_draw_alike()


def is_coarse(x: Tensor, y: Tensor, dropout: nn.Module) -> bool:
    """The same of a slope in bf16."""
    return is_plain(x, y, dropout) and y.dtype == torch.bfloat16 and loops() is not None


def is_plain(x: Tensor, y: Tensor, dropout: nn.Module) -> bool:
    """Whether elements of both are alike in memory, and something is dropped."""
    return (
        is_replaceable(dropout)
        and x.dtype == torch.float32
        and x.device.type == y.device.type == "cpu"
        and x.shape == y.shape
        and x.is_contiguous()
        and y.is_contiguous()
        and not torch._C._are_functorch_transforms_active()  # for which there are no rules
    )


class ResidualDropout(torch.autograd.Function):
    """x + size dropout(y), in y's place, which remembers what was kept, in a byte for an element.

    y must be needed by nothing else, nor for gradients, as a linear map's result is not.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, size: float, p: float) -> Tensor:
        """Draw, leave out, scale and add."""
        kept = draw_kept(y, 1 - p)
        ctx.save_for_backward(kept)
        ctx.size, ctx.scale = size, scale_of(p, y.dtype)
        loops().drop_and_add(*map(vector, (x, kept, y)), *map(np.float32, (ctx.scale, size)))
        torch.autograd.graph.increment_version(y)  # who kept it after all is refused, not misled
        return y.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """That of x is what comes; that of y leaves out the same."""
        (kept,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # for gradients of gradients
            return grad, grad * kept * (ctx.scale * ctx.size), None, None
        return grad, masked(grad, kept, ctx.scale * ctx.size), None, None


class CoarseResidualDropout(torch.autograd.Function):
    """The same of y in bf16, whose dropout is `CoarseDropout`'s, in memory of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, size: float, p: float) -> Tensor:
        """Draw a mask, apply it, scale and add."""
        ctx.mask, scale = draw_mask(y, p)
        ctx.scale = np.float32(scale * size)
        result = torch.empty_like(x)
        tensors = x, y.view(torch.int16), ctx.mask, result
        loops().add_coarse(*map(vector, tensors), ctx.scale)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """That of x is what comes; that of y is masked, in bf16."""
        of_y = torch.empty(ctx.mask.shape, dtype=torch.bfloat16)
        tensors = grad.contiguous(), ctx.mask, of_y.view(torch.int16)
        loops().of_added_coarse(*map(vector, tensors), ctx.scale)
        return grad, of_y, None, None
