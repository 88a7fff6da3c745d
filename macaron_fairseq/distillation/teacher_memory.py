"""What teachers said of each batch, so that they are not asked again in the next epoch.

Teachers neither learn nor have dropout. fairseq makes the batches once, and each epoch has them in
another order. `student_criterion.warn_of_new_batches` is for where it makes others.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from macaron_fairseq.distillation.layers import Place, States

Key = tuple[int, bytes]  # a teacher's number, and what stands for a batch

GIBIBYTE = 2**30

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What a teacher's pass over a batch found, as far as a loss asks for it."""

    output: Tensor | None = None  # features, or logits where a projection is not plain
    states: States = field(default_factory=dict)
    weights: dict[Place, Tensor] = field(default_factory=dict)  # of its tokens, (batch, length)

    def nbytes(self) -> int:
        """How many bytes it holds; a last state that is also the output counts once."""
        own = [] if self.output is None else [self.output]
        found = [*own, *self.states.values(), *self.weights.values()]
        return sum({place_in_memory(x): x.nbytes for x in found}.values())

    def to(self, device: torch.device | str, copy: bool = False) -> "Answer":
        """The same on a device; a copy if it is there already and one is asked for."""
        moved: dict[Any, Tensor] = {}

        def move(x: Tensor) -> Tensor:
            if (own := place_in_memory(x)) not in moved:
                moved[own] = x.to(device, copy=copy)
            return moved[own]

        output = None if self.output is None else move(self.output)
        states, weights = (
            {place: move(x) for place, x in of.items()} for of in (self.states, self.weights)
        )
        return Answer(output, states, weights)


class Memory:
    """What was found, in the computer's own memory whatever the device is.

    Nothing is forgotten: once it is full, teachers are asked about new batches each time.
    """

    def __init__(self, gibibytes: float) -> None:
        """Begin with nothing, and room for so much."""
        self.room = gibibytes * GIBIBYTE
        self.batches: dict[Key, Answer] = {}

    @property
    def is_full(self) -> bool:
        """Whether something did not fit."""
        return self.room < 0

    def recall(
        self, teacher: int, inputs: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], Answer]
    ) -> Answer:
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
        return self.batches[key].to(inputs["src_tokens"].device)

    def keep(self, key: Key, found: Answer) -> None:
        """Remember what was found, or say that it does not fit."""
        self.room -= found.nbytes()
        if self.is_full:
            logger.info(
                "--teacher-memory is full with %d batches: teachers are asked about others each "
                "time",
                len(self.batches),
            )
        else:
            self.batches[key] = found.to("cpu", copy=True)


def place_in_memory(x: Tensor) -> tuple[Any, ...]:
    """What two tensors have in common that are one."""
    return x.data_ptr(), x.shape, x.stride()


def digest(inputs: Mapping[str, Any]) -> bytes:
    """What stands for the tokens of a batch."""
    found = blake2b(digest_size=16)
    for name, x in sorted(inputs.items()):
        if torch.is_tensor(x):
            found.update(f"{name} {tuple(x.shape)} ".encode())
            found.update(x.cpu().numpy().tobytes())
    return found.digest()
