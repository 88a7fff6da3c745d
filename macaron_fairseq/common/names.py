"""Things that a user chooses by name."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from macaron_fairseq.common.errors import UserError

Thing = TypeVar("Thing")


def look_up(table: Mapping[str, Thing], name: str, what: str, flag: str) -> Thing:
    """What has that name in the table.

    Raises:
        UserError: saying which names `flag` takes, the nearest ones if the name is misspelt.
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table) or list(table)
    raise UserError(f"unknown {what} '{name}': {flag} takes {listed(near)}")


def listed(names: Iterable[str]) -> str:
    """a, b or c."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
