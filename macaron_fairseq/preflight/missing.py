"""What fairseq's commands cannot do without, and miss with a traceback.

That is the data folder, its dictionaries and sets, and in training the size of a batch. Each check
can go when the tests named `test_fairseq_...` in `tests/preflight/test_missing.py` fail.
"""

import re
from argparse import Namespace
from collections.abc import Iterator
from copy import copy
from pathlib import Path

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.preflight import command_line, labelled
from macaron_fairseq.preflight.command_line import CommandLine

# Where in a data folder the dictionary of a task lies.
DICTIONARIES = {
    "language_modeling": "dict.txt",
    "masked_lm": "dict.txt",
    "sentence_prediction": "input0/dict.txt",
}
INDEX = re.compile(r"(\.[^.]+-[^.]+\.[^.]+)?\.idx$")  # what follows a set's name, as .de-en.de.idx


def refuse(line: CommandLine) -> None:
    """Refuse a command if something it needs is missing.

    The tasks that this package has models for are checked.

    Raises:
        UserError: naming what is missing, and what to give.
    """
    command, args, others = line.command, copy(line.args), line.others
    if not args.task and (path := next(command_line.to_decode_with(args), None)):
        args.task = checkpoints.task_of(checkpoints.load(path))  # as fairseq-validate takes it
    # The first word that is neither a flag nor its value; after unknown flags nobody could tell.
    is_known = args.task in checkpoints.KIND_OF_TASK
    if not is_known or not others or others[0].startswith("-") or files.is_remote(others[0]):
        return
    folder = Path(others[0].split(":")[0])
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give the one that fairseq-preprocess wrote")
    refuse_without_dictionary(folder, args)
    sets = [*sets_of(command, args)]
    place = folder / Path(DICTIONARIES.get(args.task, "")).parent
    for flag, name in sets:
        refuse_without_set(place, flag, name)
    if command == "train" and args.task == "sentence_prediction":
        labelled.refuse_unfit(folder, [name for _, name in sets], args)
    if command == "train" and args.max_tokens is None and args.batch_size is None:
        raise UserError(
            "how large is a batch? Give --max-tokens, in tokens, or --batch-size, in sentences"
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
