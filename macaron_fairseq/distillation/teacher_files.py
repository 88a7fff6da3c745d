"""Load the checkpoints of teachers. `teacher_fit` refuses what does not go with a student.

Import `macaron_fairseq.plugin` first, which makes fairseq know the models. This module takes a
second to import, so criteria do so only where there is a teacher.
"""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation import teacher_fit
from macaron_fairseq.distillation.layers import DECODER, ENCODER
from macaron_fairseq.distillation.teacher_memory import Memory
from macaron_fairseq.distillation.teachers import Teachers
from macaron_fairseq.evaluation.training import training_data
from macaron_fairseq.model.loading import load_dictionary, load_models
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import CODES
from macaron_fairseq.text.tokenization import bpe


def load(path: str, task: Any, precision: str = "fp32", memory: float = 0.0) -> Teachers:
    """Load the teachers of a student that learns a task with the same dictionaries.

    Args:
        path: checkpoints, with ":" between them.
        task: the student's, with its dictionaries.
        precision: a key of `PRECISIONS`.
        memory: GiB for what they say, see `Memory`; 0 for none.

    Raises:
        UserError: if a file is missing or bad, or the task is another than translation and language
            modeling. Or if a teacher is of another kind than the student, takes shorter texts, or
            was trained with other dictionaries or in another direction.
    """
    if teacher_fit.kind_of(task) is None:
        raise not_for("--teacher", task)
    names = path.split(os.pathsep)
    for name in names:
        refuse_missing(name)
        teacher_fit.refuse_other_training(Path(name), task)
    # Building a model sets fairseq's task up to translate with it: the student's must not be.
    models = load_models(path, copy.copy(task))
    for name, model in zip(names, models, strict=True):
        teacher_fit.refuse_fewer_positions(name, model, task)
    return Teachers(models, precision, Memory(memory) if memory else None, names)


def load_across(
    path: str, folder: str, task: Any, precision: str = "fp32", memory: float = 0.0
) -> tuple[Teachers, dict[str, tuple[Dictionary, Dictionary]], Callable[[str], str]]:
    """Load a teacher with a vocabulary that is not the student's.

    Args:
        path: its checkpoint.
        folder: its data folder, with `preprocessing.json`, `code` and data-bin.
        task: the student's.
        precision: a key of `PRECISIONS`.
        memory: as in `load`.

    Returns:
        The teacher, the student's and its dictionary for each side of the models, and its BPE.

    Raises:
        UserError: if a file is missing or bad, there are several teachers, or the teacher is of
            another kind, or has another direction, languages or steps before BPE than the student.
    """
    if os.pathsep in path and not Path(path).exists():
        raise UserError(f"--teacher {path}: across vocabularies there is one teacher, not several")
    refuse_missing(path)
    teacher_fit.refuse_other_kind(path, task)
    settings = training_data.settings(Path(path))
    teacher_fit.refuse_other_direction(path, settings, task)
    data = data_folder.read(Path(folder))
    teacher_fit.refuse_other_text(data, task)
    theirs = copy.copy(task)
    sides = dictionaries_of(task)
    if isinstance(task, TranslationTask):
        names = [data.dictionary(x) for x in (task.cfg.source_lang, task.cfg.target_lang)]
        found = [*map(load_dictionary, names)]
        theirs.src_dict, theirs.tgt_dict = found
    else:
        name = data.path / "data-bin" / "dict.txt"
        if not name.is_file():
            raise UserError(f"{name} is missing: --teacher-data {folder} is not a language model's")
        names, found = [name], [load_dictionary(name)]
        theirs.dictionary = theirs.output_dictionary = found[0]
    by_name = {path.name: one for path, one in zip(names, found, strict=True)}
    teacher_fit.refuse_other_folder(Path(path), settings, data, by_name)
    if not (data.path / CODES).exists() and CODES not in data.sha256:
        raise UserError(
            f"--teacher-data {folder} has no {CODES}, the merges of subword-nmt: across "
            "vocabularies the teacher has to be cut by these, and not by SentencePiece"
        )
    segment = bpe(data.path / CODES)
    kept = Memory(memory) if memory else None
    teachers = Teachers(load_models(path, theirs), precision, kept, [path])
    pairs = zip(sides.items(), found, strict=True)
    return teachers, {side: (ours, other) for (side, ours), other in pairs}, segment


def dictionaries_of(task: Any) -> dict[str, Dictionary]:
    """What each side of a task's models reads.

    Raises:
        UserError: if it is another task than translation and language modeling.
    """
    if isinstance(task, TranslationTask):
        return {ENCODER: task.source_dictionary, DECODER: task.target_dictionary}
    if isinstance(task, LanguageModelingTask):
        return {DECODER: task.source_dictionary}
    raise not_for("--teacher-data", task)


def not_for(flag: str, task: Any) -> UserError:
    """What is said of a flag where a task is not known here."""
    return UserError(
        f"{flag} is for translation and language_modeling, not for a task of the kind "
        f"{type(task).__name__}"
    )


def refuse_missing(path: str) -> None:
    """Raise a `UserError` if there is no such teacher."""
    if not Path(path).exists():
        raise UserError(
            f"--teacher {path}: no such checkpoint; give the path where the teacher is now, or "
            "--distill-weight 0 without --trajectory-weight, which needs none (fairseq-validate: "
            "--model-overrides \"{'distill_weight': 0, 'trajectory_weight': 0}\")"
        )
