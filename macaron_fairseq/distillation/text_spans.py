"""Spans of a batch of text: its tokens, its words, or phrases that a file names.

Special symbols, such as the end of a sentence, belong to no word and no phrase.
"""

import re
from pathlib import Path

import torch
from fairseq.data import Dictionary
from torch import Tensor

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation.spans import members_within
from macaron_fairseq.text.marks import SENTENCEPIECE, SUBWORD_NMT, mark_of

SPAN_KINDS = TOKENS, WORDS, PHRASES = "tokens", "words", "phrases"

PHRASE_LINE = re.compile(r"\s*(\d{1,9}-\d{1,9}(\s+\d{1,9}-\d{1,9})*)?\s*")
FORMAT = (
    "each line has the phrases of a sentence as FIRST-LAST, words counted from 0, such as '0-2 4-5'"
)


class Words:
    """Which word each token belongs to, by the marks in a dictionary's symbols.

    Marks are those of subword-nmt or of SentencePiece; without either, each token is a word. An
    unknown token has lost its marks: it ends a word of subword-nmt, and goes on in one of
    SentencePiece, which need not be true.
    """

    def __init__(self, dictionary: Dictionary) -> None:
        self.special = {dictionary.pad(), dictionary.eos(), dictionary.bos()}
        self.unknown = dictionary.unk()
        symbols = dictionary.symbols
        mark = mark_of(symbols[dictionary.nspecial :], dictionary.count[dictionary.nspecial :])
        self.is_bpe, self.is_sentencepiece = mark == SUBWORD_NMT, mark == SENTENCEPIECE
        none = torch.zeros(len(symbols), dtype=torch.bool)
        self.goes_on = self.is_inside = none
        if self.is_bpe:
            self.goes_on = torch.tensor([x.endswith(SUBWORD_NMT) for x in symbols])
        if self.is_sentencepiece:
            self.is_inside = torch.tensor([not x.startswith(SENTENCEPIECE) for x in symbols])

    def numbers(self, tokens: Tensor) -> Tensor:
        """The number of each token's word in its sentence, from 0; -1 for special symbols.

        Args:
            tokens: (batch, length), padded on either side.
        """
        if self.goes_on.device != tokens.device:
            self.goes_on, self.is_inside = (
                x.to(tokens.device) for x in (self.goes_on, self.is_inside)
            )
        special = sum(tokens.eq(x) for x in self.special).bool()  # type: ignore[union-attr]
        follows = self.is_inside[tokens]
        follows[:, 1:] |= self.goes_on[tokens[:, :-1]]
        follows[:, 0] = False
        follows[:, 1:] &= ~special[:, :-1]
        starts = ~follows & ~special
        return (starts.long().cumsum(1) - 1).masked_fill(special, -1)

    def describe(self) -> str:
        """Where words end, for the log."""
        if self.is_bpe:
            return f"a word goes on after {SUBWORD_NMT}"
        if self.is_sentencepiece:
            return f"a word begins with {SENTENCEPIECE}"
        return "each token is a word"

    def certain(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """How many words each sentence begins with, of which no unknown token hides an end.

        Args:
            tokens: (batch, length).
            numbers: of their words.

        Returns:
            (batch, 1).
        """
        hides = torch.zeros_like(numbers, dtype=torch.bool)
        if self.is_bpe:  # whether the next token goes on with the word
            hides[:, :-1] = numbers[:, 1:] >= 0
        elif self.is_sentencepiece:  # whether it begins a word
            hides[:, 1:] = numbers[:, :-1] >= 0
        hides &= tokens.eq(self.unknown)
        return numbers.masked_fill(~hides, numbers.shape[1]).amin(1, keepdim=True)


class Phrases:
    """A file with the phrases of each sentence of the training data."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            UserError: if it is missing or a line is not as expected.
        """
        self.path = path
        try:
            self.lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"cannot read the phrases in {path}: {reason}") from error
        for number, line in enumerate(self.lines, 1):
            if not PHRASE_LINE.fullmatch(line) or any(a > b for a, b in pairs(line)):
                raise UserError(f"{path}, line {number}, is not as expected: {FORMAT}")

    def check(self, sentences: int, hint: str = "") -> None:
        """Raise a `UserError` if the training data has another number of sentences."""
        if sentences != len(self.lines):
            raise UserError(
                f"{self.path} has {len(self.lines)} lines, but the training data {sentences} "
                f"sentences: {FORMAT}{hint}"
            )

    def of(self, sentences: Tensor) -> Tensor:
        """First and last word of the phrases of some sentences; -1 where a sentence has fewer.

        Args:
            sentences: their numbers, from 0, (batch,).

        Returns:
            (batch, phrases, 2).
        """
        found = [pairs(self.lines[i]) for i in sentences.tolist()]
        most = max(map(len, found), default=0)
        padded = [x + [[-1, -1]] * (most - len(x)) for x in found]
        return torch.tensor(padded, dtype=torch.long).view(len(padded), most, 2)


def pairs(line: str) -> list[list[int]]:
    """First and last word of each phrase of a line."""
    return [[*map(int, phrase.split("-"))] for phrase in line.split()]


def members(
    kind: str, tokens: Tensor, words: Words, padding: int, phrases: Tensor | None = None
) -> Tensor:
    """The spans of a batch, (batch, spans, length), see `spans`.

    Args:
        kind: one of `SPAN_KINDS`. Phrases that an unknown token may have moved are left out.
        tokens: (batch, length).
        words: of the dictionary.
        padding: the symbol of padding.
        phrases: first and last word of each, (batch, phrases, 2), where `kind` asks for them.
    """
    batch, length = tokens.shape
    places = torch.arange(length, device=tokens.device).expand(batch, length)
    if kind == TOKENS:
        numbers, mask = places, tokens.ne(padding)
    else:
        numbers = words.numbers(tokens)
        mask = numbers.ge(0)
    if kind != PHRASES:
        return numbers.unsqueeze(1).eq(places.unsqueeze(2)) & mask.unsqueeze(1)
    assert phrases is not None
    phrases = phrases.to(tokens.device)
    # Which words come after an unknown token is a guess.
    phrases = phrases.masked_fill(
        phrases[:, :, 1:] >= words.certain(tokens, numbers)[..., None], -1
    )
    return members_within(phrases, numbers, numbers, mask)
