"""Softmax over few elements on a CPU.

PyTorch's fills a register of the processor with elements of one row. It computes rows that are
shorter one element after the other, some ten times slower (docs/speedups.md).
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

# Several operations instead of one: with fewer elements they cost more than they gain.
LEAST_ELEMENTS = 2**12


def softmax(x: Tensor) -> Tensor:
    """`x.softmax(-1)`, with gradients of any order; short rows in bf16 are computed in fp32."""
    if x.dtype == torch.bfloat16 and x.device.type == "cpu" and x.shape[-1] < 2 * lanes():
        return softmax(x.float()).to(x.dtype)
    if not has_short_rows(x):
        return x.softmax(-1)
    return ShortSoftmax.apply(x) if torch.is_grad_enabled() else of_rows(x)


def has_short_rows(x: Tensor) -> bool:
    """Whether PyTorch would be slow."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.shape[-1] < lanes()
        and x.numel() >= LEAST_ELEMENTS
        and not torch._C._are_functorch_transforms_active()  # for which it has no rules
    )


@cache
def lanes() -> int:
    """How many fp32 numbers a register holds."""
    return {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 0)


def of_rows(x: Tensor) -> Tensor:
    """exp(x - max x) over its sum, by operations over all rows."""
    y = x.sub(x.amax(-1, keepdim=True)).exp_()
    return y.div_(y.sum(-1, keepdim=True))


class ShortSoftmax(torch.autograd.Function):
    """`of_rows` and its gradient, which PyTorch computes as slowly."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Remember the result alone."""
        y = of_rows(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """y (grad - sum of y grad)."""
        (y,) = ctx.saved_tensors
        weighted = y * grad
        return weighted - y * weighted.sum(-1, keepdim=True)
