"""The state of PyTorch's random numbers on a CPU, for loops that draw them themselves."""

from types import TracebackType
from typing import Any

import numpy as np
import torch

# How `torch.get_rng_state` begins; what follows is of the normal distribution.
LAYOUT = np.dtype(
    [("seed", "u8"), ("left", "i4"), ("is_seeded", "i4"), ("next", "u8"), ("words", "u8", 624)]
)


class Generator:
    """PyTorch's default generator, a Mersenne Twister, taken over for as long as it is open.

    `words` are the 624 of its state; the last `left` of them are still to be used.
    """

    def __enter__(self) -> "Generator":
        self.state = torch.get_rng_state()
        self.fields: Any = self.state.numpy()[: LAYOUT.itemsize].view(LAYOUT)[0]
        self.words = self.fields["words"].astype(np.uint32)
        self.left = int(self.fields["left"]) - 1  # PyTorch counts the next renewal too
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.fields["words"] = self.words
            self.fields["left"] = self.left + 1
            self.fields["next"] = len(self.words) - self.left
            torch.set_rng_state(self.state)
