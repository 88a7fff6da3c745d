"""Dropout that leaves out what PyTorch's leaves out, and decides so in half the time on a CPU."""

from functools import cache
from math import ceil

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

# Random numbers drawn at a time: as many as a core's cache holds.
BLOCK = 2**16


class Dropout(FairseqDropout):
    """fairseq's dropout: the same options, values, gradients and use of the random generator.

    PyTorch decides from 64 random bits, one element at a time; here bits are drawn, and compared
    on all cores, in blocks.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Return x without the share p of its elements, the rest scaled by 1 / (1 - p)."""
        is_on = self.p > 0 and (self.training or self.apply_during_inference)
        if is_on and not inplace and x.device.type == "cpu" and draws_are_known():
            return x * noise(x, self.p)
        return super().forward(x, inplace)


def noise(x: Tensor, p: float) -> Tensor:
    """What dropout multiplies x with: 0 with probability p, else 1 / (1 - p)."""
    drawn = torch.empty(x.shape, dtype=x.dtype)
    draw(drawn.view(-1), 1 - p)
    return drawn.div_(1 - p)


def draw(drawn: Tensor, probability: float) -> None:
    """Fill a vector with ones, of that probability, and zeros: `bernoulli_`'s, number by number.

    PyTorch divides 53 of 64 random bits by 2^53 and compares; here the probability is multiplied.
    """
    bits = torch.empty(min(BLOCK, len(drawn)), dtype=torch.int64)
    threshold = ceil(probability * 2**53)
    for start in range(0, len(drawn), BLOCK):
        block = bits[: len(drawn) - start]
        block.random_(-(2**63), None).bitwise_and_(2**53 - 1)
        torch.lt(block, threshold, out=drawn[start : start + BLOCK])


@cache
def draws_are_known() -> bool:
    """Whether this PyTorch draws as `draw` does; builds differ, as do makers of processors."""
    state = torch.get_rng_state()
    try:
        theirs = torch.empty(64).bernoulli_(0.7)
        after_theirs = torch.get_rng_state()
        torch.set_rng_state(state)
        draw(ours := torch.empty(64), 0.7)
        return torch.equal(theirs, ours) and torch.equal(after_theirs, torch.get_rng_state())
    finally:
        torch.set_rng_state(state)
