"""Line-aligned text, where line N of one file translates line N of the other.

Text is UTF-8 and only "\\n" ends a line: crawled text holds other characters that Unicode, and with
it `str.splitlines`, takes for line ends. Mistakes in the text end the program with a sentence.
"""

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TextIO

from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.text_lines import decode
from macaron_fairseq.common.wording import counted

Pair = tuple[str, str]
Paths = tuple[Path, Path]
LONGEST_TOKEN = 1000
HELD_OUT = 2000
# Of pairs that are held out: words, as many as the recipe keeps in train, and characters; as tokens
# each they still fit the models' 1,024 positions.
WORDS, CHARACTERS = 175, 1000


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
            f"{names[0]} has {counted(counts[0], 'line')} and {names[1]} has {counts[1]:,}: "
            "they must be translations of each other line by line"
        )
    if not counts[0]:
        sys.exit(f"{names[0]} and {names[1]} are empty")


def read(source: Path, target: Path) -> Iterator[Pair]:
    """The pairs of two files; ends the program as `decode` and `pairs` do."""
    try:
        with source.open("rb") as one, target.open("rb") as other:
            names = (str(source), str(target))
            lines = pairs(decode(one, names[0]), decode(other, names[1]), names)
            yield from bar(source.name, " pairs", items=lines, leave=False)
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


def write(lines: Iterable[Pair], source: Path, target: Path, if_none: str = "") -> int:
    """Write pairs to two files, and return how many.

    Ends the program if there are none; `if_none` is the sentence instead of the usual one.
    """
    number = 0
    with written(source, target) as files:
        for pair in lines:
            put(pair, files)
            number += 1
        if not number:
            sys.exit(if_none or f"no pair is left for {source} and {target}")
    return number


def put(pair: Pair, files: Sequence[TextIO]) -> None:
    """Write a pair to its two files."""
    for line, file in zip(pair, files, strict=True):
        file.write(line + "\n")


# --- Cleaning and dividing -----------------------------------------------------------------------


def clean(train: Paths, kept: Paths, least: int, most: int, ratio: float) -> None:
    """Keep the training pairs that are worth training on, as Moses' clean-corpus-n.perl does.

    A pair is dropped if a side is empty, or has fewer than `least` or more than `most` tokens. So
    it is if one side has more than `ratio` times the other's tokens, or if a token has more than
    1,000 characters. White space becomes single spaces.
    """
    read_pairs = 0

    def worthy() -> Iterator[Pair]:
        nonlocal read_pairs
        for pair in read(*train):
            read_pairs += 1
            source, target = (line.split() for line in pair)
            short, long = sorted((len(source), len(target)))
            if (
                max(least, 1) <= short
                and long <= most
                and long / short <= ratio
                and max(map(len, source + target)) <= LONGEST_TOKEN
            ):
                yield " ".join(source), " ".join(target)

    limits = f"{least} to {most} tokens, ratio at most {ratio:g}"
    number = write(
        worthy(),
        *kept,
        f"none of the pairs of {train[0]} is worth training on ({limits}). Has the text no "
        "spaces between words? Then split it before",
    )
    print(f"clean: kept {number:,} of {read_pairs:,} pairs ({limits})")


def split(train: Paths, valid: Paths, every: int) -> None:
    """Move pairs number `every`, 2 * `every`, ... from train to valid; the order is kept."""
    if every < 2:
        sys.exit(f"every {every} would leave nothing to train on: give 2 or more")
    number = 0
    # valid gets its names first: a kill between cannot lose pairs.
    with written(*valid, *train) as files:
        for number, pair in enumerate(read(*train), 1):
            put(pair, files[:2] if number % every == 0 else files[2:])
        if number < every:
            sys.exit(f"{train[0]} has {counted(number, 'line')}, fewer than {every}")
    moved = number // every
    print(f"split: {number - moved:,} pairs stay in train, {moved:,} go to valid")


