"""The inner half of an FFN: ReLU and dropout in one pass over its product, on a CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.acceleration import plain, products
from macaron_fairseq.acceleration.dropout import Dropout, compiled, of_kept, threshold
from macaron_fairseq.acceleration.generator import Generator


def activated(
    x: Tensor, linear: Any, activation: Callable[[Tensor], Tensor], dropout: Any
) -> Tensor:
    """dropout(activation(linear(x))), (..., out channel), of x, (..., in channel)."""
    if not (activation is functional.relu and is_known(x, linear, dropout)):
        return dropout(activation(linear(x)))
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
        and not torch._C._are_functorch_transforms_active()
        and compiled() is not None
    )


class RectifiedDropout(torch.autograd.Function):
    """Dropout of ReLU(x weight^T + bias), which remembers a byte for an element of the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, p: float) -> Tensor:
        """Multiply; then add, compare, draw and leave out in the product's place."""
        y = products.linear(x, weight)
        kept = torch.empty_like(y, dtype=torch.bool)
        ctx.save_for_backward(x, weight, kept)
        ctx.scale = torch.ones(()).div_(1 - p).item()
        rows = (z.view(-1, len(bias)).numpy() for z in (y, kept))
        with Generator() as generator:
            generator.left = compiled().rectify(
                *rows,
                bias.numpy(),
                generator.words,
                generator.left,
                threshold(1 - p),
                np.float32(ctx.scale),
            )
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass on the gradient of what was passed on, through the product."""
        x, weight, kept = ctx.saved_tensors
        grad = of_kept(grad, kept, ctx.scale)
        return *products.gradients(grad, x, weight, ctx.needs_input_grad[:3]), None
