"""Dropout that leaves out the same elements as PyTorch's, in less memory and time on a CPU.

PyTorch decides from 64 random bits, one element after the other. Loops that Numba compiles draw the
same bits many at a time. They remember what was kept in one byte for each element instead of four.
"""

import logging
from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

from macaron_fairseq.fast.replaceable import is_watched

logger = logging.getLogger(__name__)

# How `torch.get_rng_state` begins, and its size; the rest is of the normal distribution.
LAYOUT = np.dtype(
    [("seed", "u8"), ("left", "i4"), ("is_seeded", "i4"), ("next", "u8"), ("words", "u8", 624)]
)
SIZE = 5056


class Dropout(FairseqDropout):
    """fairseq's dropout: the same options, values, gradients and use of the random generator."""

    @classmethod
    def of(cls, dropout: FairseqDropout) -> "Dropout":
        """That dropout, under the name by which `--retain-dropout-modules` knows it."""
        return cls(dropout.p, dropout.module_name)

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Return x without the share p of its elements, the rest scaled by 1 / (1 - p)."""
        # Neither can look into the loops.
        is_seen = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        is_for_loops = x.device.type == "cpu" and not is_seen
        if 0 < self.share() < 1 and not inplace and is_for_loops and loops() is not None:
            return RememberedDropout.apply(x, self.p)
        return super().forward(x, inplace)

    def share(self) -> float:
        """The share of elements that it leaves out now."""
        return self.p if self.training or self.apply_during_inference else 0.0


def is_plain(dropout: Dropout) -> bool:
    """Whether it may be computed in another way: no hooks watch it, and no subclass differs."""
    return type(dropout) is Dropout and not is_watched(dropout)


class RememberedDropout(torch.autograd.Function):
    """PyTorch's dropout, which remembers in one byte for each element whether it was kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        """Draw, and leave out."""
        kept = torch.empty_like(x, dtype=torch.bool)
        draw(in_memory(kept), 1 - p)
        ctx.save_for_backward(kept)
        ctx.scale = torch.ones((), dtype=x.dtype).div_(1 - p).item()  # as PyTorch rounds it
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
    if x.dtype != torch.float32:
        return (x * kept).mul_(scale)
    y = torch.empty_like(kept, dtype=x.dtype)
    x = x if x.stride() == y.stride() else y.copy_(x)  # elements are taken as they are in memory
    vectors = (in_memory(tensor).numpy() for tensor in (x, kept, y))
    loops().drop(*vectors, np.float32(scale))
    return y


def in_memory(x: Tensor) -> Tensor:
    """The elements of a dense tensor in the order in which they are stored, as PyTorch draws."""
    return x.as_strided((x.numel(),), (1,))


def draw(kept: Tensor, probability: float) -> None:
    """Fill a bool vector as `bernoulli_` does, with True of that probability.

    PyTorch divides 53 of 64 random bits by 2^53 and compares. Here the probability is multiplied.
    """
    draw_by(loops().draw_kept, kept.numpy(), ceil(probability * 2**53))


def draw_by(loop: Callable[..., int], *args: Any) -> None:
    """Run a loop that draws from PyTorch's default generator, a Mersenne Twister.

    No other thread may draw meanwhile, or both would draw the same numbers. fairseq's own do not,
    but for denoising's with `--num-workers 0` (docs/limits.md).

    Args:
        loop: called with the 624 words of the state, how many of them are still to be used, and
            `args`; it changes the words and returns how many are left then.
        args: what else the loop takes.
    """
    state = torch.get_rng_state()
    fields: Any = state.numpy()[: LAYOUT.itemsize].view(LAYOUT)[0]
    words = fields["words"].astype(np.uint32)
    left = loop(words, int(fields["left"]) - 1, *args)  # PyTorch counts the next renewal too
    fields["words"], fields["left"], fields["next"] = words, left + 1, len(words) - left
    torch.set_rng_state(state)


# --- whether the loops can be used ---------------------------------------------------------------


@cache
def loops() -> Any:
    """The compiled loops, or None where PyTorch is to draw; the log then says why, once."""
    try:
        from macaron_fairseq.fast import dropout_loops

        if draws_as_pytorch(dropout_loops):
            return dropout_loops
        reason = "this PyTorch draws other numbers"
    except ImportError as error:
        reason = f"{error}: pip install numba"
    except Exception as error:  # whatever a compiler raises, as without a folder for its results
        reason = (
            f"Numba cannot compile its loops, {type(error).__name__}: {error}; if it lacks a "
            "folder for them, set NUMBA_CACHE_DIR to one"
        )
    logger.info("dropout is PyTorch's, which takes more time and memory (%s)", reason)
    return None


def draws_as_pytorch(loops: Any) -> bool:
    """Whether the loops draw what PyTorch draws, which differs between builds and processors."""
    state = torch.get_rng_state()
    if len(state) != SIZE:
        return False
    results = []
    probability = 0.7
    try:
        for by_loop in (False, True):
            torch.set_rng_state(state)
            drawn = torch.empty(700, dtype=torch.bool)  # the state is renewed within
            if by_loop:
                draw_by(loops.draw_kept, drawn.numpy(), ceil(probability * 2**53))
            else:
                drawn.copy_(torch.empty(700).bernoulli_(probability))
            results.append((drawn, torch.get_rng_state()))
    finally:
        torch.set_rng_state(state)
    one = np.ones(1, np.float32)
    loops.drop(one, one > 0, one, np.float32(1))  # compiled now, not in the first update
    return all(map(torch.equal, *results))
