"""Dropout that leaves out what PyTorch's leaves out, in less memory and time on a CPU."""

from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from macaron_fairseq.fast import random_numbers

# Elements at a time without Numba: as many as a core's cache holds.
BLOCK = 2**16


class Dropout(FairseqDropout):
    """fairseq's dropout: the same options, values, gradients and use of the random generator.

    PyTorch decides from 64 random bits, one element at a time. Where this PyTorch is known to draw
    so, Numba's compiled loops draw many at once; without Numba bits are drawn and compared in
    blocks. For bf16, where nothing is exact anyway, it is 15 bits.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Return x without the share p of its elements, the rest scaled by 1 / (1 - p)."""
        if self.is_on() and not inplace and x.device.type == "cpu":
            kind = CoarseDropout if x.dtype == torch.bfloat16 else RememberedDropout
            return kind.apply(x, self.p)
        return super().forward(x, inplace)

    def is_on(self) -> bool:
        """Whether it leaves out some elements, and not all."""
        return 0 < self.p < 1 and (self.training or self.apply_during_inference)


def is_replaceable(module: nn.Module) -> bool:
    """Whether it is this dropout, watched by no hooks, and leaves something out."""
    hooks = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks
    return (
        type(module) is Dropout
        and module.is_on()
        and not any((*hooks, module._backward_hooks, _has_any_global_hook()))
    )


