"""Lines of text and what is done to them before training: the steps of Moses, then BPE.

A step is named, and a list of names is a recipe's preprocessing: `Pipeline(["normalize",
"tokenize"], "de")` is a function from a line to a line. `process` applies it on all cores.
"""

import difflib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes
from subword_nmt.apply_bpe import BPE

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.files import Block
from macaron_fairseq.common.workers import Workers

Step = Callable[[str], str]

LINES = 2000  # handed to a worker at once
CACHE = 100_000  # words whose segmentation is kept, some 30 MB
EDGES = " \r"  # white space that may stand at an end of a line

# --- steps ---------------------------------------------------------------------------------------


def normalize(language: str) -> Step:
    """Moses normalize-punctuation.perl: straight quotes, plain dashes, no pseudo-spaces."""
    normalizer = MosesPunctNormalizer(language)
    # Perl sees the line end, and a rule for `."` in German, French and Spanish needs it there.
    return lambda line: normalizer.normalize(line + "\n")


def printable(language: str) -> Step:
    """Moses remove-non-printing-char.perl: what Unicode classes as "other" becomes a space."""
    return functools.partial(regex.compile(r"\p{C}").sub, " ")


def lowercase(language: str) -> Step:
    """Lower case in any script."""
    return str.lower


def tokenize(language: str) -> Step:
    """Moses tokenizer.perl: tokens between single spaces, `&|<>'"[]` escaped."""
    return functools.partial(tokenizer(language).tokenize, return_str=True)


def tokenize_hyphens(language: str) -> Step:
    """The same with its option -a: a hyphen between letters becomes the token @-@."""
    tokens = tokenizer(language).tokenize
    return functools.partial(tokens, aggressive_dash_splits=True, return_str=True)


STEPS: dict[str, Callable[[str], Step]] = {
    "normalize": normalize,
    "printable": printable,
    "lowercase": lowercase,
    "tokenize": tokenize,
    "tokenize-hyphens": tokenize_hyphens,
}
NAMES = [*STEPS, "bpe"]  # which takes a file of merges, not a language


class Tokenizer(MosesTokenizer):
    """The same tokens, many times sooner where full stops stand inside a line.

    sacremoses makes the set of all letters anew for each question about a letter.
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


def bpe(codes: Path) -> Step:
    """subword-nmt apply-bpe with the merges in a file.

    Raises:
        UserError: if it is not such a file.
    """
    try:
        with codes.open(encoding="utf-8", newline="\n") as file:
            merges = BPE(file)
    except OSError as error:
        raise UserError(f"cannot read the BPE codes {codes}: {error.strerror}") from error
    except (SystemExit, ValueError) as error:
        raise UserError(f"{codes} is not a file of BPE codes as subword-nmt writes it") from error

    @functools.lru_cache(CACHE)
    def parts(word: str) -> str:
        merges.cache.clear()  # subword-nmt's own, which would grow with the corpus
        return " ".join(merges.segment_tokens([word]))

    def segment(line: str) -> str:
        inner = line.strip(EDGES)
        done = " ".join([parts(word) for word in inner.split(" ") if word])
        # As subword-nmt does, which keeps what stands around the words.
        return done if inner == line else line.replace(inner, done, 1) if inner else line

    return segment


class Pipeline:
    """Steps in their order, as one function from a line to a line.

    Args:
        steps: names out of `NAMES`.
        language: a two-letter code.
        codes: the BPE merges, for the step "bpe".

    Raises:
        UserError: for an unknown step, missing or bad codes.
    """

    def __init__(self, steps: Sequence[str], language: str, codes: Path | None = None) -> None:
        self.arguments = tuple(steps), language, codes
        self.steps: list[Step] = []
        for name in steps:
            if name in STEPS:
                self.steps.append(STEPS[name](language))
            elif name != "bpe":
                near = sorted(NAMES, key=lambda known: -similarity(known, name))
                raise UserError(f"there is no step '{name}': choose from {', '.join(near)}")
            elif codes is None:
                raise UserError("the step bpe needs a file of merges: name it with --codes")
            else:
                self.steps.append(bpe(codes))

    def __call__(self, line: str) -> str:
        """The line after all steps; it holds no line end."""
        for step in self.steps:
            line = step(line)
        return line

    def __reduce__(self) -> tuple:
        # Where processes do not fork, a worker makes its own.
        return Pipeline, self.arguments


def similarity(one: str, other: str) -> float:
    """How alike two words are, from 0 to 1."""
    return difflib.SequenceMatcher(None, one, other).ratio()


# --- on all cores --------------------------------------------------------------------------------


def process(blocks: Iterable[Block], pipeline: Pipeline, workers: int = 1) -> Iterator[bytes]:
    """Each block after the pipeline, in order, by that many processes; 1 is this process.

    Never reads further ahead than 2 * workers blocks, whatever the corpus' size.

    Raises:
        UserError: if a block is not UTF-8, or a worker is killed.
    """
    work = functools.partial(process_block, pipeline=pipeline)
    if workers == 1:
        yield from map(work, blocks)
        return
    with Workers(workers, work, "a smaller --workers") as pool:
        yield from pool.map(blocks)


def process_block(block: Block, pipeline: Pipeline) -> bytes:
    """The block's lines after the pipeline, each ended by a newline."""
    return "".join([pipeline(line) + "\n" for line in block.lines()]).encode()
