"""A line of raw text to tokens, by the steps of Moses, then BPE; and tokens back to text.

A step is named, and a list of names is a recipe's preprocessing: `Pipeline(["normalize",
"tokenize"], "de")` is a function from a line to a line.
"""

import functools
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import regex
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes
from subword_nmt.apply_bpe import BPE

from macaron_fairseq.common import signals
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up
from macaron_fairseq.text.languages import has_spaces, short_code

Step = Callable[[str], str]

CACHE = 100_000  # words whose segmentation is kept, some 30 MB
EDGES = " \r"  # white space that may stand at an end of a line

# --- steps ---------------------------------------------------------------------------------------


def normalize(language: str) -> Step:
    """Moses normalize-punctuation.perl: straight quotes, plain dashes, no pseudo-spaces."""
    normalizer = MosesPunctNormalizer(short_code(language))
    # Perl sees the line end, and a rule for `."` in German, French and Spanish needs it there.
    return lambda line: normalizer.normalize(line + "\n")


def printable(language: str) -> Step:
    """Moses remove-non-printing-char.perl: what Unicode classes as "other" becomes a space."""
    return functools.partial(regex.compile(r"\p{C}").sub, " ")


def visible(language: str) -> Step:
    """Nothing for what is not seen, such as a soft hyphen; the joiners of some scripts stay."""
    # Others of this kind are signs of numbers, and parts of flags.
    seen = r"\u200c\u200d\p{Prepended_Concatenation_Mark}\U000e0020-\U000e007f"
    return functools.partial(regex.compile(rf"(?V1)[\p{{Cf}}--[{seen}]]").sub, "")


def nfc(language: str) -> Step:
    """Unicode's composed form: one character for a letter and its accent."""
    return functools.partial(unicodedata.normalize, "NFC")


def lowercase(language: str) -> Step:
    """Lower case in any script."""
    return str.lower


def tokenize(language: str) -> Step:
    """Moses tokenizer.perl: tokens between single spaces, `&|<>'"[]` escaped."""
    return functools.partial(tokenizer(short_code(language)).tokenize, return_str=True)


def tokenize_hyphens(language: str) -> Step:
    """The same with its option -a: a hyphen between letters becomes the token @-@."""
    tokens = tokenizer(short_code(language)).tokenize
    return functools.partial(tokens, aggressive_dash_splits=True, return_str=True)


STEPS: dict[str, Callable[[str], Step]] = {
    "normalize": normalize,
    "printable": printable,
    "visible": visible,
    "nfc": nfc,
    "lowercase": lowercase,
    "tokenize": tokenize,
    "tokenize-hyphens": tokenize_hyphens,
}  # and bpe, which takes a file of merges, not a language
WITHOUT_RULES = {"printable", "visible", "nfc", "lowercase"}  # the same in all languages


class Tokenizer(MosesTokenizer):
    """The same tokens, many times sooner where there are full stops inside a line.

    sacremoses makes the set of all letters again for each question about a letter.
    """

    def __init__(self, language: str) -> None:
        super().__init__(language)
        self.alphabetic, self.lower = frozenset(self.IsAlpha), frozenset(self.IsLower)

    def isanyalpha(self, text: str) -> bool:
        """Whether there is a letter in it."""
        return not self.alphabetic.isdisjoint(text)

    def islower(self, text: str) -> bool:
        """Whether all of it is lower case."""
        return self.lower.issuperset(text)


@functools.cache
def tokenizer(language: str) -> Tokenizer:
    """The tokenizer of a language; warns, once, of one that sacremoses does not know."""
    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        print(
            f"warning: sacremoses has no abbreviations for the language '{language}' and takes "
            f"the English ones; it has {', '.join(known)}",
            file=sys.stderr,
        )
    return Tokenizer(language)


def read_merges(codes: Path) -> BPE:
    """The merges in a file of subword-nmt.

    Raises:
        UserError: if it is not such a file.
    """
    try:
        with codes.open(encoding="utf-8-sig", newline="\n") as file:
            return BPE(file)
    except OSError as error:
        raise UserError(f"cannot read the BPE codes {codes}: {error.strerror or error}") from error
    except (SystemExit, ValueError) as error:
        if isinstance(error, SystemExit) and error.code in signals.STATUSES:
            raise
        raise UserError(f"{codes} is not a file of BPE codes as subword-nmt writes it") from error


class NoCache(dict[str, Any]):
    """In place of subword-nmt's, which would grow with the corpus; threads may share this one."""

    def __setitem__(self, key: str, value: Any) -> None:
        """Keep nothing."""


