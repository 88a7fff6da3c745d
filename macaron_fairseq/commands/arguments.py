"""Types of arguments that several commands take."""

import argparse


def positive(text: str) -> int:
    """An integer above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value
