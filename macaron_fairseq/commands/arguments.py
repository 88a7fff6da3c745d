"""Types of arguments that several commands take."""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

LARGEST = sys.float_info.max  # so that infinity is too much
TINY = sys.float_info.min


def number(lowest: float, highest: float, wanted: str) -> Callable[[str], float]:
    """What reads a number within these limits.

    Args:
        lowest: that is taken.
        highest: that is taken.
        wanted: such numbers, in words: "a number above 0".
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text} is not {wanted}")
        return value

    return read


def whole(lowest: int, highest: float, wanted: str) -> Callable[[str], int]:
    """What reads a whole number within these limits, which are 0 or more; see `number`.

    Args:
        lowest: that is taken.
        highest: that is taken.
        wanted: the limits in words, such as "above 0".
    """

    def read(text: str) -> int:
        value = int(text) if text.isdecimal() else -1
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number {wanted}")
        return value

    return read


def new_file(text: str) -> Path:
    """The name of a file to write; a folder is refused now, not after the work."""
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder: name a file")
    return Path(text)


def folder(text: str) -> Path:
    """The name of a folder to write to."""
    if text == "-":
        raise argparse.ArgumentTypeError("- is standard output: name a folder")
    return Path(text)


def new_folder(text: str) -> Path:
    """The name of a folder to write to; a file is refused now, not after the work."""
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a file: name a folder")
    return folder(text)


positive = whole(1, math.inf, "above 0")
not_negative_integer = whole(0, math.inf, "of 0 or more")
seed = whole(0, 2**32 - 1, "from 0 to below 2^32")  # as NumPy takes them
finite = number(-LARGEST, LARGEST, "a finite number")
not_negative = number(0, LARGEST, "a finite number of 0 or more")
above_zero = number(TINY, LARGEST, "a finite number above 0")
