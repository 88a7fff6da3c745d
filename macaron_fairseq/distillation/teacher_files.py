"""The files of teachers: load their checkpoints, and refuse what does not go with the student.

Import `macaron_fairseq.plugin` first, which makes fairseq know the models. This module takes a
second to import, so criteria do so only where there is a teacher.
"""

import copy
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.distillation.layers import DECODER, ENCODER, SIDES
from macaron_fairseq.distillation.memory import Memory
from macaron_fairseq.distillation.teachers import Teachers
from macaron_fairseq.evaluation.training import manifest
from macaron_fairseq.model import checkpoint_sizes
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import CODES, DataFolder
from macaron_fairseq.text.tokenization import bpe
from macaron_fairseq.translation import training_data
from macaron_fairseq.translation.fairseq_engine import load_dictionary, load_models

logger = logging.getLogger(__name__)

# What a task's models are, by the sides that they have.
KINDS = {
    (ENCODER, DECODER): "a translation model (encoder and decoder)",
    (DECODER,): "a language model (a decoder alone)",
    (ENCODER,): "an encoder alone",
}
WAY_OUT = (
    "or learn across vocabularies, with --criterion "
    "cross_vocabulary_label_smoothed_cross_entropy --teacher-data FOLDER"
)


def load(path: str, task: Any, precision: str = "fp32", memory: float = 0.0) -> Teachers:
    """Load the teachers of a student that learns a task with the same dictionaries.

    Args:
        path: checkpoints, with ":" between them.
        task: the student's, with its dictionaries.
        precision: a key of `PRECISIONS`; in half precision only a GPU computes.
        memory: GiB for what they say, see `Memory`; 0 for none.

    Raises:
        UserError: if a file is missing or bad, or the task is another than translation and language
            modeling. Or if a teacher is of another kind than the student, takes shorter texts, or
            was trained with other dictionaries or in another direction.
    """
    if kind_of(task) is None:
        raise not_for("--teacher", task)
    names = path.split(os.pathsep)
    for name in names:
        refuse_missing(name)
        refuse_other_training(Path(name), task)
    # Building a model sets fairseq's task up to translate with it: the student's must not be.
    models = load_models(path, copy.copy(task))
    for name, model in zip(names, models, strict=True):
        refuse_fewer_positions(name, model, task)
    return Teachers(models, precision, Memory(memory) if memory else None)


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
    refuse_other_kind(path, task)
    refuse_other_direction(path, training_data.settings(Path(path)), task)
    data = data_folder.read(Path(folder))
    refuse_other_text(data, task)
    data.refuse_changed(manifest.data_hashes(Path(path)), f"the manifest.json of {path} says")
    segment = bpe(data.path / CODES)
    theirs = copy.copy(task)
    sides = dictionaries_of(task)
    if isinstance(task, TranslationTask):
        languages = task.cfg.source_lang, task.cfg.target_lang
        found = [load_dictionary(data.dictionary(language)) for language in languages]
        theirs.src_dict, theirs.tgt_dict = found
    else:
        name = data.path / "data-bin" / "dict.txt"
        if not name.is_file():
            raise UserError(f"{name} is missing: --teacher-data {folder} is not a language model's")
        found = [load_dictionary(name)]
        theirs.dictionary = theirs.output_dictionary = found[0]
    kept = Memory(memory) if memory else None
    teachers = Teachers(load_models(path, theirs), precision, kept)
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


def kind_of(task: Any) -> tuple[str, ...] | None:
    """The sides that a task's models have; None of a task that is not known here."""
    if isinstance(task, TranslationTask):
        return ENCODER, DECODER
    return (DECODER,) if isinstance(task, LanguageModelingTask) else None


def refuse_other_kind(path: str, task: Any) -> None:
    """Raise a `UserError` if a teacher has other sides, encoder or decoder, than the student."""
    names = checkpoints.load(Path(path))["model"]
    theirs = tuple(x for x in SIDES if any(name.startswith(f"{x}.") for name in names))
    ours = kind_of(task)
    if ours and theirs and theirs != ours:
        raise UserError(
            f"--teacher {path} is {KINDS[theirs]}, but the student is {KINDS[ours]}: give a "
            "teacher of the student's kind"
        )


def longest_of(task: Any) -> dict[str, int]:
    """How many tokens a task's samples can have on each side, by the flags that say so."""
    own = settings_of(task)
    if isinstance(task, TranslationTask):
        flags = "--max-source-positions", "--max-target-positions"
        return dict(zip(flags, task.max_positions(), strict=True))
    if not isinstance(task, LanguageModelingTask):
        return {}
    positions = getattr(own, "max_target_positions", None)
    if positions is None or getattr(own, "sample_break_mode", None) in (None, "none"):
        return {"--tokens-per-sample": own.tokens_per_sample}
    return {"--max-target-positions": positions}  # a line can be longer than a sample


def refuse_fewer_positions(path: str, model: Any, task: Any) -> None:
    """Raise a `UserError` if a teacher cannot read all that the student's task lets through.

    Learned positions end there, in the middle of a training.
    """
    theirs = model.max_positions()
    limits = theirs if isinstance(theirs, tuple) else (theirs,)
    for (flag, ours), limit in zip(longest_of(task).items(), limits, strict=False):
        if limit is not None and limit < ours:
            raise UserError(
                f"--teacher {path} reads {limit} tokens at most, but the student's samples may "
                f"have {ours}: give {flag} {limit}, or another teacher"
            )


