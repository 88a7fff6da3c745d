"""Types of arguments that several commands take."""

import argparse
import math
from collections.abc import Callable


def positive(text: str) -> int:
    """An integer above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def not_negative_integer(text: str) -> int:
    """An integer that is not below 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0")
    return value


def seed(text: str) -> int:
    """A seed of all random numbers: NumPy takes those from 0 to below 2^32."""
    value = not_negative_integer(text)
    if value >= 2**32:
        raise argparse.ArgumentTypeError(f"{value} is not below 2^32")
    return value


def finite(text: str) -> float:
    """A finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not finite")
    return value


def not_negative(text: str) -> float:
    """A finite number that is not below 0."""
    value = finite(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def above_zero(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and finite")
    return value


def number(lowest: float, highest: float, wanted: str) -> Callable[[str], float]:
    """What reads a number within these limits."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text} is not {wanted}")
        return value

    return read


def whole(lowest: int, highest: int, wanted: str) -> Callable[[str], int]:
    """What reads a whole number within these limits."""

    def read(text: str) -> int:
        value = int(text) if text.isdecimal() else -1
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number {wanted}")
        return value

    return read
