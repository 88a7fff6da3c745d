"""A student's tokens as its teacher's, where BPE and dictionary differ.

Their words are the same. So each word is joined, and cut by the teacher's BPE. A span ends where
both cut it at the same character, see `common_spans`.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple

from fairseq.data import Dictionary
from torch import Tensor

from macaron_fairseq.distillation.cross_vocabulary.losses import Range, common_spans
from macaron_fairseq.distillation.text_spans import Words
from macaron_fairseq.text.marks import SENTENCEPIECE, SUBWORD_NMT, refuse_suffixes

CACHE = 100_000  # words that are kept, some 50 MB

Cuts = tuple[tuple[Range, Range], ...]  # spans as the student's tokens and as the teacher's


class Recoded(NamedTuple):
    """A sentence of the student's for its teacher."""

    tokens: list[int]  # the teacher's
    spans: Cuts


class Recoder:
    """What makes a teacher's tokens of a student's."""

    def __init__(
        self, student: Dictionary, teacher: Dictionary, segment: Callable[[str], str]
    ) -> None:
        """Remember both dictionaries.

        Args:
            student: the dictionary of the student's tokens, of subword-nmt or of SentencePiece.
            teacher: that of the teacher's, of subword-nmt.
            segment: the teacher's BPE, from a word to its parts with spaces between.
        """
        self.student = student
        self.teacher = teacher
        self.segment = segment
        self.words = Words(student)
        self.mark = SENTENCEPIECE if self.words.is_sentencepiece else SUBWORD_NMT
        if self.words.is_sentencepiece:
            refuse_suffixes(self.student.symbols, "cut the student's text with marks before them")
        # As sets, since looking into a tensor takes microseconds for each word.
        self.goes_on, self.is_inside = (
            {*marks.nonzero().flatten().tolist()}
            for marks in (self.words.goes_on, self.words.is_inside)
        )
        self.recode_word = functools.lru_cache(CACHE)(self.recode_new_word)

    def comparable(self) -> list[str]:
        """The student's symbols, to compare with the teacher's: equal ones mean the same.

        subword-nmt marks what goes on, and SentencePiece where a word begins. Both write whole
        words: ▁x is the teacher's x. A later part of a word, x in SentencePiece, is that x only
        where there is no ▁x, and else has the mark.
        """
        symbols = self.student.symbols
        if not self.words.is_sentencepiece:
            return list(symbols)
        words = {x.removeprefix(SENTENCEPIECE) for x in symbols if x.startswith(SENTENCEPIECE)}
        found = [x.removeprefix(SENTENCEPIECE) for x in symbols]
        for i in range(self.student.nspecial, len(symbols)):
            if not symbols[i].startswith(SENTENCEPIECE) and symbols[i] in words:
                found[i] = SENTENCEPIECE + symbols[i]
        return found

    def __call__(self, batch: Tensor, before: Sequence[int] | None = None) -> list[Recoded]:
        """Each sentence of a batch, (batch, length), padded on either side.

        Args:
            batch: the student's tokens.
            before: which of its tokens precedes each sentence, which may begin inside a word; None
                where nothing does.
        """
        batch = batch.cpu()
        numbers = self.words.numbers(batch).tolist()
        pad, before = self.student.pad(), before or [self.student.eos()] * len(batch)
        return [
            self.recode([(n, t) for n, t in zip(*row, strict=True) if t != pad], first)
            for *row, first in zip(numbers, batch.tolist(), before, strict=True)
        ]

    def recode(self, sentence: Sequence[tuple[int, int]], before: int) -> Recoded:
        """One sentence, as the number of each token's word, -1 for special symbols, and the token.

        Special symbols become the teacher's of the same name. They are in no span, nor is a word of
        which a part may be outside: after a token that goes on or is unknown, or at the end.
        """
        found: list[int] = []
        spans: list[tuple[Range, Range]] = []
        done, last = 0, before
        for number, group in groupby(sentence, key=itemgetter(0)):
            tokens = tuple(token for _, token in group)
            if number < 0:
                found += [self.teacher.index(self.student[token]) for token in tokens]
            else:
                theirs, cuts = self.recode_word(tokens)
                start, end = len(found), done + len(tokens)
                following = sentence[end][1] if end < len(sentence) else None
                cuts = cuts if self.is_whole(last, tokens, following) else ()
                spans += [((a + done, b + done), (c + start, d + start)) for (a, b), (c, d) in cuts]
                found += theirs
            done += len(tokens)
            last = tokens[-1]
        return Recoded(found, tuple(spans))

    def is_whole(self, before: int, word: Sequence[int], following: int | None) -> bool:
        """Whether no part of a word can be in the token before it, or follow where a text ends."""
        words = self.words
        if words.is_bpe:
            goes_on = before in self.goes_on or before == self.student.unk()
            return not goes_on and word[-1] not in self.goes_on
        if words.is_sentencepiece:
            continues = word[0] in self.is_inside and before not in words.special
            return not continues and following is not None
        return True

    def last_of(self, token: int) -> int:
        """What the teacher reads for one of the student's tokens that precedes a sentence.

        Of several tokens it is the last one. Of a word's last part no more than that is known.
        """
        if token in self.words.special:
            return self.teacher.index(self.student[token])
        found, _ = self.recode_word((token,))
        return found[-1] if found else self.teacher.eos()  # a mark alone has no text

    def recode_new_word(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], Cuts]:
        """The teacher's tokens of a word, and its spans, each from the beginning of the word.

        Of a word with an unknown part the text is lost: it is unknown to the teacher, too, and in
        no span.
        """
        if self.student.unk() in tokens:
            return (self.teacher.unk(),), ()
        texts = [bare(self.student[token], self.mark) for token in tokens]
        parts = self.segment("".join(texts)).split()
        spans = common_spans(ends(texts), ends([bare(part, SUBWORD_NMT) for part in parts]))
        return tuple(map(self.teacher.index, parts)), tuple(zip(*spans, strict=True))


def bare(symbol: str, mark: str) -> str:
    """The text of a part of a word, without the mark of what cut it; the other one is text."""
    return symbol.removeprefix(mark) if mark == SENTENCEPIECE else symbol.removesuffix(mark)


def ends(texts: Sequence[str]) -> list[int]:
    """After which character of the whole each text ends."""
    return list(accumulate(map(len, texts)))