def refuse_other_training(path: Path, task: Any, way_out: str = WAY_OUT) -> None:
    """Raise a `UserError` if a teacher has another kind, direction or dictionaries than a task.

    Args:
        path: its checkpoint.
        task: with the dictionaries.
        way_out: what the sentence on other dictionaries ends with.
    """
    refuse_other_kind(str(path), task)
    settings = training_data.settings(path)
    refuse_other_direction(str(path), settings, task)
    refuse_other_dictionaries(path, settings, task, way_out)


def settings_of(task: Any) -> Any:
    """fairseq's options of a task."""
    return getattr(task, "cfg", None) or getattr(task, "args", None)


def direction_of(task: Any) -> tuple[Any, Any]:
    """The languages that the student's task translates from and to; None in a language model."""
    own = settings_of(task)
    return getattr(own, "source_lang", None), getattr(own, "target_lang", None)


def data_of(task: Any) -> Path:
    """The folder with the student's binarised data; the first, if there are several."""
    data = getattr(settings_of(task), "data", None) or ""
    return Path(str(data).partition(os.pathsep)[0])


def refuse_other_direction(path: str, settings: Mapping[str, Any], task: Any) -> None:
    """Raise a `UserError` if a teacher translates in another direction than the student.

    Where nothing tells the teacher's, the log says so.
    """
    theirs, ours = training_data.direction(Path(path), settings), direction_of(task)
    if all(ours) and not all(theirs):
        logger.warning("--teacher %s: nothing tells its direction, which was not compared", path)
    elif all(ours) and theirs != ours:
        raise UserError(
            f"--teacher {path} translates from {theirs[0]} to {theirs[1]}, the student from "
            f"{ours[0]} to {ours[1]}: give a teacher of the same direction"
        )


def refuse_other_dictionaries(
    path: Path, settings: Mapping[str, Any], task: Any, way_out: str
) -> None:
    """Raise a `UserError` if a teacher was trained with other dictionaries than the student's.

    The sizes of its embeddings tell so, and the manifest.json of its run. Without that it is the
    data folder that the checkpoint names. Where that is not there either, the log says so.
    """
    state = checkpoints.load(path)
    if not checkpoints.model_arguments(state).get("merge_src_tgt_embed"):
        sizes = len(task.source_dictionary), len(task.target_dictionary)
        try:
            checkpoint_sizes.refuse_other_dictionaries(str(path), state["model"], *sizes)
        except UserError as error:
            raise UserError(f"{error}, {way_out}") from error
    folder, hashes = training_data.folder(settings), manifest.data_hashes(path)
    for name, dictionary in dictionaries(task).items():
        known, own_file = hashes.get(name), data_of(task) / name
        if known and own_file.is_file():
            is_other = known != files.sha256(own_file)
        elif folder and (folder / name).is_file():
            is_other = load_dictionary(folder / name).symbols != dictionary.symbols
        else:
            logger.warning(
                "--teacher %s: nothing tells its %s, so only its size was compared", path, name
            )
            continue
        if is_other:
            raise UserError(
                f"--teacher {path} was trained with another {name} than the student's: train the "
                "student on data that fairseq-preprocess made with the teacher's dictionaries "
                f"(--srcdict, --tgtdict), {way_out}"
            )


def refuse_other_text(data: DataFolder, task: Any) -> None:
    """Raise a `UserError` if a teacher's text is not the student's before BPE.

    What is known of the student's is the preprocessing.json above its data; without one, its words
    are taken for such as the teacher knows.
    """
    languages = direction_of(task)
    if all(languages) and set(languages) != {data.source, data.target}:
        raise UserError(
            f"--teacher-data {data.path} is of {data.source} and {data.target}, but the student "
            f"translates from {languages[0]} to {languages[1]}: give the data folder of a teacher "
            "of these languages"
        )
    above = data_of(task).resolve().parent
    if not (above / data_folder.NAME).is_file():
        return
    own = data_folder.read(above)
    if not all(languages) and own.source != data.source:
        raise UserError(
            f"--teacher-data {data.path} is of {data.source}, but the student's text is of "
            f"{own.source}: give the data folder of a teacher of that language"
        )
    for language in filter(None, languages if all(languages) else (own.source,)):
        ours, theirs = (x.steps(language) for x in (own, data))
        if ours != theirs:
            raise UserError(
                f"--teacher-data {data.path} was prepared by {', '.join(theirs) or 'no steps'}, "
                f"and the student's text by {', '.join(ours) or 'no steps'}: prepare both by the "
                "same steps, since only BPE and dictionary may differ"
            )


def dictionaries(task: Any) -> dict[str, Dictionary]:
    """The dictionaries of a task, by the names of their files."""
    languages = direction_of(task)
    if not all(languages):
        return {"dict.txt": task.source_dictionary}
    sides = task.source_dictionary, task.target_dictionary
    return {f"dict.{name}.txt": side for name, side in zip(languages, sides, strict=True)}
