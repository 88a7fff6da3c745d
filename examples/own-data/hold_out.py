"""Raw text files of a user to train, valid and test: what is not given is held out from train.

usage: hold_out.py FOLDER SOURCE TARGET OUT

FOLDER holds train.SOURCE and train.TARGET, and perhaps valid.* and test.*. Where one of these is
missing, pairs are drawn from train (2,000, or a tenth where train is small), after dropping those
whose source sentence occurred before, in an order shuffled with seed 1.
"""

import random
import shutil
import sys
from pathlib import Path

HELD_OUT = 2000


def read(path: Path) -> list[bytes]:
    """The lines of a file; ends the program with a sentence where there are none."""
    if not path.is_file() or not path.stat().st_size:
        sys.exit(f"{path} is missing or empty")
    return path.read_bytes().removesuffix(b"\n").split(b"\n")


def main() -> None:
    """Write train, valid and test in both languages."""
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    folder, out, languages = Path(sys.argv[1]), Path(sys.argv[4]), sys.argv[2:4]
    sides = [read(folder / f"train.{language}") for language in languages]
    if len(sides[0]) != len(sides[1]):
        sys.exit(
            f"{folder}/train.{languages[0]} has {len(sides[0])} lines and train.{languages[1]} "
            f"{len(sides[1])}: they must be translations line by line"
        )
    pairs = list(zip(*sides, strict=True))
    missing = []
    for name in ("test", "valid"):
        given = [folder / f"{name}.{language}" for language in languages]
        if not any(path.exists() for path in given):
            missing.append(name)
            continue
        for path in given:
            read(path)
            shutil.copy(path, out / path.name)
    if missing:
        first: dict[bytes, tuple[bytes, ...]] = {}
        for pair in pairs:
            first.setdefault(pair[0], pair)
        pairs = list(first.values())
        random.Random(1).shuffle(pairs)
    count = min(HELD_OUT, len(pairs) // 10)
    for name in missing:
        write(out, name, languages, pairs[:count])
        pairs = pairs[count:]
    write(out, "train", languages, pairs)


def write(out: Path, name: str, languages: list[str], pairs: list[tuple[bytes, ...]]) -> None:
    """Write the two sides of the pairs."""
    for language, side in zip(languages, zip(*pairs, strict=True), strict=True):
        (out / f"{name}.{language}").write_bytes(b"\n".join(side) + b"\n")


if __name__ == "__main__":
    main()
