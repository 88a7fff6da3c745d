"""Things that a user chooses by name."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from macaron_fairseq.common.errors import UserError

Thing = TypeVar("Thing")

MOST_LISTED = 20  # names that a sentence lists where it can ask for one instead
MOST_ASKED = 5


def look_up(table: Mapping[str, Thing], name: str, what: str, flag: str) -> Thing:
    """What has that name in the table.

    Raises:
        UserError: which asks whether another was meant, if the name looks misspelt or cut short. It
            also names all that `flag` takes, unless they are many and one of them is asked for.
    """
    if name in table:
        return table[name]
    asked = question(name, table)
    takes = f": {flag} takes {listed(table)}" if len(table) <= MOST_LISTED or not asked else ""
    raise UserError(f"unknown {what} '{name}'{takes}{asked}")


def question(name: str, known: Iterable[str]) -> str:
    """The question ". Did you mean ...?", or "" if no known name is near, whatever its case."""
    names = [*known]
    begun = [other for other in names if name and other.lower().startswith(name.lower())]
    matches = dict.fromkeys(get_close_matches(name.lower(), [x.lower() for x in names]))
    near = begun or [other for match in matches for other in names if other.lower() == match]
    if more := near[MOST_ASKED:]:
        near = [*near[:MOST_ASKED], f"one of {len(more)} more that begin so"]
    return f". Did you mean {listed(near)}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """a, b or c."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def flag(name: str) -> str:
    """The flag of an argument: "--max-tokens" of "max_tokens"."""
    return f"--{name.replace('_', '-')}"


def refuse_labels(
    labels: Sequence[str] | None, paths: Sequence[str | Path], may_repeat: bool = False
) -> None:
    """Check what models are to be called.

    Args:
        labels: a name for each; None to call them by their files.
        paths: of the models.
        may_repeat: whether models of one name belong together.

    Raises:
        UserError: if there are more or fewer names than models, or two of one name.
    """
    if labels and len(labels) != len(paths):
        raise UserError(
            f"each checkpoint needs a label: there are {len(labels)} for {len(paths)} checkpoints"
        )
    names = labels or [*map(str, paths)]
    if len({*names}) < len(names) and not may_repeat:
        raise UserError("two models have the same name: give each another label")
