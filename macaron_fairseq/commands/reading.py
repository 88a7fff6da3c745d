"""What `dynamics` and `order` share: which sentences a model reads."""

import argparse
from pathlib import Path

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError


def add_reading(parser: argparse.ArgumentParser, how_many: str) -> None:
    """Add which sentences of which data are read; `how_many` says what their number means."""
    add = parser.add_argument
    add("--target", type=Path, metavar="TARGET", help="the translation of INPUT, line by line")
    add(
        "--gen-subset",
        metavar="SET",
        help="the set of DATA to read, as fairseq or the recipe calls it (default: test)",
    )
    add("--source-lang", metavar="LANG", help="needed if the data folder does not tell")
    add("--target-lang", metavar="LANG", help="needed if it does not tell")
    add(
        "--sentences",
        type=positive,
        metavar="N",
        help=f"read at most the first N sentences {how_many}",
    )
    add(
        "--longest",
        type=positive,
        metavar="N",
        help="leave out sentences of more than N tokens, their ends included (default: none)",
    )


def refuse_unclear(args: argparse.Namespace) -> None:
    """Raise a `UserError` if the options of `add_reading` name two texts, or half of one."""
    if args.target and not args.input:
        raise UserError("--target is the translation of INPUT: name that file too, or drop it")
    if args.input and args.gen_subset:
        raise UserError("INPUT and --gen-subset both say which sentences: drop one")
