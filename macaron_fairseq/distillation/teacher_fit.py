"""Whether a teacher goes with a student: its kind, direction, dictionaries, text and positions."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import arguments, checkpoints
from macaron_fairseq.distillation.layers import DECODER, ENCODER, SIDES
from macaron_fairseq.evaluation.training import manifest, training_data
from macaron_fairseq.model import checkpoint_sizes
from macaron_fairseq.model.loading import load_dictionary
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import DataFolder

logger = logging.getLogger(__name__)

# What a task's models are, by the sides that they have.
SIDES_IN_WORDS = {
    (ENCODER, DECODER): "a translation model (encoder and decoder)",
    (DECODER,): "a language model (a decoder alone)",
    (ENCODER,): "an encoder alone",
}
WAY_OUT = (
    "or learn across vocabularies, with --criterion "
    "cross_vocabulary_label_smoothed_cross_entropy --teacher-data FOLDER"
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
            f"--teacher {path} is {SIDES_IN_WORDS[theirs]}, but the student is "
            f"{SIDES_IN_WORDS[ours]}: give a teacher of the student's kind"
        )


def longest_of(task: Any) -> dict[str, int]:
    """How many tokens a task's samples can have on each side, by the flags that say so."""
    own = arguments.of_task(task)
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


def direction_of(task: Any) -> tuple[Any, Any]:
    """The languages that the student's task translates from and to; None in a language model."""
    own = arguments.of_task(task)
    return getattr(own, "source_lang", None), getattr(own, "target_lang", None)


def data_of(task: Any) -> Path:
    """The folder with the student's binarised data; the first, if there are several."""
    data = getattr(arguments.of_task(task), "data", None) or ""
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
    # Those of a student with --merge-src-tgt-embed were merged when it was built.
    sizes = len(task.source_dictionary), len(task.target_dictionary)
    try:
        weights = checkpoints.load(path)["model"]
        checkpoint_sizes.refuse_other_dictionaries(str(path), weights, *sizes)
    except UserError as error:
        raise UserError(f"{error}, {way_out}") from error
    folder, hashes = training_data.folder(settings), manifest.data_hashes(path)
    for name, dictionary in dictionaries(task).items():
        known, own_file = hashes.get(name), data_of(task) / name
        if known and own_file.is_file():
            is_other = known != files.sha256(own_file)
        elif folder and (folder / name).is_file():
            own = load_dictionary(own_file) if own_file.is_file() else dictionary
            is_other = load_dictionary(folder / name).symbols != own.symbols
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
