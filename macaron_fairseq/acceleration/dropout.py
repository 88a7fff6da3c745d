"""Dropout that leaves out what PyTorch's leaves out, in less memory and time on a CPU."""

from functools import cache
from math import ceil
from typing import Any

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

# Elements at a time: as many as a core's cache holds.
BLOCK = 2**16


class Dropout(FairseqDropout):
    """fairseq's dropout: the same options, values, gradients and use of the random generator.

    PyTorch decides from 64 random bits, one element at a time; here bits are drawn, and compared
    on all cores, in blocks, where this PyTorch is known to draw so. For bf16, where nothing is
    exact anyway, it is 15 bits.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Return x without the share p of its elements, the rest scaled by 1 / (1 - p)."""
        is_on = 0 < self.p < 1 and (self.training or self.apply_during_inference)
        if is_on and not inplace and x.device.type == "cpu":
            kind = CoarseDropout if x.dtype == torch.bfloat16 else RememberedDropout
            return kind.apply(x, self.p)
        return super().forward(x, inplace)


class RememberedDropout(torch.autograd.Function):
    """PyTorch's dropout, which remembers what was kept in one byte for an element, not in four."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        """Draw, and leave out; block by block, while it is in the cache."""
        kept = torch.empty_like(x, dtype=torch.bool)
        if draws_are_known():
            draw(flat(kept), 1 - p)
        else:
            kept.copy_(torch.empty_like(x).bernoulli_(1 - p))
        ctx.save_for_backward(kept)
        ctx.scale = torch.ones((), dtype=x.dtype).div_(1 - p).item()
        return masked(x, kept, ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Leave out the same of the gradient."""
        (kept,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # for gradients of gradients
            return grad * kept * ctx.scale, None
        return masked(grad, kept, ctx.scale), None


def masked(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    """x where `kept` is True, scaled, and 0 elsewhere."""
    y = torch.empty_like(kept, dtype=x.dtype)
    if x.stride() != y.stride():
        x = y.copy_(x)
    factors = torch.empty(BLOCK, dtype=x.dtype)
    parts = zip(*(flat(tensor).split(BLOCK) for tensor in (x, kept, y)), strict=True)
    for values, kept_values, results in parts:
        factor = factors[: len(values)].copy_(kept_values).mul_(scale)
        torch.mul(values, factor, out=results)
    return y


def flat(x: Tensor) -> Tensor:
    """The elements of a dense tensor in the order in which they are stored, as PyTorch draws."""
    return x.as_strided((x.numel(),), (1,))


def draw(drawn: Tensor, probability: float) -> None:
    """Fill a bool vector with True, of that probability: `bernoulli_`'s ones, number by number.

    PyTorch divides 53 of 64 random bits by 2^53 and compares; here the probability is multiplied.
    """
    bits = torch.empty(min(BLOCK, len(drawn)), dtype=torch.int64)
    threshold = ceil(probability * 2**53)
    for start in range(0, len(drawn), BLOCK):
        block = bits[: len(drawn) - start]
        block.random_(-(2**63), None).bitwise_and_(2**53 - 1)
        torch.lt(block, threshold, out=drawn[start : start + BLOCK])


class CoarseDropout(torch.autograd.Function):
    """Dropout of bf16 elements, whose share p is rounded to 1/2^15."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        """Draw a mask of all bits or none, and apply it."""
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = round((1 - p) * 2**15)
        # Shifts keep the sign: the second leaves -1, all bits, below the threshold, and else 0.
        ctx.mask = bits.bitwise_right_shift_(1).sub_(kept - 2**14).bitwise_right_shift_(15)
        ctx.scale = 2**15 / kept if kept else 0.0
        return CoarseDropout.masked(x, ctx)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Apply the mask to the gradient."""
        return CoarseDropout.masked(grad, ctx), None

    @staticmethod
    def masked(x: Tensor, ctx: Any) -> Tensor:
        """The kept elements, scaled."""
        return (x.view(torch.int16) & ctx.mask).view(torch.bfloat16).mul_(ctx.scale)


@cache
def draws_are_known() -> bool:
    """Whether this PyTorch draws as `draw` does; builds differ, as do makers of processors."""
    state = torch.get_rng_state()
    try:
        theirs = torch.empty(64).bernoulli_(0.7)
        after_theirs = torch.get_rng_state()
        torch.set_rng_state(state)
        draw(ours := torch.empty(64, dtype=torch.bool), 0.7)
        return torch.equal(theirs.bool(), ours) and torch.equal(after_theirs, torch.get_rng_state())
    finally:
        torch.set_rng_state(state)
