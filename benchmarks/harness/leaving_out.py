"""Leaving out one part of macaron_fairseq/fast at a time, to see what it gains.

Without PyTorch, which is not to be imported before a fake GPU is there.
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

EVERYTHING = "everything"


@dataclass(frozen=True)
class Row:
    """What is left out, and how."""

    about: str
    flags: tuple[str, ...] = ()  # more of them for fairseq-train or fairseq-generate
    instead: tuple[tuple[Any, str, Any], ...] = ()  # object, attribute, what it is for the moment
    side: str = "ours"
    task: str = ""  # of fairseq-generate; "" for this package's

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """A time without the part."""
        with contextlib.ExitStack() as stack:
            for one in self.instead:
                stack.enter_context(patch.object(*one))
            yield


def never(*_: Any) -> bool:
    """Instead of a question whose answer is then no."""
    return False


def at_no_time(*_: Any) -> AbstractContextManager:
    """Instead of a time in which weights are known not to change: here nothing is known."""
    return nullcontext()


STOCK = Row("a Transformer of equal size", side="stock")
