"""Trained models that teach: load them, refuse what does not go with the student, run them.

Import `macaron_fairseq.plugin` first, which makes fairseq know the models.
"""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import nn

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.evaluation import manifest
from macaron_fairseq.translation.fairseq_engine import load_dictionary, load_models

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


def load(path: str, task: Any, precision: str = "fp32") -> Teachers:
    """Load the teachers of a student that learns a task.

    Args:
        path: checkpoints, with ":" between them.
        task: the student's, with its dictionaries.
        precision: a key of `PRECISIONS`; in half precision only a GPU computes.

    Raises:
        UserError: if a file is missing or bad, or if a teacher was trained with other dictionaries
            or in another direction than the student.
    """
    paths = path.split(os.pathsep)
    for name in paths:
        if not Path(name).exists():
            raise UserError(
                f"--teacher {name}: no such checkpoint; give the path where the teacher is now, or "
                "--distill-weight 0 without --trajectory-weight, which needs none"
            )
        refuse_other_training(Path(name), task)
    # Building a model sets fairseq's task up to translate with it: the student's must not be.
    return Teachers(load_models(path, copy.copy(task)), precision)


def refuse_other_training(path: Path, task: Any) -> None:
    """Raise a `UserError` if a teacher translates in another direction or with other dictionaries.

    The sizes of its embeddings are checked when it is loaded. Here is what tells of the types
    themselves: the manifest.json of its run, and the data folder that it names, if that is there.
    """
    state = checkpoints.load(path)
    settings = (state.get("cfg") or {}).get("task") or state.get("args") or {}
    settings = settings if isinstance(settings, Mapping) else vars(settings)
    own = getattr(task, "cfg", None) or getattr(task, "args", None)
    directions = [
        tuple(find(f"{side}_lang") for side in ("source", "target"))
        for find in (settings.get, lambda name: getattr(own, name, None))
    ]
    if all(all(direction) for direction in directions) and directions[0] != directions[1]:
        theirs, ours = (" to ".join(map(str, direction)) for direction in directions)
        raise UserError(
            f"--teacher {path} translates from {theirs}, the student from {ours}: give a teacher "
            "of the same direction"
        )
    folder = Path(str(settings.get("data") or "").partition(os.pathsep)[0])
    student_folder = Path(str(getattr(own, "data", None) or "").partition(os.pathsep)[0])
    hashes = manifest.data_hashes(path)
    for name, dictionary in dictionaries(task, directions[1]).items():
        known, own_file, their_file = hashes.get(name), student_folder / name, folder / name
        is_other = known and own_file.is_file() and known != files.sha256(own_file)
        if not is_other and folder.is_absolute() and their_file.is_file():
            is_other = load_dictionary(their_file).symbols != dictionary.symbols
        if is_other:
            raise UserError(
                f"--teacher {path} was trained with another {name} than the student's: train the "
                "student on data that fairseq-preprocess made with the teacher's dictionaries "
                "(--srcdict, --tgtdict)"
            )


def dictionaries(task: Any, direction: tuple[Any, ...]) -> dict[str, Dictionary]:
    """The dictionaries of a task, by the names of their files."""
    if not all(direction):
        return {"dict.txt": task.source_dictionary}
    sides = task.source_dictionary, task.target_dictionary
    return {f"dict.{name}.txt": side for name, side in zip(direction, sides, strict=True)}