class RememberedDropout(torch.autograd.Function):
    """PyTorch's dropout, which remembers what was kept in one byte for an element, not in four."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        """Draw, and leave out."""
        kept = draw_kept(x, 1 - p)
        ctx.save_for_backward(kept)
        ctx.scale = scale_of(p, x.dtype)
        return masked(x, kept, ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Leave out the same of the gradient."""
        (kept,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # for gradients of gradients
            return grad * kept * ctx.scale, None
        return masked(grad, kept, ctx.scale), None


class CoarseDropout(torch.autograd.Function):
    """Dropout of bf16 elements, whose share p is rounded to 1/2^15."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        """Draw a mask of all bits or none, and apply it."""
        ctx.mask, ctx.scale = draw_mask(x, p)
        return masked_coarse(x, ctx.mask, ctx.scale)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Apply the mask to the gradient."""
        return masked_coarse(grad, ctx.mask, ctx.scale), None


def masked(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    """x where `kept` is True, scaled, and 0 elsewhere."""
    x, y = alike(x, kept)
    if x.dtype == torch.float32 and loops() is not None:
        loops().drop(*map(vector, (x, kept, y)), np.float32(scale))
        return y
    factors = torch.empty(BLOCK, dtype=x.dtype)
    parts = zip(*(flat(tensor).split(BLOCK) for tensor in (x, kept, y)), strict=True)
    for values, kept_values, results in parts:
        factor = factors[: len(values)].copy_(kept_values).mul_(scale)
        torch.mul(values, factor, out=results)
    return y


def masked_coarse(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """x & mask, in bf16, scaled."""
    if loops() is None:
        return (x.view(torch.int16) & mask).view(torch.bfloat16).mul_(scale)
    x, y = alike(x, mask)
    tensors = x.view(torch.int16), mask, y.view(torch.int16)
    loops().mask_coarse(*map(vector, tensors), np.float32(scale))
    return y


def draw_mask(like: Tensor, p: float) -> tuple[Tensor, float]:
    """Masks that leave out the share p, rounded to 1/2^15, and by what to scale the rest."""
    share = round((1 - p) * 2**15)
    return draw_coarse(like, share - 2**14), 2**15 / share if share else 0.0


def draw_coarse(like: Tensor, least: int) -> Tensor:
    """An int8 of -1 or 0 for each element: -1 where 15 random bits, signed, are less.

    With its sign -1 is widened to all of 16 bits.

    Args:
        like: of which shape and layout.
        least: the number at and above which a mask is 0.
    """
    masks = torch.empty_like(like, dtype=torch.int8)
    if loops() is not None and random_numbers.is_known():
        random_numbers.draw(loops().draw_coarse, vector(masks), np.int16(least))
        return masks
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: like.numel()]
    # Shifts keep the sign: the second leaves -1 below the threshold, and else 0.
    flat(masks).copy_(bits.bitwise_right_shift_(1).sub_(least).bitwise_right_shift_(15))
    return masks


def draw_kept(like: Tensor, probability: float) -> Tensor:
    """A bool for each element, True with that probability, as PyTorch would draw it."""
    kept = torch.empty_like(like, dtype=torch.bool)
    if loops_draw_alike():
        draw_by_loop(flat(kept), probability)
    elif draws_are_known():
        draw(flat(kept), probability)
    else:
        kept.copy_(torch.empty_like(like).bernoulli_(probability))
    return kept


def draw_by_loop(drawn: Tensor, probability: float) -> None:
    """`draw` by the compiled loop."""
    random_numbers.draw(loops().draw_kept, drawn.numpy(), threshold(probability))


def draw(drawn: Tensor, probability: float) -> None:
    """Fill a bool vector with True, of that probability: `bernoulli_`'s ones, number by number.

    PyTorch divides 53 of 64 random bits by 2^53 and compares; here the probability is multiplied.
    """
    bits = torch.empty(min(BLOCK, len(drawn)), dtype=torch.int64)
    for start in range(0, len(drawn), BLOCK):
        block = bits[: len(drawn) - start]
        block.random_(-(2**63), None).bitwise_and_(2**53 - 1)
        torch.lt(block, threshold(probability), out=drawn[start : start + BLOCK])


def threshold(probability: float) -> int:
    """The number of 53 bits below which a draw is True."""
    return ceil(probability * 2**53)


def flat(x: Tensor) -> Tensor:
    """The elements of a dense tensor in the order in which they are stored, as PyTorch draws."""
    return x.as_strided((x.numel(),), (1,))


def vector(x: Tensor) -> np.ndarray:
    """The same for NumPy."""
    return flat(x).numpy()


def alike(x: Tensor, layout: Tensor) -> tuple[Tensor, Tensor]:
    """x, and memory for a result of its type, both in the layout of another, dense tensor.

    They may be the same: what is computed goes element by element.
    """
    y = torch.empty_like(layout, dtype=x.dtype)
    return (x if x.stride() == y.stride() else y.copy_(x)), y


def scale_of(p: float, dtype: torch.dtype) -> float:
    """By what PyTorch multiplies the elements that are kept."""
    return torch.ones((), dtype=dtype).div_(1 - p).item()


@cache
def loops() -> Any:
    """The loops that Numba compiles, or None where it does not."""
    try:
        from macaron_fairseq.fast import compiled

        one = np.ones(1, np.float32)
        compiled.drop(one, one > 0, one, np.float32(1))
    except Exception:  # not there, broken, no folder for its results: we can do without
        return None
    return compiled


@cache
def loops_draw_alike() -> bool:
    """Whether they draw as this PyTorch does."""
    return random_numbers.is_known() and loops() is not None and is_bernoulli(draw_by_loop)


@cache
def draws_are_known() -> bool:
    """Whether this PyTorch draws as `draw` does; builds differ, as do makers of processors."""
    return is_bernoulli(draw)


def is_bernoulli(draws: Callable[[Tensor, float], None]) -> bool:
    """Whether a function fills a bool vector as PyTorch does, and leaves the generator alike."""
    state = torch.get_rng_state()
    results = []
    try:
        for fill in (lambda x, p: x.copy_(torch.empty(len(x)).bernoulli_(p)), draws):
            torch.set_rng_state(state)
            fill(drawn := torch.empty(700, dtype=torch.bool), 0.7)  # the state is renewed within
            results.append((drawn, torch.get_rng_state()))
    finally:
        torch.set_rng_state(state)
    return all(map(torch.equal, *results))
