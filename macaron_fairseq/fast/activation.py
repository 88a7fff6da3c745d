"""The inner half of an FFN: ReLU and dropout in one pass over its product, on a CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.fast import plain, products, random_numbers
from macaron_fairseq.fast.dropout import (
    alike,
    draw_mask,
    is_replaceable,
    loops,
    loops_draw_alike,
    scale_of,
    threshold,
    vector,
)


def activated(
    x: Tensor, linear: Any, activation: Callable[[Tensor], Tensor], dropout: Any
) -> Tensor:
    """dropout(activation(linear(x))), (..., out channel), of x, (..., in channel)."""
    if not is_relu_and_dropout(linear, activation, dropout):
        return dropout(activation(linear(x)))
    if is_known(x, linear):
        x = x.contiguous()  # else its product would be many small ones
        return RectifiedDropout.apply(x, linear.weight, linear.bias, dropout.p)
    y = linear(x)
    if is_coarse(y):
        return CoarseRectifiedDropout.apply(y, dropout.p)
    return dropout(activation(y))


def is_relu_and_dropout(
    linear: nn.Module, activation: Callable[[Tensor], Tensor], dropout: nn.Module
) -> bool:
    """Whether it is, watched by no hooks; where nothing is dropped, one pass gains nothing."""
    return activation is functional.relu and plain.is_linear(linear) and is_replaceable(dropout)


def is_known(x: Tensor, linear: nn.Linear) -> bool:
    """Whether the compiled loop takes the product of x."""
    return (
        linear.bias is not None
        and x.dtype == linear.weight.dtype == torch.float32
        and x.device.type == linear.weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and loops_draw_alike()
    )


def is_coarse(y: Tensor) -> bool:
    """Whether the compiled loop takes what the linear map has given in bf16."""
    return (
        y.dtype == torch.bfloat16
        and y.device.type == "cpu"
        and y.is_contiguous()
        and loops() is not None
    )


class RectifiedDropout(torch.autograd.Function):
    """Dropout of ReLU(x weight^T + bias), which remembers no more than x and the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, p: float) -> Tensor:
        """Multiply; then add, compare, draw and leave out in the product's place."""
        y = products.linear(x, weight)
        ctx.scale = scale_of(p, x.dtype)
        rows = y.view(-1, len(bias)).numpy()
        random_numbers.draw(
            loops().rectify, rows, bias.numpy(), threshold(1 - p), np.float32(ctx.scale)
        )
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass on the gradient of what was passed on, which is not zero, through the product."""
        x, weight, y = ctx.saved_tensors
        if torch.is_grad_enabled():  # for gradients of gradients
            grad = grad * (y != 0) * ctx.scale
        else:
            grad, passed = alike(grad, y)
            loops().of_rectified(*map(vector, (grad, y, passed)), np.float32(ctx.scale))
            grad = passed
        return *products.gradients(grad, x, weight, ctx.needs_input_grad[:3]), None


class CoarseRectifiedDropout(torch.autograd.Function):
    """Dropout of ReLU(y), of y in bf16 and in its place, which remembers no more than the result.

    It is zero where y was negative, and where it was left out.
    y must be needed by nothing else, nor for gradients, as a linear map's result is not.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, p: float) -> Tensor:
        """Draw masks; compare, leave out and scale."""
        masks, scale = draw_mask(y, p)
        ctx.scale = np.float32(scale)
        loops().rectify_coarse(*map(vector, (y.view(torch.int16), masks)), ctx.scale)
        torch.autograd.graph.increment_version(y)
        result = y.detach()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Pass on the gradient of what was passed on, which is not zero."""
        (y,) = ctx.saved_tensors
        grad, passed = alike(grad, y)
        bits = (vector(x.view(torch.int16)) for x in (grad, y, passed))
        loops().of_rectified_coarse(*bits, ctx.scale)
        return passed, None
