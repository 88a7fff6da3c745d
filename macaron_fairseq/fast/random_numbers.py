"""PyTorch's random numbers on a CPU, for loops that draw them themselves."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

# How `torch.get_rng_state` begins, and its size; the rest is of the normal distribution.
LAYOUT = np.dtype(
    [("seed", "u8"), ("left", "i4"), ("is_seeded", "i4"), ("next", "u8"), ("words", "u8", 624)]
)
SIZE = 5056


@cache
def is_known() -> bool:
    """Whether this PyTorch's state is such a one."""
    return len(torch.get_rng_state()) == SIZE


def draw(loop: Callable[..., int], *args: Any) -> None:
    """Run a loop that draws from PyTorch's default generator, a Mersenne Twister.

    No other thread may draw meanwhile, as none does in fairseq.

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
