"""What teachers said of each batch, so that they are not asked again in the next epoch.

Teachers neither learn nor have dropout. fairseq makes the batches once, and each epoch has them in
another order.
"""

import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

Place = tuple[Any, ...]  # a side of a model, and what of it
Found = dict[Place, Tensor]  # what a pass over a batch found; each of any shape
Key = tuple[int, bytes]  # a teacher's number, and what stands for a batch

GIBIBYTE = 2**30

logger = logging.getLogger(__name__)


class Memory:
    """What was found, in the computer's own memory whatever the device is.

    Nothing is forgotten: once it is full, teachers are asked about new batches each time.
    """

    def __init__(self, gibibytes: float) -> None:
        """Begin with nothing, and room for so much."""
        self.room = gibibytes * GIBIBYTE
        self.batches: dict[Key, Found] = {}

    @property
    def is_full(self) -> bool:
        """Whether something did not fit."""
        return self.room < 0

    def recall(
        self, teacher: int, inputs: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], Found]
    ) -> Found:
        """What `ask` says of a batch, which is asked if the batch is new.

        Args:
            teacher: its number.
            inputs: the "net_input" of the batch.
            ask: the teacher's pass over such inputs.
        """
        key = teacher, digest(inputs)
        if key not in self.batches:
            found = ask(inputs)
            if not self.is_full:
                self.keep(key, found)
            return found
        device = inputs["src_tokens"].device
        return {place: x.to(device) for place, x in self.batches[key].items()}

    def keep(self, key: Key, found: Found) -> None:
        """Remember what was found, or say that it does not fit."""
        self.room -= sum(x.nbytes for x in found.values())
        if self.is_full:
            logger.info(
                "--teacher-memory is full with %d batches: teachers are asked about others each "
                "time",
                len(self.batches),
            )
        else:
            self.batches[key] = {place: x.to("cpu", copy=True) for place, x in found.items()}


def digest(inputs: Mapping[str, Any]) -> bytes:
    """What stands for the tokens of a batch."""
    found = blake2b(digest_size=16)
    for name, x in sorted(inputs.items()):
        if torch.is_tensor(x):
            found.update(f"{name} {tuple(x.shape)} ".encode())
            found.update(x.cpu().numpy().tobytes())
    return found.digest()
