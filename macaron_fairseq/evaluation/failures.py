"""Translations that went wrong as a whole: loops, and what only the maximum length stopped.

A few of them move a corpus score by points. No average shows them, so reports count them.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from macaron_fairseq.common.files import read_lines
from macaron_fairseq.evaluation import training_flags

REPEATS = 4  # in a row; more of them are a loop
WORDS = 4  # that may be repeated together
LETTERS = 12  # that may be repeated together inside a word

DEFINITION = (
    f"A translation loops if it repeats a piece more than {REPEATS} times in a row and the "
    f"reference does not. A piece is 1 to {WORDS} words, or 1 to {LETTERS} letters inside a word."
)

LOOP = re.compile(
    rf"(?<!\S)(\S+(?: \S+){{0,{WORDS - 1}}}?)(?: \1){{{REPEATS},}}(?!\S)"
    rf"|([^\W\d_]{{1,{LETTERS}}}?)\2{{{REPEATS},}}"
)

# fairseq-generate's --max-len-a and --max-len-b unless it is told others.
LENGTH_FLAGS = {"--max-len-a": "0", "--max-len-b": "200"}
POSITIONAL_SCORES = re.compile(r"P-(\d+)\t(.*)")


def loops(hypothesis: str, reference: str) -> bool:
    """Whether a translation repeats itself as in `DEFINITION`."""
    return repeats(hypothesis) and not repeats(reference)


def repeats(line: str) -> bool:
    """Whether words, or letters inside a word, stand more than `REPEATS` times in a row."""
    return LOOP.search(" ".join(line.split())) is not None


def maximum_length(decoding: str | None) -> int | None:
    """The most tokens that fairseq-generate gave a translation, its end not counted.

    None where that is not known, or depends on the source (--max-len-a).

    Args:
        decoding: what a recipe wrote down: words, then the flags.
    """
    if decoding is None:
        return None
    flags = training_flags.parse(decoding.split())
    a, b = (" ".join(flags.get(name, [usual])) for name, usual in LENGTH_FLAGS.items())
    try:
        return int(b) if float(a) == 0 else None
    except ValueError:
        return None


def lengths_in_tokens(generated: Path) -> dict[int, int]:
    """The tokens of each best hypothesis, its end not counted, by the sentence's number from 0.

    fairseq prints a score for each token of a hypothesis, and one for its end, after P-.
    Empty where the file is missing or holds no such lines.
    """
    if not generated.is_file():
        return {}
    found: dict[int, int] = {}
    for line in read_lines(generated):
        if match := POSITIONAL_SCORES.fullmatch(line):
            found.setdefault(int(match[1]), len(match[2].split()) - 1)
    return found


def looping(hypotheses: Sequence[str], references: Sequence[str]) -> list[int]:
    """The numbers, from 0, of the translations that loop."""
    pairs = zip(hypotheses, references, strict=True)
    return [i for i, (hypothesis, reference) in enumerate(pairs) if loops(hypothesis, reference)]


def cut_off(generated: Path, decoding: str | None) -> list[int] | None:
    """The numbers of the translations that reached the maximum length; None if not known."""
    maximum = maximum_length(decoding)
    lengths = lengths_in_tokens(generated)
    if maximum is None or not lengths:
        return None
    return sorted(i for i, length in lengths.items() if length >= maximum)
