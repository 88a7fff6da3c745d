"""Translations that went wrong as a whole: loops, and what only the maximum length stopped.

A few of them move a corpus score by points. No average shows them, so reports count them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import regex

from macaron_fairseq.evaluation.scores.generated import lengths_in_tokens
from macaron_fairseq.evaluation.training import training_flags

REPEATS = 4  # in a row; more of them are a loop
WORDS = 4  # that may be repeated together
LETTERS = 12  # that may be repeated together inside a word

DEFINITION = (
    f"A translation loops if it repeats a piece more than {REPEATS} times in a row and the "
    f"reference does not. A piece is 1 to {WORDS} words, or 1 to {LETTERS} letters inside a word."
)

LOOP = regex.compile(
    rf"(?<!\S)(\S+(?: \S+){{0,{WORDS - 1}}}?)(?: \1){{{REPEATS},}}(?!\S)"
    rf"|((?:\p{{L}}\p{{M}}*+){{1,{LETTERS}}}?)\2{{{REPEATS},}}"  # letters with all their marks
)

# fairseq-generate's --max-len-a and --max-len-b unless it is told others.
LENGTH_FLAGS = {"--max-len-a": "0", "--max-len-b": "200"}


@dataclass(frozen=True)
class MaximumLength:
    """The most tokens of a translation, its end not counted: a * source tokens + b.

    fairseq takes the longest source of a batch, with its end. Here a sentence's own source sets
    its limit. So a translation that this limit cut off always counts. One that ended by itself
    counts if it is that long, which only longer sources in its batch made possible.
    """

    a: float
    b: int

    def of(self, source_tokens: int) -> int:
        """The limit of a source of so many model tokens, its end not counted."""
        return int(self.a * (source_tokens + 1) + self.b)

    def __str__(self) -> str:
        """As a sentence says it."""
        if not self.a:
            return f"{self.b:,} tokens"
        return f"{self.a:g} times the tokens of the source and its end, plus {self.b:,}"


def loops(hypothesis: str, reference: str) -> bool:
    """Whether a translation repeats itself as in `DEFINITION`."""
    return repeats(hypothesis) and not repeats(reference)


def repeats(line: str) -> bool:
    """Whether words, or letters inside a word, stand more than `REPEATS` times in a row."""
    return LOOP.search(" ".join(line.split())) is not None


def maximum_length(decoding: str | None) -> MaximumLength | None:
    """The limit that fairseq-generate was given; None where that is not known.

    Args:
        decoding: what a recipe wrote down: words, then the flags.
    """
    if decoding is None:
        return None
    flags = training_flags.parse(decoding.split())
    a, b = (" ".join(flags.get(name, [usual])) for name, usual in LENGTH_FLAGS.items())
    try:
        return None if "--match-source-len" in flags else MaximumLength(float(a), int(b))
    except ValueError:
        return None


def looping(hypotheses: Sequence[str], references: Sequence[str]) -> list[int]:
    """The numbers, from 0, of the translations that loop."""
    pairs = zip(hypotheses, references, strict=True)
    return [i for i, (hypothesis, reference) in enumerate(pairs) if loops(hypothesis, reference)]


def cut_off(generated: Path, decoding: str | None) -> list[int] | None:
    """The numbers of the translations that reached the `MaximumLength`; None if not known."""
    maximum = maximum_length(decoding)
    lengths, sources_known = lengths_in_tokens(generated)
    if maximum is None or not lengths or (maximum.a and not sources_known):
        return None
    return sorted(i for i, x in lengths.items() if x.translation >= maximum.of(x.source))
