"""Where translations differ: by sentence length, by word frequency, in n-grams, in sentences.

The questions are those of compare-mt (Neubig et al. 2019, https://arxiv.org/abs/1903.07926), and
the definitions are compare-mt's. A system is a translation of a test set: a list of its lines, or
of each line's words. sacreBLEU computes all BLEU.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import pairwise

from sacrebleu.metrics import BLEU

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.text.languages import has_spaces
from macaron_fairseq.text.marks import SENTENCEPIECE, has_pieces, is_sentencepiece, remove_bpe
from macaron_fairseq.text.tokenization import Pipeline, split_characters

# The least length or frequency of each group.
LENGTHS = (1, 5, 10, 15, 20, 30, 40, 60)
FREQUENCIES = (0, 1, 2, 5, 10, 100, 1000)
LONGEST = 4  # n-grams
LISTED = 10  # n-grams in each direction
LEAST = 3  # times that one side has an n-gram right more often: less is noise

Words = list[str]
Group = tuple[int, int | None]  # from, to; None: no end


def words_of(lines: Sequence[str], language: str, lowercase: bool) -> list[Words]:
    """The words of raw text: Moses' tokens, as training data of the recipes has them before BPE.

    In Chinese and Japanese, whose words have no spaces between them, a character is a word.
    """
    split = Pipeline(["normalize", "tokenize"], language)
    # Lowered afterwards: Moses leaves a full stop on a word if what follows is not capitalised.
    tokens = map(split, lines)
    if not has_spaces(language):
        tokens = map(split_characters, tokens)
    return [interned(line.lower() if lowercase else line) for line in tokens]


def interned(line: str) -> Words:
    """The words of a line; a word is kept once, however many runs have it."""
    return [*map(sys.intern, line.split())]


def groups(starts: Sequence[int]) -> list[Group]:
    """The groups that begin at these numbers."""
    return [*((one, following - 1) for one, following in pairwise(starts)), (starts[-1], None)]


def place(value: int, starts: Sequence[int]) -> int:
    """The number, from 0, of the group that a value belongs to."""
    return max(sum(start <= value for start in starts) - 1, 0)


# --- by the length of the sentence ---------------------------------------------------------------


def by_length(
    references: Sequence[str], lengths: Sequence[int], systems: Sequence[Sequence[str]], bleu: BLEU
) -> list[tuple[Group, int, list[float]]]:
    """Corpus BLEU of the sentences of each length.

    Args:
        references: raw text.
        lengths: of the references, in words.
        systems: raw text.
        bleu: sacreBLEU's.

    Returns:
        For each group with sentences: the lengths, the number of sentences, each system's BLEU.
    """
    members: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        members.setdefault(place(length, LENGTHS), []).append(i)
    return [
        (
            groups(LENGTHS)[group],
            len(chosen),
            [
                bleu.corpus_score([x[i] for i in chosen], [[references[i] for i in chosen]]).score
                for x in systems
            ],
        )
        for group, chosen in sorted(members.items())
    ]


# --- by the frequency of the word ----------------------------------------------------------------


def count_in(
    text: Iterable[str], words: Iterable[str], lowercase: bool, by_character: bool = False
) -> Counter[str]:
    """How often words occur in a tokenised text, which is read line by line.

    It may be cut by BPE, too, or at hyphens (`well @-@ known`): its words are those before that.

    Args:
        text: lines of tokens.
        words: which ones to count.
        lowercase: whether to ignore case.
        by_character: see `words_of`.

    Raises:
        UserError: if it is cut by SentencePiece, which leaves no such words.
    """
    wanted = set(words)
    counts: Counter[str] = Counter()
    lines = marked = 0
    for line in text:
        lines += bool(line.strip())
        marked += has_pieces(line)
        line = remove_bpe([line])[0].replace(" @-@ ", "-")
        if by_character:
            line = split_characters(line)
        found = (line.lower() if lowercase else line).split()
        counts.update(word for word in found if word in wanted)
    if is_sentencepiece(marked, lines):
        raise UserError(
            f"the training text has SentencePiece's marks ({SENTENCEPIECE}): give it in words, as "
            "`macaron-fairseq tokenize --steps normalize,tokenize` leaves it"
        )
    return counts


def by_frequency(
    references: Sequence[Words], systems: Sequence[Sequence[Words]], counts: Counter[str]
) -> list[tuple[Group, int, list[float]]]:
    """F1 of the words of each frequency in the training data, from 0 to 100.

    A word counts as right at most as often as it occurs in the reference.

    Args:
        references: words.
        systems: words.
        counts: how often words occur in the training data.

    Returns:
        For each group with words: the frequencies, the words of the references, each system's F1.
    """
    number = len(FREQUENCIES)
    in_references = [0] * number
    for sentence in references:
        for word in sentence:
            in_references[place(counts[word], FREQUENCIES)] += 1
    columns = []
    for system in systems:
        right, given = [0] * number, [0] * number
        for sentence, reference in zip(system, references, strict=True):
            found, expected = Counter(sentence), Counter(reference)
            for word, times in found.items():
                group = place(counts[word], FREQUENCIES)
                given[group] += times
                right[group] += min(times, expected[word])
        columns.append(
            [
                200 * x / (n + m) if n + m else 0.0  # 2PR / (P + R) of P = x / n and R = x / m
                for x, n, m in zip(right, given, in_references, strict=True)
            ]
        )
    return [
        (group, in_references[i], [column[i] for column in columns])
        for i, group in enumerate(groups(FREQUENCIES))
        if in_references[i]
    ]


# --- n-grams -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NGram:
    """An n-gram of the references, and how often two systems had it right."""

    text: str
    references: int
    baseline: int
    other: int


def ngrams(sentence: Words) -> Iterator[tuple[str, ...]]:
    """All n-grams of a sentence, of 1 to `LONGEST` words."""
    for n in range(1, LONGEST + 1):
        for i in range(len(sentence) - n + 1):
            yield tuple(sentence[i : i + n])


def matches(references: Sequence[Words], system: Sequence[Words]) -> Counter[tuple[str, ...]]:
    """How often each n-gram of the references is in its translation, as BLEU counts."""
    found: Counter[tuple[str, ...]] = Counter()
    for reference, sentence in zip(references, system, strict=True):
        found.update(Counter(ngrams(reference)) & Counter(ngrams(sentence)))
    return found


def salient_ngrams(
    references: Sequence[Words], baseline: Counter[tuple[str, ...]], other: Counter[tuple[str, ...]]
) -> tuple[list[NGram], list[NGram]]:
    """The n-grams that one system has right more often than the other, most salient first.

    As in compare-mt, they are ranked by (a + 1) / (a + b + 2), where a and b count how often each
    system had the n-gram right. One that is part of another with the same counts is left out, and
    so are those whose counts differ by less than `LEAST`.

    Args:
        references: words.
        baseline: its `matches`; of several seeds, their sum.
        other: the same of the other system.

    Returns:
        Those of the other system, and those of the baseline.
    """
    total = Counter(ngram for sentence in references for ngram in ngrams(sentence))
    return salient(total, baseline, other), salient(total, other, baseline, swapped=True)


def salient(
    total: Counter[tuple[str, ...]],
    less: Counter[tuple[str, ...]],
    more: Counter[tuple[str, ...]],
    swapped: bool = False,
) -> list[NGram]:
    """The n-grams that are clearly more often in `more`."""

    def rank(ngram: tuple[str, ...]) -> tuple:
        a, b = more[ngram], less[ngram]
        return -(a + 1) / (a + b + 2), -len(ngram), ngram

    chosen: list[tuple[str, ...]] = []
    for ngram in sorted((x for x in more if more[x] - less[x] >= LEAST), key=rank):
        same = (x for x in chosen if (more[x], less[x]) == (more[ngram], less[ngram]))
        if not any(is_part(ngram, x) for x in same):
            chosen.append(ngram)
        if len(chosen) == LISTED:
            break
    pairs = ((x, (more[x], less[x]) if swapped else (less[x], more[x])) for x in chosen)
    return [NGram(unescape(" ".join(x)), total[x], a, b) for x, (a, b) in pairs]


def is_part(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether an n-gram stands in another."""
    return any(other[i : i + len(one)] == one for i in range(len(other) - len(one) + 1))


