"""Sentences whose labels fairseq-train could not learn: it ends in a traceback, sometimes late.

Each check can go when its part of `test_fairseq_does_not_check_labels` fails, which is in
`tests/preflight/test_labelled.py`.
"""

from argparse import Namespace
from collections.abc import Collection
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from macaron_fairseq.common import text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted
from macaron_fairseq.preflight import binarised

SPECIAL = Dictionary()  # its symbols come before the labels


def refuse_unfit(folder: Path, sets: Collection[str], args: Namespace) -> None:
    """Check what `--task sentence_prediction` is to learn.

    Args:
        folder: holds `input0`, for pairs `input1`, and `label`.
        sets: the names of those that are read, which `input0` has.
        args: of a `CommandLine`.

    Raises:
        UserError: naming what does not fit, and what to give.
    """
    label = folder / "label"
    if args.num_classes < 1:
        raise UserError("how many labels are there? Give --num-classes; a regression has 1")
    if not args.regression_target and not (label / "dict.txt").is_file():
        raise UserError(
            f"there is no {label}/dict.txt: binarise the labels by fairseq-preprocess "
            f"--only-source --destdir {label}"
        )
    binarised.refuse_truncated(folder, sets)  # before they are opened
    for name in sets:
        counts = {}
        for text in ("input0", "input1"):
            if binarised.is_binarised(folder / text / name):
                counts[text] = len(MMapIndexedDataset(str(folder / text / name)))
        if args.regression_target:
            counts["label"] = count_of_numbers(label / f"{name}.label", args.num_classes)
        else:
            counts["label"] = count_of_classes(label / name, args.num_classes)
        if len({*counts.values()}) > 1:
            said = ", ".join(f"{x} {count}" for x, count in counts.items())
            raise UserError(
                f"the set {name} of {folder} has files of different lengths, in lines: {said}"
            )


def count_of_classes(path: Path, classes: int) -> int:
    """How many labels a set has.

    Args:
        path: of its files, without .bin and .idx.
        classes: how many labels the model tells apart.

    Raises:
        UserError: if the files are missing, a line does not have exactly one label, or a label is
            none of these.
    """
    if not MMapIndexedDataset.exists(str(path)):
        raise UserError(f"there is no {path}.idx: binarise the labels of the set {path.name} too")
    data = MMapIndexedDataset(str(path))
    tokens = np.fromfile(f"{path}.bin", data._index.dtype).astype(np.int64)
    words = np.concatenate(([0], np.cumsum(tokens != SPECIAL.eos())))
    ends = np.cumsum(data.sizes)
    per_line = words[ends] - words[ends - data.sizes]
    if (wrong := np.flatnonzero(per_line != 1)).size:
        raise UserError(
            f"line {wrong[0] + 1} of the labels {path} has {per_line[wrong[0]]} words: write each "
            "label as one, without spaces"
        )
    numbers = tokens[tokens != SPECIAL.eos()] - SPECIAL.nspecial
    if (numbers < 0).any():
        raise UserError(f"{path} has a label that {path.parent}/dict.txt does not have")
    if (numbers >= classes).any():
        raise UserError(
            f"{path} has at least {numbers.max() + 1} labels: give --num-classes "
            f"{numbers.max() + 1}"
        )
    return len(data)


def count_of_numbers(path: Path, values: int) -> int:
    """How many lines a set's file of numbers has.

    Args:
        path: of the file.
        values: how many numbers a line should have.

    Raises:
        UserError: if the file is missing, or a line does not hold so many finite numbers.
    """
    number = 0
    for number, line in enumerate(text_lines.read_lines(path), 1):
        try:
            is_right = (
                len(found := line.split()) == values and np.isfinite([*map(float, found)]).all()
            )
        except ValueError:
            is_right = False
        if not is_right:
            raise UserError(
                f"{path}, line {number}: '{line}' should be {counted(values, 'number')}"
            )
    return number
