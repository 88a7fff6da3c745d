"""The inner half of an FFN: ReLU and dropout in one pass over its product, on a CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.acceleration import generator, plain, products
from macaron_fairseq.acceleration.dropout import (
    Dropout,
    alike,
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
    if not (activation is functional.relu and is_known(x, linear, dropout)):
        return dropout(activation(linear(x)))
    x = x.contiguous()  # else its product would be many small ones
    return RectifiedDropout.apply(x, linear.weight, linear.bias, dropout.p)


def is_known(x: Tensor, linear: nn.Module, dropout: nn.Module) -> bool:
    """Whether the compiled loop computes this, and something is dropped: else it gains nothing."""
    return (
        type(dropout) is Dropout
        and dropout.is_on()
        and plain.is_linear(linear)
        and linear.bias is not None
        and x.dtype == linear.weight.dtype == torch.float32
        and x.device.type == linear.weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and loops_draw_alike()
    )


class RectifiedDropout(torch.autograd.Function):
    """Dropout of ReLU(x weight^T + bias), which remembers no more than x and the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, p: float) -> Tensor:
        """Multiply; then add, compare, draw and leave out in the product's place."""
        y = products.linear(x, weight)
        ctx.scale = scale_of(p, x.dtype)
        rows = y.view(-1, len(bias)).numpy()
        generator.draw(loops().rectify, rows, bias.numpy(), threshold(1 - p), np.float32(ctx.scale))
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
