"""Things that a user chooses by name."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

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


def before_dashes(words: Sequence[str]) -> Sequence[str]:
    """The words of a command line before a word --, or all."""
    return words[: words.index("--")] if "--" in words else words


def empty_word(words: Sequence[str], options: Collection[str]) -> str:
    """A sentence on the first word before -- that is empty; "" if none is.

    A path would be the current folder. Mostly it comes from a variable that is not set, so that
    options refuse it whose default is empty, too.

    Args:
        words: of a command line.
        options: those that take a value.
    """
    own = before_dashes(words)
    for before, word in zip(["", *own], own, strict=False):
        if not word or re.fullmatch("--?[^-=][^=]*=", word):
            option = word.removesuffix("=") or before
            name = option if word or option in options else "an argument"
            return f"{name} is empty: was a variable not set?"
    return ""


def with_value(actions: Mapping[str, Any]) -> list[str]:
    """The options of a parser that take a value, of argparse's actions by option."""
    return [option for option, action in actions.items() if action.nargs != 0]


def unknown_option(words: Sequence[str], known: Iterable[str], may_be_cut: bool) -> str:
    """A sentence on the first option that does not exist, before a word --; "" if all do.

    Args:
        words: of a command line.
        known: the options that there are.
        may_be_cut: whether the beginning of an option stands for it.
    """
    options = [*known]
    for word in before_dashes(words):
        option = word.partition("=")[0]
        is_known = option in options or (may_be_cut and any(x.startswith(option) for x in options))
        if option.startswith("--") and not is_known:
            # All have the dashes in common.
            near = [x for x in options if get_close_matches(option[2:], [x[2:]])]
            near += [x for x in options if x.startswith(option)]
            return f"there is no option {option}{question(option, dict.fromkeys(near))}"
    return ""


def listed(names: Iterable[str]) -> str:
    """a, b or c."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


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
