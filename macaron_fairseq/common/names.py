"""Things that a user chooses by name."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from macaron_fairseq.common.errors import UserError

Thing = TypeVar("Thing")


def look_up(table: Mapping[str, Thing], name: str, what: str, flag: str) -> Thing:
    """What has that name in the table.

    Raises:
        UserError: which names all that `flag` takes and, if the name looks misspelt or cut short,
            asks whether another was meant.
    """
    if name in table:
        return table[name]
    raise UserError(f"unknown {what} '{name}': {flag} takes {listed(table)}{question(name, table)}")


def question(name: str, known: Iterable[str]) -> str:
    """ ". Did you mean ...?" if the name looks like a known one misspelt or cut short, else ""."""
    names = [*known]
    begun = [other for other in names if name and other.startswith(name)]
    near = begun or get_close_matches(name, names)
    return f". Did you mean {listed(near)}?" if near else ""


def unknown_option(words: Sequence[str], known: Iterable[str], may_be_cut: bool) -> str:
    """A sentence on the first option that does not exist, before a word --; "" if all do.

    Args:
        words: of a command line.
        known: the options that there are.
        may_be_cut: whether the beginning of an option stands for it.
    """
    options = [*known]
    for word in words[: words.index("--")] if "--" in words else words:
        option = word.partition("=")[0]
        is_known = option in options or (may_be_cut and any(x.startswith(option) for x in options))
        if option.startswith("--") and not is_known:
            return f"there is no option {option}{question(option, options)}"
    return ""


def listed(names: Iterable[str]) -> str:
    """a, b or c."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
