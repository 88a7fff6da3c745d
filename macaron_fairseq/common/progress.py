"""How far long work has come: a bar on a terminal, and elsewhere a line now and then."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm import tqdm

from macaron_fairseq.common import files

SECONDS = 10.0  # between two lines

Item = TypeVar("Item")


class Lines:
    """Standard error for a bar where it is no terminal: each state of the bar is a line."""

    def write(self, text: str) -> None:
        """Write what is there of a line."""
        if shown := text.strip():
            print(shown, file=sys.stderr)

    def flush(self) -> None:
        """Write it at once."""
        sys.stderr.flush()


def bar(
    what: str,
    unit: str = "",
    total: float | None = None,
    initial: float = 0,
    items: Iterable[Item] | None = None,
    **options: Any,
) -> tqdm:
    """A bar that counts; what takes less than `SECONDS` says nothing where there is no terminal.

    Args:
        what: is done.
        unit: of what is counted.
        total: of what there is, if that is known.
        initial: what was done before.
        items: what the bar gives one after the other, and counts.
        options: of tqdm.
    """
    on_terminal = files.is_terminal(sys.stderr)
    counts = "{n_fmt}{unit} [{elapsed}, {rate_noinv_fmt}]"
    if total is not None or hasattr(items, "__len__"):
        counts = "{percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt}{unit} "
        counts += "[{elapsed}<{remaining}, {rate_noinv_fmt}]"
    return tqdm(
        items,
        desc=what,
        total=total,
        initial=initial,
        unit=unit,
        bar_format="{desc}: " + counts,
        file=sys.stderr if on_terminal else Lines(),
        mininterval=0.5 if on_terminal else SECONDS,
        miniters=1,
        delay=0 if on_terminal else SECONDS,
        **options,
    )


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
            share = self.done / self.total
            print(f"{self.what}: {share:.0%}", file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, total: float) -> Iterator[Progress]:
    """Show how far work of that size, in any unit, has come while it lasts."""
    form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
    with tqdm(total=total, desc=what, bar_format=form, disable=None, leave=False) as bar:
        yield Progress(what, total, bar)


def following(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """The items; each counts as done when the next is asked for."""
    with progress(what, total) as shown:
        for item in items:
            yield item
            shown.update()
