"""Keep the sentence pairs that are worth training on, as Moses clean-corpus-n.perl does.

  clean.py --min 1 --max 175 --ratio 1.5 tok/train.de tok/train.en clean/train.de clean/train.en

Dropped are pairs with a side of fewer than MIN or more than MAX tokens, an empty one in any case;
pairs of which one side has more than RATIO times the other's tokens; and pairs with a token of more
than 1,000 characters. White space becomes single spaces. Run it on tokenised text.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import aligned
from aligned import Pair

LONGEST_TOKEN = 1000


def clean(pairs: Iterable[Pair], least: int, most: int, ratio: float) -> Iterator[Pair]:
    """The pairs to keep, in their order."""
    for pair in pairs:
        source, target = (line.split() for line in pair)
        short, long = sorted((len(source), len(target)))
        if (
            max(least, 1) <= short
            and long <= most
            and long / short <= ratio
            and max(map(len, source + target)) <= LONGEST_TOKEN
        ):
            yield " ".join(source), " ".join(target)


def main() -> None:
    """Clean what the command line names, and say how much was kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--min", type=int, default=1, help="tokens (default: 1)")
    parser.add_argument("--max", type=int, default=80, help="tokens (default: 80)")
    parser.add_argument("--ratio", type=float, default=9, help="of the lengths (default: 9)")
    for name in ("source", "target", "clean_source", "clean_target"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    read = 0

    def counted() -> Iterator[Pair]:
        nonlocal read
        for pair in aligned.read(args.source, args.target):
            read += 1
            yield pair

    kept = aligned.write(
        clean(counted(), args.min, args.max, args.ratio), args.clean_source, args.clean_target
    )
    print(
        f"clean: kept {kept:,} of {read:,} pairs ({args.min} to {args.max} tokens, ratio "
        f"at most {args.ratio:g})"
    )


if __name__ == "__main__":
    main()
