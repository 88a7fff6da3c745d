"""Trained models that teach: how they are run. `teacher_files` loads them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from macaron_fairseq.common import files
from macaron_fairseq.distillation.teacher_memory import Answer, Memory

NOT_FINITE = (
    "the teacher's output holds NaN or infinity: try --teacher-precision fp32, or another "
    "checkpoint of it"
)
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Teachers:
    """Models in evaluation mode, with frozen parameters each in its own precision.

    This is no module: a criterion that has it neither saves the models nor moves nor trains them.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        precision: str,
        memory: Memory | None,
        paths: Sequence[str],
    ) -> None:
        """Take them.

        Args:
            models: they are frozen and moved once they are asked.
            precision: a key of `PRECISIONS`.
            memory: of what they say, if they are to have one.
            paths: of their files.
        """
        self.models = list(models)
        self.paths = list(paths)
        self.dtype = PRECISIONS[precision]
        self.memory = memory
        self.device: torch.device | None = None

    def sha256(self) -> str:
        """That of the first one's file, whose layers a student follows."""
        return files.sha256(Path(self.paths[0]))

    def answer(
        self,
        number: int,
        inputs: Mapping[str, Any],
        ask: Callable[[Any, Mapping[str, Any]], Answer],
    ) -> Answer:
        """What one of them says of a batch, without gradients.

        Args:
            number: which of `models`.
            inputs: the "net_input" of the batch, as fairseq's tasks make it.
            ask: makes a model's pass over such inputs.
        """
        device = inputs["src_tokens"].device
        if device != self.device:
            for model in self.models:
                model.eval().requires_grad_(False).to(device=device, dtype=self.dtype)
            self.device = device
        asked = partial(ask, self.models[number])
        with undisturbed(device):
            return self.memory.recall(number, inputs, asked) if self.memory else asked(inputs)


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Compute without gradients, and in a teacher's precision whatever the student's is."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield
