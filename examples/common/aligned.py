"""Line-aligned text, where line N of one file translates line N of the other.

Shared by extract.py, clean.py and split.py. Text is UTF-8 and only "\\n" ends a line: crawled text
holds other characters that Unicode, and with it `str.splitlines`, takes for line ends. The package
reads lines by the same rules (files.py), but importing it from a script loads fairseq, in seconds.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

Pair = tuple[str, str]


def decode(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines without their ends, "\\r\\n" too, and without a byte order mark.

    Ends the program at a line that is not UTF-8; `name` says there where it stands.
    """
    for number, line in enumerate(lines, 1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            sys.exit(
                f"{name}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x} at position "
                f"{error.start + 1}): convert it, for example with iconv"
            )


def pairs(source: Iterable[str], target: Iterable[str], names: tuple[str, str]) -> Iterator[Pair]:
    """Line by line of both; ends the program if one has more lines, or neither has any."""
    sides = iter(source), iter(target)
    number = 0
    for one, other in zip_longest(*sides):
        if one is None or other is None:
            rest = [sum(1 for _ in side) for side in sides]
            counts = [number + (one is not None) + rest[0], number + (other is not None) + rest[1]]
            refuse_unequal(counts, names)
        yield one, other
        number += 1
    refuse_unequal([number, number], names)


def refuse_unequal(counts: Sequence[int], names: Sequence[str]) -> None:
    """End the program if the two sides have different numbers of lines, or none."""
    if counts[0] != counts[1]:
        sys.exit(
            f"{names[0]} has {counts[0]} lines and {names[1]} has {counts[1]}: they must be "
            "translations of each other line by line"
        )
    if not counts[0]:
        sys.exit(f"{names[0]} and {names[1]} are empty")


def read(source: Path, target: Path) -> Iterator[Pair]:
    """The pairs of two files; ends the program as `decode` and `pairs` do."""
    try:
        with source.open("rb") as one, target.open("rb") as other:
            names = (str(source), str(target))
            lines = pairs(decode(one, names[0]), decode(other, names[1]), names)
            yield from tqdm(lines, desc=source.name, unit=" pairs", disable=None, leave=False)
    except OSError as error:
        sys.exit(f"cannot read {error.filename}: {error.strerror}")


@contextmanager
def written(*paths: Path) -> Iterator[list[TextIO]]:
    """Files to write to, which get their names, in this order, once all are complete."""
    temporary = [path.with_name(path.name + ".tmp") for path in paths]
    try:
        with ExitStack() as stack:
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
            yield [
                stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
                for path in temporary
            ]
        for old, new in zip(temporary, paths, strict=True):
            old.replace(new)
    except OSError as error:
        sys.exit(f"cannot write {' and '.join(map(str, paths))}: {error.strerror}")
    finally:
        for path in temporary:
            with suppress(OSError):
                path.unlink()


def write(lines: Iterable[Pair], source: Path, target: Path) -> int:
    """Write pairs to two files, and return how many; ends the program if there are none."""
    number = 0
    with written(source, target) as files:
        for pair in lines:
            put(pair, files)
            number += 1
        if not number:
            sys.exit(f"no pair is left for {source} and {target}")
    return number


def put(pair: Pair, files: Sequence[TextIO]) -> None:
    """Write a pair to its two files."""
    for line, file in zip(pair, files, strict=True):
        file.write(line + "\n")