# --- sentences -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A sentence, two translations of it, and their sentence BLEU."""

    number: int  # of the line, from 1
    source: str | None
    reference: str
    baseline: str
    other: str
    baseline_bleu: float
    other_bleu: float
    difference: float


@dataclass(frozen=True)
class Sentences:
    """How two translations compare, sentence by sentence."""

    better: int  # than the baseline's
    worse: int
    equal: int
    examples: list[Example]


def by_sentence(
    sources: Sequence[str] | None,
    references: Sequence[str],
    baseline: Sequence[str],
    other: Sequence[str],
    bleu: BLEU,
    most: int,
) -> Sentences:
    """The sentences whose BLEU differs most, whichever translation is better.

    Args:
        sources: raw text, if there is any.
        references: raw text.
        baseline: its translations.
        other: the other system's.
        bleu: sacreBLEU's, with effective order.
        most: examples, half of them in each direction.
    """
    found = []
    for i, (reference, one, two) in enumerate(zip(references, baseline, other, strict=True)):
        a, b = (bleu.sentence_score(x, [reference]).score for x in (one, two))
        source = sources[i] if sources else None
        found.append(Example(i + 1, source, reference, one, two, a, b, b - a))
    found.sort(key=lambda x: (-x.difference, x.number))
    better = [x for x in found if x.difference > 0]
    worse = [x for x in found if x.difference < 0]
    examples = [*better[: most // 2], *worse[-(most // 2) :]] if most > 1 else []
    examples.sort(key=lambda x: (-abs(x.difference), x.number))
    return Sentences(len(better), len(worse), len(found) - len(better) - len(worse), examples)
