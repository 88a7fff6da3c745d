"""A user's parallel text to train, valid and test: what is not given is held out from train.

usage: hold_out.py FOLDER SOURCE TARGET OUT

FOLDER holds train.SOURCE and train.TARGET, and perhaps valid.* and test.*. Where one of these is
missing, pairs are drawn from train (2,000 each, or a tenth where train is small), after dropping
those whose source sentence occurred before, in an order shuffled with seed 1; this holds the corpus
in memory. Pairs of more than 175 words or 1,000 characters are not drawn. Pairs with an empty side
are dropped from train and refused in valid and test.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import aligned
from aligned import Pair

HELD_OUT = 2000
WORDS = 175  # what the recipe keeps in train, too
CHARACTERS = 1000  # as tokens each, they still fit the models' 1,024 positions


def full(pairs: Iterator[Pair]) -> Iterator[Pair]:
    """The pairs with text on both sides."""
    return (pair for pair in pairs if pair[0].strip() and pair[1].strip())


def is_short(pair: Pair) -> bool:
    """Whether neither side is too long for the models."""
    return all(len(text) <= CHARACTERS and len(text.split()) <= WORDS for text in pair)


def given(pairs: Iterator[Pair], names: list[Path]) -> Iterator[Pair]:
    """The pairs of a given set; ends the program at one with an empty side."""
    for number, pair in enumerate(pairs, 1):
        for text, name in zip(pair, names, strict=True):
            if not text.strip():
                sys.exit(f"{name}, line {number} is empty: what is scored needs text on both sides")
        yield pair


def main() -> None:
    """Write train, valid and test in both languages."""
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    folder, out, languages = Path(sys.argv[1]), Path(sys.argv[4]), sys.argv[2:4]

    def names(where: Path, part: str) -> list[Path]:
        return [where / f"{part}.{language}" for language in languages]

    missing = []
    for part in ("test", "valid"):
        paths = names(folder, part)
        if any(path.exists() for path in paths):
            aligned.write(given(aligned.read(*paths), paths), *names(out, part))
        else:
            missing.append(part)
    train = full(aligned.read(*names(folder, "train")))
    if missing:
        first: dict[str, Pair] = {}
        for pair in train:
            first.setdefault(pair[0], pair)
        pairs = [pair for pair in first.values() if is_short(pair)]
        too_long = [pair for pair in first.values() if not is_short(pair)]
        count = min(HELD_OUT, len(pairs) // 10)
        if not count:
            sys.exit(
                f"{folder}/train.{languages[0]} has {len(pairs)} different sentences, too few to "
                f"draw {' and '.join(missing)} from: give these as files, or more text"
            )
        random.Random(1).shuffle(pairs)
        for part in missing:
            aligned.write(pairs[:count], *names(out, part))
            pairs = pairs[count:]
        train = iter(pairs + too_long)
    aligned.write(train, *names(out, "train"))


if __name__ == "__main__":
    main()
