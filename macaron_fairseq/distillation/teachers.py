"""Trained models that teach: how they are run. `teacher_files` loads them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

NOT_FINITE = (
    "the teacher's output holds NaN or infinity: try --teacher-precision fp32, or another "
    "checkpoint of it"
)
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Teachers:
    """Models in evaluation mode, with frozen parameters each in its own precision.

    This is no module: a criterion that has it neither saves the models nor moves nor trains them.
    """

    def __init__(self, models: Sequence[nn.Module], precision: str = "fp32") -> None:
        self.models = list(models)
        self.dtype = PRECISIONS[precision]
        self.device: torch.device | None = None

    def answers(self, sample: Mapping[str, Any], **options: Any) -> Iterator[tuple[Any, Any]]:
        """Each model, and its output for a batch of the student's; without gradients.

        Args:
            sample: a batch, as fairseq's tasks make it.
            options: further arguments of the models, such as `features_only`.
        """
        device = next(x.device for x in sample["net_input"].values() if torch.is_tensor(x))
        if device != self.device:
            for model in self.models:
                model.eval().requires_grad_(False).to(device=device, dtype=self.dtype)
            self.device = device
        for model in self.models:
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                yield model, model(**sample["net_input"], **options)
