"""How far long work has come: a bar on a terminal, and elsewhere a line now and then."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

SECONDS = 10.0  # between two lines

Item = TypeVar("Item")


class Progress:
    """What is done of so much work, see `progress`."""

    def __init__(self, what: str, total: float, bar: tqdm) -> None:
        self.what, self.total, self.bar = what, total, bar
        self.done = 0.0
        self.said = time.monotonic()

    def update(self, done: float = 1) -> None:
        """So much more is done."""
        self.done += done
        if not self.bar.disable:
            self.bar.update(done)
        elif time.monotonic() - self.said >= SECONDS:
            self.said = time.monotonic()
            self.say(f"{self.done / self.total:.0%}")

    def say(self, state: str) -> None:
        """A line on stderr."""
        print(f"{self.what}: {state}", file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, total: float) -> Iterator[Progress]:
    """Show how far work of that size, in any unit, has come while it lasts."""
    form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
    with tqdm(total=total, desc=what, bar_format=form, disable=None, leave=False) as bar:
        shown = Progress(what, total, bar)
        if bar.disable:
            shown.say("begins")
        yield shown


def following(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """The items; each counts as done when the next is asked for."""
    with progress(what, total) as shown:
        for item in items:
            yield item
            shown.update()
