"""What fairseq's commands cannot do without, and miss with a traceback.

That is the data folder, its dictionaries and sets, the size of a batch, and what only the user can
say: the model, the task, the loss, the input. Each check can go when the tests named
`test_fairseq_...` in `tests/preflight/test_missing.py` fail.
"""

import logging
import os
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from fairseq.criterions import CRITERION_REGISTRY

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.preflight import command_line, labelled
from macaron_fairseq.preflight.command_line import CommandLine

logger = logging.getLogger(__name__)

# Where in a data folder the dictionary of a task lies.
DICTIONARIES = {
    "language_modeling": "dict.txt",
    "masked_lm": "dict.txt",
    "sentence_prediction": "input0/dict.txt",
}
TRANSLATION = "translation", "macaron_translation"  # other tasks may compute BLEU unasked
INDEX = re.compile(r"(\.[^.]+-[^.]+\.[^.]+)?\.idx$")  # what follows a set's name, as .de-en.de.idx


def refuse(line: CommandLine) -> None:
    """Refuse a command if something it needs is missing.

    The tasks that this package has models for are checked.

    Raises:
        UserError: naming what is missing, and what to give.
    """
    command, args, others = line.command, line.args, line.others
    # The first word that is neither a flag nor its value; after unknown flags nobody could tell.
    is_known = args.task in checkpoints.KIND_OF_TASK
    if not is_known or not others or others[0].startswith("-") or files.is_remote(others[0]):
        return
    folders = [Path(x) for x in others[0].split(os.pathsep)]
    folder = folders[0]
    for one in folders if command == "train" else folders[:1]:
        if not one.is_dir():
            raise UserError(f"there is no folder {one}: give the one that fairseq-preprocess wrote")
    refuse_without_dictionary(folder, args)
    sets = [*sets_of(command, args)]
    place = folder / Path(DICTIONARIES.get(args.task, "")).parent
    for flag, name in sets:
        refuse_without_set(place, flag, name)
    if command == "train" and args.task == "sentence_prediction":
        labelled.refuse_unfit(folder, [name for _, name in sets], args)
    is_asked = command in ("train", "validate")
    if is_asked and args.max_tokens is None and args.batch_size is None:
        raise UserError(
            "how large is a batch? Give --max-tokens, in tokens, or --batch-size, in sentences"
        )


def refuse_untold(line: CommandLine) -> None:
    """Refuse a command that is not told its model, task, loss or input.

    With fairseq's default of a loss, `cross_entropy`, the loss of masked tokens is divided by the
    number of all: a warning.

    Raises:
        UserError: naming what to give.
    """
    command, args = line.command, line.args
    if command != "train" and not args.path:
        raise UserError(f"fairseq-{command} needs a model: give --path FILE")
    if command == "validate" and not args.task:
        refuse_without_task(args)
    if command == "interactive":
        refuse_unreadable_input(args)
    if command != "train":
        return
    if args.task == "sentence_prediction" and args.criterion == "cross_entropy":
        raise UserError(f"--task {args.task} needs its own loss: give --criterion {args.task}")
    if args.task == "masked_lm" and args.criterion == "cross_entropy":
        logger.warning(
            "the loss is divided by all tokens, not by the masked ones: give --criterion masked_lm"
        )
    has_bleu = args.eval_bleu or args.disable_validation or args.task not in TRANSLATION
    if args.best_checkpoint_metric == "bleu" and not has_bleu:
        raise UserError("--best-checkpoint-metric bleu needs --eval-bleu, which computes it")
    in_training = {
        x for one in CRITERION_REGISTRY.values() for x in getattr(one, "logged_in_training", ())
    }
    if args.best_checkpoint_metric in in_training and not args.disable_validation:
        raise UserError(
            f"--best-checkpoint-metric {args.best_checkpoint_metric} is computed in training alone:"
            " give loss, or another that is validated"
        )
    has_accuracy = args.report_accuracy or args.disable_validation
    is_smoothed = "label_smoothed_cross_entropy" in (args.criterion or "")
    if args.best_checkpoint_metric == "accuracy" and is_smoothed and not has_accuracy:
        raise UserError("--best-checkpoint-metric accuracy needs --report-accuracy")


def refuse_without_task(args: Namespace) -> None:
    """Raise a `UserError` that names the task of fairseq-validate, which has no default."""
    path = next(command_line.to_decode_with(args, "validate"), None)
    trained = checkpoints.named(checkpoints.load(path), "task") if path else None
    raise UserError(f"fairseq-validate needs a task: give --task {trained or 'translation'}")


def refuse_unreadable_input(args: Namespace) -> None:
    """Raise a `UserError` if fairseq-interactive cannot read its input, or not in such batches."""
    path = Path(args.input)
    if args.input != "-" and (path.is_dir() or not path.exists()):
        what = "a folder, and not a file" if path.is_dir() else "no such file"
        raise UserError(f"--input {args.input}: {what}")
    if args.batch_size and args.batch_size > max(1, args.buffer_size):
        raise UserError(
            f"--batch-size {args.batch_size} needs as many lines at a time: give --buffer-size "
            f"{args.batch_size}"
        )


def refuse_without_dictionary(folder: Path, args: Namespace) -> None:
    """Raise a `UserError` if a dictionary is missing that the task reads."""
    if name := DICTIONARIES.get(args.task):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}, which --task {args.task} reads")
        return
    there = [x.name[len("dict.") : -len(".txt")] for x in sorted(folder.glob("dict.*.txt"))]
    advice = f"give -s and -t, of {' and '.join(there)}" if there else "give another folder"
    languages = args.source_lang, args.target_lang
    if None in languages:
        names = (file.name.split(".") for file in folder.iterdir())
        if not any(len(parts) >= 3 and parts[1].count("-") == 1 for parts in names):
            raise UserError(f"no file of {folder} names the pair of languages: {advice}")
        return
    for language in languages:
        if language not in there:
            raise UserError(f"{folder} has no dict.{language}.txt: {advice}")


def sets_of(command: str, args: Namespace) -> Iterator[tuple[str, str]]:
    """The flag and the name of each set that a command reads."""
    if command == "train":
        yield "--train-subset", args.train_subset
    if command == "validate" or (command == "train" and not args.disable_validation):
        yield from (("--valid-subset", name) for name in args.valid_subset.split(","))
    if command in ("generate", "eval-lm"):
        yield "--gen-subset", args.gen_subset  # one: fairseq splits --valid-subset alone


def refuse_without_set(folder: Path, flag: str, name: str) -> None:
    """Raise a `UserError` if the folder has no file of a set."""
    if not ((folder / name).exists() or any(folder.glob(f"{name}.*"))):
        there = sorted({INDEX.sub("", file.name) for file in folder.glob("*.idx")})
        raise UserError(
            f"{folder} has no set {name}, only {' and '.join(there)}: give another {flag}"
            if there
            else f"{folder} has no sets: give the folder that fairseq-preprocess wrote"
        )
