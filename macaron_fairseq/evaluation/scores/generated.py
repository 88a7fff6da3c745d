"""What fairseq-generate prints: the hypotheses, and how long they are.

Of sentence N it prints the source after S-N and a target after T-N. Of each hypothesis in its
n-best list it prints the model's score and the tokens after H-N, and each token's score after P-N.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.text_lines import read_lines

HYPOTHESIS = re.compile(r"H-(\d+)\t[^\t]*\t(.*)")
PRINTED = re.compile(r"([SHP])-(\d+)\t(.*)")


def best(lines: Sequence[str], name: str) -> dict[int, str]:
    """The best hypothesis of each sentence, by the sentence's number in the test set, from 0.

    The H- lines of one sentence that follow each other are an n-best list, which fairseq prints
    best first.

    Raises:
        UserError: if there are no hypotheses, a line is damaged, or there are two decodings.
    """
    found: dict[int, str] = {}
    latest = None
    for number, line in enumerate(lines, 1):
        if not re.match(r"H-\d", line):
            continue
        match = HYPOTHESIS.fullmatch(line)
        # fairseq draws its progress bar with carriage returns, on stderr.
        if not match or "\r" in line:
            raise UserError(
                f"{name}, line {number} is a damaged H- line: decode again, and send only stdout "
                "to this file"
            )
        sentence = int(match[1])
        if sentence not in found:
            found[sentence] = match[2]
        elif sentence != latest:
            raise UserError(
                f"{name}, line {number} has H-{sentence} a second time: give the output of one "
                "decoding, not of several"
            )
        latest = sentence
    if not found:
        raise UserError(
            f"{name} has no H- lines: give what fairseq-generate printed without --quiet, or "
            "say --plain if it is plain text"
        )
    return found


def in_order(found: dict[int, str], expected: int, name: str, reference: str) -> list[str]:
    """The hypotheses of sentences 0 to `expected` - 1.

    Raises:
        UserError: if one is missing, or belongs to no line of the reference.
    """
    if surplus := [sentence for sentence in found if sentence >= expected]:
        raise UserError(
            f"{name} has H-{min(surplus)}, but {reference} ends at line {expected}, which is "
            f"H-{expected - 1}: give the reference of the test set that was decoded"
        )
    if missing := [sentence for sentence in range(expected) if sentence not in found]:
        raise UserError(
            f"{name} lacks {len(missing)} of the {expected} sentences of {reference}, H-"
            f"{missing[0]} first: decode the whole test set. Give --required-batch-size-multiple "
            "1, or fairseq leaves out the last batch, and no --skip-invalid-size-inputs-valid-test"
        )
    return [found[sentence] for sentence in range(expected)]


@dataclass(frozen=True)
class Lengths:
    """Model tokens of a sentence and of its best translation, their ends not counted."""

    source: int
    translation: int


def lengths_in_tokens(generated: Path) -> tuple[dict[int, Lengths], bool]:
    """The lengths of each sentence, by its number from 0, and whether sources are in model tokens.

    fairseq prints the source after S-, a hypothesis after H-, and after P- a score for each of its
    tokens and one for its end. With --post-process S- and H- lines have words instead of tokens.
    Empty where the file is missing or holds no such lines.
    """
    sources: dict[int, int] = {}
    words: dict[int, int] = {}
    tokens: dict[int, int] = {}
    for line in read_lines(generated) if generated.is_file() else ():
        if not (match := PRINTED.fullmatch(line)):
            continue
        kind, number, text = match[1], int(match[2]), match[3]
        if kind == "S":
            sources[number] = len(text.split())
        elif kind == "H":
            words.setdefault(number, len(text.partition("\t")[2].split()))
        else:
            tokens.setdefault(number, len(text.split()) - 1)
    found = {number: Lengths(sources.get(number, 0), tokens[number]) for number in tokens}
    return found, words == tokens and sources.keys() == tokens.keys()
