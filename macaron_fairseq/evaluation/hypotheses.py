"""The hypotheses in what fairseq-generate and fairseq-interactive print."""

import re
from collections.abc import Sequence

from sacremoses import MosesDetokenizer

from macaron_fairseq.common.errors import UserError

# H-NUMBER, the model's score, the tokens; S-, T-, D-, P- and log lines stand around it.
LINE = re.compile(r"H-(\d+)\t[^\t]*\t(.*)")


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
        match = LINE.fullmatch(line)
        # fairseq draws its progress bar with carriage returns, on stderr.
        if not match or "\r" in line:
            raise UserError(
                f"{name}, line {number} is a damaged H- line: decode again, with only stdout "
                "going to this file"
            )
        sentence = int(match[1])
        if sentence not in found:
            found[sentence] = match[2]
        elif sentence != latest:
            raise UserError(
                f"{name}, line {number} has H-{sentence} a second time, away from the first: it "
                "holds several decodings, give one alone"
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
            f"{missing[0]} first: decode all of the same test set, with "
            "--required-batch-size-multiple 1, since fairseq leaves out the last batch otherwise, "
            "and without --skip-invalid-size-inputs-valid-test"
        )
    return [found[sentence] for sentence in range(expected)]


def remove_bpe(lines: Sequence[str]) -> list[str]:
    """Join what subword-nmt split; a mark at the end of a line has no partner and goes too."""
    return [(line + " ").replace("@@ ", "").rstrip(" ") for line in lines]


def detokenize(lines: Sequence[str], language: str) -> list[str]:
    """Text from Moses tokens: punctuation attached, `&apos;` and its like unescaped."""
    detokenizer, english = MosesDetokenizer(language), MosesDetokenizer("en")

    def text(line: str) -> str:
        tokens = line.split()
        try:
            return detokenizer.detokenize(tokens)
        except TypeError:  # sacremoses, of Czech words with an apostrophe and a dash: "e' - mail"
            return english.detokenize(tokens)

    return [text(line) for line in lines]
