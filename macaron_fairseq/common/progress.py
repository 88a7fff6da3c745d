"""How far long work has come: a bar on a terminal, and elsewhere a line now and then."""

import sys
from collections.abc import Iterable, Iterator
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
    if isinstance(total, float):  # of what is not counted, such as time
        counts = "{percentage:3.0f}%|{bar:20}| [{elapsed}<{remaining}]"
    elif total is not None or hasattr(items, "__len__"):
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
        miniters=0 if isinstance(total, float) else 1,
        delay=0 if on_terminal else SECONDS,
        **options,
    )


def following(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items; each counts as done when the next is asked for."""
    return iter(bar(what, items=items, leave=False))
