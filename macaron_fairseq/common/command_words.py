"""The words of a command line, looked at before argparse reads them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from macaron_fairseq.common.names import question


def before_dashes(words: Sequence[str]) -> Sequence[str]:
    """The words of a command line before a word --, or all."""
    return words[: words.index("--")] if "--" in words else words


def empty_word(words: Sequence[str], actions: Mapping[str, Any]) -> str:
    """A sentence on the first word before -- that is empty; "" if none is.

    A path would be the current folder. Mostly it comes from a variable that is not set, so that
    options refuse it whose default is empty, too.

    Args:
        words: of a command line.
        actions: of argparse, by option; an option that takes a value is named.
    """
    own = before_dashes(words)
    for before, word in zip(["", *own], own, strict=False):
        if not word or re.fullmatch("--?[^-=][^=]*=", word):
            option = word.removesuffix("=") or before
            takes_value = option in actions and actions[option].nargs != 0
            name = option if word or takes_value else "an argument"
            return f"{name} is empty: was a variable not set?"
    return ""


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
