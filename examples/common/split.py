"""Move every Nth sentence pair of the training data to the validation data.

  split.py --every 23 train.de train.en valid.de valid.en

Lines 23, 46, ... go to valid, the rest stay in train; the order is kept.
"""

import argparse
import sys
from pathlib import Path

import aligned


def main() -> None:
    """Split what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, required=True, metavar="N", help="2 or more")
    for name in ("train_source", "train_target", "valid_source", "valid_target"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    if args.every < 2:
        parser.error(f"--every {args.every} would leave nothing to train on: give 2 or more")
    train, valid = (args.train_source, args.train_target), (args.valid_source, args.valid_target)
    number = 0
    # valid gets its names first: a kill between cannot lose pairs.
    with aligned.written(*valid, *train) as files:
        for number, pair in enumerate(aligned.read(*train), 1):
            aligned.put(pair, files[:2] if number % args.every == 0 else files[2:])
        if number < args.every:
            sys.exit(f"{train[0]} has {number} lines, fewer than --every {args.every}")
    moved = number // args.every
    print(f"split: {number - moved:,} pairs stay in train, {moved:,} go to valid")


if __name__ == "__main__":
    main()
