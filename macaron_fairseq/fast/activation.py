"""GELU and the linear map after it, which remember one tensor instead of two.

An FFN of a language model is widest there. GELU is cheap next to the products around it, so its
result is made again in the backward pass.
"""

from typing import Any

import torch
from fairseq.modules import gelu
from torch import Tensor

from macaron_fairseq.fast.linear import linear, weight_gradient


def is_useful() -> bool:
    """Whether there will be a backward pass, and nobody transforms operations."""
    return torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """gelu(x) weight^T + bias, (..., out channel), of x, (..., in channel)."""
    return GeluLinear.apply(x, weight, bias)


class GeluLinear(torch.autograd.Function):
    """`gelu_linear`, with gradients of any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Activate and multiply; autocast chooses the precision of the product."""
        ctx.save_for_backward(x, weight)
        return linear(gelu(x), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the gradient with the weight and with GELU's result, in the product's dtype."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, len(weight))
        of_gelu = linear(grad, weight.t().to(grad.dtype)).float() if of_x else None
        for_weight = None
        if of_weight:
            activated = gelu(x).to(grad.dtype).flatten(0, -2)
            for_weight = weight_gradient(rows, activated).type_as(weight)
        return (
            torch.ops.aten.gelu_backward(of_gelu, x.float()).type_as(x) if of_x else None,
            for_weight,
            rows.sum(0).type_as(weight) if of_bias else None,
        )