def bpe(codes: Path) -> Step:
    """subword-nmt apply-bpe with the merges in a file.

    Raises:
        UserError: see `read_merges`.
    """
    merges = read_merges(codes)
    merges.cache = NoCache()

    @functools.lru_cache(CACHE)
    def parts(word: str) -> str:
        return " ".join(merges.segment_tokens([word]))

    def segment(line: str) -> str:
        inner = line.strip(EDGES)
        done = " ".join([parts(word) for word in inner.split(" ") if word])
        # As subword-nmt does, which keeps what stands around the words.
        return done if inner == line else line.replace(inner, done, 1) if inner else line

    return segment


def refuse_fastbpe(codes: Path) -> None:
    """Raise a `UserError` at merges of fastBPE, of which subword-nmt would not apply the last ones.

    Both join the end of a word, </w>, to its last letter. But subword-nmt does so only where the
    file says it is of version 0.2. In version 0.1 some merges join the end alone. This is for text
    to train on: a model that was trained on such text goes on with its merges as they are.
    """
    merges = read_merges(codes)
    symbols = {symbol for pair in merges.bpe_codes for symbol in pair}
    joins_end = any(symbol.endswith("</w>") for symbol in symbols)
    if merges.version == (0, 1) and joins_end and "</w>" not in symbols:
        raise UserError(
            f"the BPE codes {codes} look like fastBPE's: put a line '#version: 0.2' before them; "
            "for a model that was trained without it, use subword-nmt apply-bpe"
        )


class Pipeline:
    """Steps in their order, as one function from a line to a line.

    Args:
        steps: keys of `STEPS`, and "bpe".
        language: its code, see `languages.short_code`.
        codes: the BPE merges, for the step "bpe".

    Raises:
        UserError: for an unknown step, missing or bad codes.
    """

    def __init__(self, steps: Sequence[str], language: str, codes: Path | None = None) -> None:
        def merges(language: str) -> Step:
            if codes is None:
                raise UserError("the step bpe needs a file of merges: name it with --codes")
            return bpe(codes)

        known = {**STEPS, "bpe": merges}
        self.arguments = tuple(steps), language, codes
        self.steps = [look_up(known, x, "step", "the preprocessing")(language) for x in steps]

    def __call__(self, line: str) -> str:
        """The line after all steps; it holds no line end."""
        for step in self.steps:
            line = step(line)
        return line

    def __reduce__(self) -> tuple:
        # Where processes do not fork, a worker makes its own.
        return Pipeline, self.arguments


# --- and back ------------------------------------------------------------------------------------


CHARACTER = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303f\u30fc\uff01-\uff60]"
BETWEEN_CHARACTERS = regex.compile(f"(?<={CHARACTER}) +(?={CHARACTER})")
AROUND_CHARACTERS = regex.compile(f"({CHARACTER})")
AROUND_WIDE = regex.compile("(?<=[\uff01-\uff60]) +| +(?=[\uff01-\uff60])")  # as a full-width comma
# What Moses' tokenizer cuts off, and its detokenizer does not join again: soft hyphens and joiners
# within words, stops and commas of other scripts, times.
WITHIN_WORDS = regex.compile(" *([\u00ad\u200c\u200d\u2060]) *")
# Of Arabic, Indic, Burmese and Ethiopic scripts.
AFTER_WORDS = regex.compile(" +(?=[\u060c\u061b\u061f\u06d4\u0964\u0965\u104a\u104b\u1362])")
IN_TIMES = regex.compile(r"(?<=\b\d\d?): (?=\d\d\b)")


def join_characters(line: str) -> str:
    """Chinese or Japanese text without the spaces between its characters."""
    return BETWEEN_CHARACTERS.sub("", line)


def split_characters(line: str) -> str:
    """Text with a space around each Chinese or Japanese character."""
    return AROUND_CHARACTERS.sub(r" \1 ", line)


def detokenize(lines: Sequence[str], language: str) -> list[str]:
    """Text from Moses tokens: punctuation attached, `&apos;` and its like unescaped.

    As Moses does it, but for what its tokenizer alone takes apart, see `WITHIN_WORDS`.
    """
    detokenizer, english = MosesDetokenizer(short_code(language)), MosesDetokenizer("en")

    def text(line: str) -> str:
        tokens = line.split()
        try:
            joined = detokenizer.detokenize(tokens)
        except TypeError:  # sacremoses, of Czech words with an apostrophe and a dash: "e' - mail"
            joined = english.detokenize(tokens)
        return IN_TIMES.sub(":", AFTER_WORDS.sub("", WITHIN_WORDS.sub(r"\1", joined)))

    if not has_spaces(language):  # of which sacremoses leaves some
        return [AROUND_WIDE.sub("", text(line)) for line in lines]
    return [text(line) for line in lines]
