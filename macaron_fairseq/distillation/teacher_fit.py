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
from macaron_fairseq.text.data_folder import CODES, DataFolder

logger = logging.getLogger(__name__)

STUDENT = "the student"
# What a task's models are, by the sides that they have.
SIDES_IN_WORDS = {
    (ENCODER, DECODER): "a translation model (encoder and decoder)",
    (DECODER,): "a language model (a decoder alone)",
    (ENCODER,): "an encoder alone",
}
ACROSS = (
    "or learn across vocabularies, with --criterion "
    "cross_vocabulary_label_smoothed_cross_entropy --teacher-data FOLDER"
)


def kind_of(task: Any) -> tuple[str, ...] | None:
    """The sides that a task's models have; None of a task that is not known here."""
    if isinstance(task, TranslationTask):
        return ENCODER, DECODER
    return (DECODER,) if isinstance(task, LanguageModelingTask) else None


def refuse_other_kind(path: str, task: Any, data: str = "") -> None:
    """Raise a `UserError` if a teacher has other sides, encoder or decoder, than the student.

    `data` is as in `refuse_other_training`.
    """
    names = checkpoints.load(Path(path))["model"]
    theirs = tuple(x for x in SIDES if any(name.startswith(f"{x}.") for name in names))
    ours = kind_of(task)
    if ours and theirs and theirs != ours:
        other = f"{data} is for" if data else f"{STUDENT} is"
        raise UserError(
            f"--teacher {path} is {SIDES_IN_WORDS[theirs]}, but {other} {SIDES_IN_WORDS[ours]}: "
            "give a teacher of that kind"
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


def refuse_other_training(path: Path, task: Any, data: str = "") -> None:
    """Raise a `UserError` if a teacher has another kind, direction or dictionaries than a task.

    Args:
        path: its checkpoint.
        task: with the dictionaries.
        data: the option that names the task's data, where no student learns it.
    """
    refuse_other_kind(str(path), task, data)
    settings = training_data.settings(path)
    refuse_other_direction(str(path), settings, task, data)
    refuse_other_dictionaries(path, settings, task, data)


def direction_of(task: Any) -> tuple[Any, Any]:
    """The languages that the student's task translates from and to; None in a language model."""
    own = arguments.of_task(task)
    return getattr(own, "source_lang", None), getattr(own, "target_lang", None)


def data_of(task: Any) -> Path:
    """The folder with the student's binarised data; the first, if there are several."""
    data = getattr(arguments.of_task(task), "data", None) or ""
    return Path(str(data).partition(os.pathsep)[0])


def refuse_other_direction(
    path: str, settings: Mapping[str, Any], task: Any, data: str = ""
) -> None:
    """Raise a `UserError` if a teacher translates in another direction than the student.

    Where nothing tells the teacher's, the log says so. `data` is as in `refuse_other_training`.
    """
    theirs, ours = training_data.direction(Path(path), settings), direction_of(task)
    if all(ours) and not all(theirs):
        logger.warning("--teacher %s: nothing tells its direction, which was not compared", path)
    elif all(ours) and theirs != ours:
        raise UserError(
            f"--teacher {path} translates from {theirs[0]} to {theirs[1]}, {data or STUDENT} from "
            f"{ours[0]} to {ours[1]}: give a teacher of the same direction"
        )


def refuse_other_dictionaries(
    path: Path, settings: Mapping[str, Any], task: Any, data: str = ""
) -> None:
    """Raise a `UserError` if a teacher was trained with other dictionaries than the student's.

    The sizes of its embeddings tell so, and the manifest.json of its run. Without that it is the
    data folder that the checkpoint names. Where that is not there either, the log says so. `data`
    is as in `refuse_other_training`.
    """
    # Those of a student with --merge-src-tgt-embed were merged when it was built.
    sizes = len(task.source_dictionary), len(task.target_dictionary)
    try:
        weights = checkpoints.load(path)["model"]
        checkpoint_sizes.refuse_other_dictionaries(str(path), weights, *sizes)
    except UserError as error:
        raise UserError(str(error) if data else f"{error}, {ACROSS}") from error
    way_out = "give the data that it was trained with"
    if not data:
        way_out = (
            "train the student on data that fairseq-preprocess made with the teacher's "
            f"dictionaries (--srcdict, --tgtdict), {ACROSS}"
        )
    for name, dictionary in dictionaries(task).items():
        if is_as_trained(path, settings, data_of(task) / name, dictionary) is False:
            raise UserError(
                f"--teacher {path} was trained with another {name} than {data or STUDENT} has: "
                + way_out
            )


def refuse_other_folder(
    path: Path,
    settings: Mapping[str, Any],
    data: DataFolder,
    dictionaries: Mapping[str, Dictionary],
) -> None:
    """Raise a `UserError` if a teacher was trained with other merges or dictionaries than these.

    As in `refuse_other_dictionaries`. Of the merges only a manifest.json tells.

    Args:
        path: its checkpoint.
        settings: what that says of its task.
        data: the folder that is said to be the teacher's.
        dictionaries: of its data-bin, by name.
    """
    hashes = manifest.data_hashes(path)
    data.refuse_changed(hashes, f"the manifest.json of {path} says")
    folder, own = training_data.folder(settings), data.path / "data-bin"
    for name, dictionary in dictionaries.items():
        if is_as_trained(path, settings, own / name, dictionary) is False:
            raise UserError(
                f"--teacher {path} was trained with another {name} than --teacher-data {data.path} "
                "has: give the data folder that it was trained with"
            )
    if CODES not in hashes and (folder is None or folder.resolve() != own.resolve()):
        logger.warning("--teacher %s: nothing tells its BPE merges, which were not compared", path)


def is_as_trained(
    path: Path, settings: Mapping[str, Any], file: Path, dictionary: Dictionary
) -> bool | None:
    """Whether a teacher was trained with a dictionary; None where nothing tells, as the log says.

    Args:
        path: its checkpoint.
        settings: what that says of its task.
        file: where the dictionary lies, if it is there.
        dictionary: what is compared otherwise.
    """
    known, folder = manifest.data_hashes(path).get(file.name), training_data.folder(settings)
    if known and file.is_file():
        return known == files.sha256(file)
    if folder and (folder / file.name).is_file():
        own = load_dictionary(file) if file.is_file() else dictionary
        return load_dictionary(folder / file.name).symbols == own.symbols
    logger.warning(
        "--teacher %s: nothing tells its %s, so only its size was compared", path, file.name
    )
    return None


def refuse_other_text(data: DataFolder, task: Any) -> None:
    """Raise a `UserError` if a teacher's text is not the student's before BPE.

    What is known of the student's is the preprocessing.json above its data. Without one, the log
    says that the steps were not compared.
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
        logger.warning(
            "nothing tells by which steps the student's text was prepared; they have to be those "
            "of --teacher-data %s",
            data.path,
        )
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
