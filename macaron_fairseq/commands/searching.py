"""What `translate` and `distill` share: how to search, where to compute, how to divide the work."""

import argparse
from collections.abc import Callable
from typing import Any

from macaron_fairseq.commands.arguments import (
    finite,
    not_negative,
    not_negative_integer,
    positive,
)
from macaron_fairseq.translation.parts import Shard
from macaron_fairseq.translation.translator import Batching, Search

NUMBERS: tuple[tuple[str, Callable[[str], float], float, str, str], ...] = (
    ("--beam", positive, Search.beam, "N", "hypotheses kept"),
    ("--lenpen", finite, Search.lenpen, "X", "length penalty: above 1 favours longer translations"),
    (
        "--max-len-a",
        not_negative,
        Search.max_len_a,
        "A",
        "tokens at most: A * (longest source of its batch) + B",
    ),
    (
        "--max-len-b",
        not_negative_integer,
        Search.max_len_b,
        "B",
        "the constant of that limit, see --max-len-a",
    ),
    (
        "--max-tokens",
        positive,
        Batching.max_tokens,
        "N",
        "source tokens of a batch, padding included",
    ),
    ("--batch-size", positive, Batching.batch_size, "N", "sentences of a batch"),
    (
        "--batch-lines",
        positive,
        Batching.lines,
        "N",
        "lines that are read, sorted by length and translated before the first is written: more "
        "are faster, and with 1 each line is written as soon as it is translated",
    ),
)
PRECISIONS = ("fp16", "bf16")
WHEN_INTERRUPTED = ": what is translated is kept; give the same command again, and it goes on"


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add what says how to search, in which batches."""
    for flag, kind, default, metavar, text in NUMBERS:
        text = f"{text} (default: {default:g})"
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)


def search_of(args: argparse.Namespace) -> Search:
    """How the command line says to search."""
    return Search(args.beam, args.lenpen, args.max_len_a, args.max_len_b)


def batching_of(args: argparse.Namespace) -> Batching:
    """How much the command line says to translate at once."""
    return Batching(args.batch_lines, args.max_tokens, args.batch_size)


def add_device(parser: argparse.ArgumentParser) -> Any:
    """Add where and in what precision fairseq computes; returns the group of the latter."""
    parser.add_argument(
        "--cpu", action="store_true", help="compute on the CPU even if there is a GPU"
    )
    precision = parser.add_mutually_exclusive_group()
    for name in PRECISIONS:
        precision.add_argument(
            f"--{name}",
            dest="precision",
            action="store_const",
            const=name,
            help=f"compute in {name}, on a GPU (fairseq)",
        )
    return precision


def add_shards(parser: argparse.ArgumentParser, folder: str) -> None:
    """Add what divides the work among jobs; `folder` is where they leave their parts."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--shard",
        type=shard,
        metavar="I/N",
        help=f"do the I-th of N shares, in parts of --batch-lines lines, into {folder}; parts that "
        "are there are not done again",
    )
    group.add_argument(
        "--join",
        action="store_true",
        help=f"check that all parts are in {folder} and belong together, join them, and remove it",
    )


def shard(text: str) -> Shard:
    """I/N as an argument."""
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} should be I/N, such as 1/8 to 8/8") from error