def hold_out(folder: Path, languages: tuple[str, str], out: Path) -> None:
    """A user's text to train, valid and test: what is not given is held out from train.

    `folder` holds train.LANGUAGE, and perhaps valid.* and test.*. Where one of these is missing,
    pairs are drawn from train: 2,000 each, or a tenth where train is small. Those whose source
    sentence occurred before, spaces apart, are dropped, and the order is shuffled with seed 1. This
    holds the corpus in memory. Long pairs are not drawn, nor are sentences of a given set. These
    stay in train, and how many they are is said. Pairs with an empty side are dropped from train
    and refused in valid and test.
    """

    def names(where: Path, part: str) -> Paths:
        source, target = (where / f"{part}.{language}" for language in languages)
        return source, target

    missing = []
    given: dict[str, set[str]] = {}
    for part in ("test", "valid"):
        paths = names(folder, part)
        if any(path.exists() for path in paths):
            write(full(read(*paths), paths), *names(out, part))
            given[part] = {words_of(pair) for pair in read(*paths)}
        else:
            missing.append(part)
    seen: dict[str, set[str]] = {part: set() for part in given}

    def marked() -> Iterator[Pair]:
        for pair in read(*names(folder, "train")):
            if all(map(str.strip, pair)):
                for part in given:
                    seen[part].update({words_of(pair)} & given[part])
                yield pair

    train = marked()
    if missing:
        pairs, others = drawable(train, set().union(*given.values()))
        count = min(HELD_OUT, len(pairs) // 10)
        if not count:
            sys.exit(
                f"{folder}/train.{languages[0]} has {counted(len(pairs), 'different sentence')}, "
                "without long ones and those of given sets, too few to draw "
                f"{' and '.join(missing)} from: give these as files, or more text"
            )
        random.Random(1).shuffle(pairs)
        for part in missing:
            write(pairs[:count], *names(out, part))
            pairs = pairs[count:]
        train = (pair for pair in pairs + others)
    write(train, *names(out, "train"))
    for part, texts in seen.items():
        if texts:
            print(f"{part}: {counted(len(texts), 'source sentence')} of it stand in train, too")


def drawable(train: Iterable[Pair], known: set[str]) -> tuple[list[Pair], list[Pair]]:
    """The first pair of each source sentence: those that may be drawn, and the others.

    Long ones may not, nor those whose source sentence is known.
    """
    first: dict[str, Pair] = {}
    for pair in train:
        first.setdefault(words_of(pair), pair)
    texts = {text for text, pair in first.items() if is_short(pair)} - known
    pairs = [pair for text, pair in first.items() if text in texts]
    return pairs, [pair for text, pair in first.items() if text not in texts]


def draw(train: Paths, folder: Path, languages: tuple[str, str], unique: str) -> None:
    """Draw test and valid from train, 2,000 pairs each, in an order shuffled with seed 1.

    Of the pairs with the same sentence in the language `unique` the first is kept. The pairs are
    the same for either direction of translation. This holds the corpus in memory.
    """
    side = languages.index(unique)
    first: dict[str, Pair] = {}
    for pair in read(*train):
        first.setdefault(pair[side], pair)
    if len(first) <= 2 * HELD_OUT:
        sys.exit(
            f"{train[0]} has {counted(len(first), 'different sentence')}, too few to draw from"
        )
    pairs = [*first.values()]
    random.Random(1).shuffle(pairs)
    parts = {"test": pairs[:HELD_OUT], "valid": pairs[HELD_OUT : 2 * HELD_OUT]}
    for part, drawn in {**parts, "train": pairs[2 * HELD_OUT :]}.items():
        source, target = (folder / f"{part}.{language}" for language in languages)
        write(iter(drawn), source, target)


def words_of(pair: Pair) -> str:
    """Its source sentence with single spaces: what makes it another one."""
    return " ".join(pair[0].split())


def is_short(pair: Pair) -> bool:
    """Whether neither side is too long for the models."""
    return all(len(text) <= CHARACTERS and len(text.split()) <= WORDS for text in pair)


def full(pairs: Iterator[Pair], names: Paths) -> Iterator[Pair]:
    """The pairs of a given set; ends the program at one with an empty side."""
    for number, pair in enumerate(pairs, 1):
        for text, name in zip(pair, names, strict=True):
            if not text.strip():
                sys.exit(f"{name}, line {number} is empty: what is scored needs text on both sides")
        yield pair
