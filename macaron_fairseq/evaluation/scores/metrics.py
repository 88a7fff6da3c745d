"""BLEU of three kinds of tokens, chrF, and the error rates of grapheme-to-phoneme conversion.

sacreBLEU counts n-grams, whatever the tokens are. `METRICS`, at the end, has all that others know
of a metric.
"""

import functools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.bleu import BLEUScore

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted
from macaron_fairseq.text.languages import has_spaces, short_code
from macaron_fairseq.text.tokenization import Pipeline

# Languages without spaces between words, of which sacreBLEU knows no words by their code.
WITHOUT_TOKENISER = "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "yue"


@dataclass(frozen=True)
class Score:
    """A score from 0 to 100, how it came about, and all that is needed to compute it again."""

    metric: str
    score: float
    signature: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.metric} {self.score:.2f} ({self.signature})"


# Of hypotheses, references, their language, and whether to ignore case.
Compute = Callable[[Sequence[str], Sequence[str], str, bool], Score]


@dataclass(frozen=True)
class Metric:
    """What command lines, tables and records know of a metric."""

    title: str  # in tables and files
    help: str
    compute: Compute
    of_tokens: bool = False  # whether it compares the model's tokens, not detokenised text
    lower_is_better: bool = False
    has_counts: bool = False  # whether `edits` or `ngram_counts` give it for any sentences drawn


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, lowercase: bool
) -> Score:
    """sacreBLEU of detokenised text, with its own tokenisation of the target language.

    Raises:
        UserError: if that tokenisation, of Japanese or Korean, is not installed.
    """
    metric = detokenised_bleu(language, lowercase)
    result = metric.corpus_score(hypotheses, [references])
    return Score("BLEU", result.score, metric.get_signature().format(), detail(result))


def detokenised_bleu(language: str, lowercase: bool = False, effective_order: bool = False) -> BLEU:
    """sacreBLEU's metric of detokenised text.

    Args:
        language: of the translations, such as zh, zho or zh-CN.
        lowercase: whether to ignore case.
        effective_order: for a single sentence: only orders count of which there are n-grams.

    Raises:
        UserError: if there is no such language, or its tokenisation is not installed, that of
            Japanese or Korean.
    """
    code = language_code(language)
    if code in WITHOUT_TOKENISER:
        warn_of_phrases(code)
    try:
        return BLEU(lowercase=lowercase, trg_lang=code, effective_order=effective_order)
    except RuntimeError as error:
        raise UserError(" ".join(str(error).split())) from error


@functools.cache
def warn_of_phrases(language: str) -> None:
    """Say once that BLEU counts phrases as words."""
    print(
        f"warning: sacreBLEU cuts {language} at spaces alone, so BLEU counts phrases as words: "
        "take chrF, or score the hypotheses by `sacrebleu --tokenize flores200`",
        file=sys.stderr,
    )


def bleu_of_tokens(lowercase: bool = False, effective_order: bool = False) -> BLEU:
    """sacreBLEU's metric of tokens between spaces, as they are."""
    return BLEU(lowercase=lowercase, tokenize="none", force=True, effective_order=effective_order)


def language_code(language: str) -> str:
    """A language as sacreBLEU knows it, such as zh for zho and zh-CN; see `short_code`.

    Raises:
        UserError: if it is not such a code.
    """
    code = short_code(language)
    if not re.fullmatch("[a-z]{2,3}", code):
        raise UserError(f"'{language}' is not a language: give two or three letters, such as de")
    return code


def chrf(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool, word_order: int = 0
) -> Score:
    """chrF of detokenised text: character n-grams up to length 6, spaces left out.

    Args:
        hypotheses: one for each reference.
        references: raw text.
        lowercase: whether to ignore case.
        word_order: up to which length n-grams of words count, too: 0 for chrF, 2 for chrF++.
    """
    metric = CHRF(lowercase=lowercase, word_order=word_order)
    result = metric.corpus_score(hypotheses, [references])
    return Score("chrF" + "+" * word_order, result.score, metric.get_signature().format())


def ter(
    hypotheses: Sequence[str], references: Sequence[str], language: str, lowercase: bool
) -> Score:
    """Translation edit rate of detokenised text: edits and shifts for each word, in %.

    In Chinese and Japanese, whose words have no spaces between them, a character is a word.
    """
    by_character = not has_spaces(language_code(language))
    metric = TER(case_sensitive=not lowercase, normalized=by_character, asian_support=by_character)
    result = metric.corpus_score(hypotheses, [references])
    return Score("TER", result.score, metric.get_signature().format())


def tokenised_bleu(tokens: Sequence[str], references: Sequence[str], lowercase: bool) -> Score:
    """multi-bleu.perl of the model's own tokens; comparable between equal tokenisations only.

    Args:
        tokens: of the model, without BPE marks, separated by spaces.
        references: tokenised in the same way.
        lowercase: compare lower case, where multi-bleu.perl -lc lowers ASCII letters alone.
    """
    return multi_bleu("tokenised BLEU", "model", tokens, references, lowercase)


def compound_split_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, lowercase: bool
) -> Score:
    """BLEU as in papers on WMT'14: multi-bleu.perl of Moses tokens with hyphened words split.

    The splitting is that of tensor2tensor's utils/get_ende_bleu.sh. Punctuation is normalised on
    both sides, as it is in what the models are trained on: quotation marks in the raw reference
    would otherwise never match.

    Args:
        hypotheses: detokenised.
        references: raw text.
        language: whose tokenizer is used.
        lowercase: compare lower case.
    """
    tokens = Pipeline(["normalize", "tokenize"], language)
    split_hypotheses, split_references = (
        [split_compounds(tokens(line)) for line in text] for text in (hypotheses, references)
    )
    return multi_bleu(
        "compound-split BLEU",
        "moses-normalized-compound-split",
        split_hypotheses,
        split_references,
        lowercase,
    )


def split_compounds(tokens: str) -> str:
    """Make a token of each hyphen inside a word, as `s/(\\S)-(\\S)/$1 ##AT##-##AT## $2/g` does.

    The letter after a hyphen is used up: of "a-b-c" only the first is split, as in Perl.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)


def multi_bleu(
    name: str, tokens: str, hypotheses: Sequence[str], references: Sequence[str], lowercase: bool
) -> Score:
    """BLEU as Moses' multi-bleu.perl defines it: of tokens as they are, without smoothing.

    The score is 0 if no n-gram of one of the four orders matches, or there is none.
    """
    # force: sacreBLEU would warn of tokens, which are meant here.
    metric = BLEU(tokenize="none", smooth_method="none", force=True, lowercase=lowercase)
    result = metric.corpus_score(hypotheses, [references])
    signature = f"tokens:{tokens}|{metric.get_signature().format()}"
    return Score(name, result.score, signature, detail(result))


def wer(tokens: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """The share of sequences with any error: for grapheme-to-phoneme, the word error rate.

    Args:
        tokens: of the model, separated by spaces.
        references: in the same form.
        lowercase: compare lower case.
    """
    found = edits(tokens, references, lowercase)
    wrong = sum(map(bool, found))
    signature = f"error:sequence|{case(lowercase)}tokens:model|nrefs:1|sequences:{len(found)}"
    return Score("WER", 100 * wrong / len(found), signature, f"{wrong} of {len(found)} are wrong")


def per(tokens: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Edits for each token of the references: for grapheme-to-phoneme, the phone error rate."""
    number = sum(edits(tokens, references, lowercase))
    length = sum(len(x.split()) for x in references)
    signature = f"error:edits|{case(lowercase)}tokens:model|nrefs:1|tokens:{length}"
    return Score(
        "PER",
        100 * number / length,
        signature,
        f"{counted(number, 'edit')} of {counted(length, 'token')}",
    )


def case(lowercase: bool) -> str:
    """What a signature of errors says of lower case; nothing, where case counts."""
    return "case:lc|" if lowercase else ""


def edits(tokens: Sequence[str], references: Sequence[str], lowercase: bool = False) -> list[int]:
    """The Levenshtein distance of each pair of sequences, in tokens."""
    return [
        edit_distance(*((x.lower() if lowercase else x).split() for x in pair))
        for pair in zip(tokens, references, strict=True)
    ]


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """How many tokens must be inserted, deleted or replaced to make one sequence of the other."""
    row = list(range(len(other) + 1))
    for i, token in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            above = row[j]
            row[j] = min(above + 1, row[j - 1] + 1, diagonal + (token != wanted))
            diagonal = above
    return row[-1]


def ngram_counts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    is_tokenised: bool,
    lowercase: bool,
) -> list[list[int]]:
    """What BLEU sums over sentences: the score of any selection of them is `bleu_of_counts`.

    Returns:
        for each sentence the tokens of the reference, then how many 1- to 4-grams the hypothesis
        has, then how many of these match.
    """
    metric = bleu_of_tokens(lowercase) if is_tokenised else detokenised_bleu(language, lowercase)
    found = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        result = metric.corpus_score([hypothesis], [[reference]])
        found.append([result.ref_len, *result.totals, *result.counts])
    return found


def bleu_of_counts(counts: Sequence[int], metric: str) -> float:
    """BLEU of a sum of what `ngram_counts` returns, smoothed as that metric is."""
    smoothing = "exp" if metric == "BLEU" else "none"
    reference, totals, matches = counts[0], list(counts[1:5]), list(counts[5:9])
    return BLEU.compute_bleu(matches, totals, totals[0], reference, smooth_method=smoothing).score


def detail(result: BLEUScore) -> str:
    """What BLEU is made of: n-gram precisions, brevity penalty, lengths in tokens."""
    precisions = "/".join(f"{precision:.1f}" for precision in result.precisions)
    return (
        f"{precisions} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
        f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
    )


# --- all of them ---------------------------------------------------------------------------------


def of_any_language(compute: Callable[[Sequence[str], Sequence[str], bool], Score]) -> Compute:
    """A metric that does not ask for the language, called as those that do."""
    return lambda hypotheses, references, _, lowercase: compute(hypotheses, references, lowercase)


# By their names on a command line, in the order of `macaron-fairseq score --help`.
METRICS = {
    "bleu": Metric(
        "BLEU",
        "sacreBLEU of detokenised text against the raw reference",
        bleu,
        has_counts=True,
    ),
    "chrf": Metric("chrF", "chrF of the same", of_any_language(chrf)),
    "chrf++": Metric(
        "chrF++",
        "the same with n-grams of one and two words",
        of_any_language(functools.partial(chrf, word_order=2)),
    ),
    "ter": Metric(
        "TER",
        "translation edit rate, in %, case counted unless --lowercase; the lower the better",
        ter,
        lower_is_better=True,
    ),
    "tokenised-bleu": Metric(
        "tokenised BLEU",
        "multi-bleu.perl of the model's tokens against --tokenized-reference; with --lowercase, "
        "papers report it for IWSLT'14",
        of_any_language(tokenised_bleu),
        of_tokens=True,
        has_counts=True,
    ),
    "compound-split-bleu": Metric(
        "compound-split BLEU",
        "multi-bleu.perl of Moses tokens with hyphenated words split; papers report it for "
        "WMT'14. They do not normalise punctuation on both sides as it is done here, which can "
        "raise the score",
        compound_split_bleu,
    ),
    "wer": Metric(
        "WER",
        "word error rate of grapheme-to-phoneme conversion: sequences of the model's tokens with "
        "any error, in %, against --tokenized-reference",
        of_any_language(wer),
        of_tokens=True,
        lower_is_better=True,
        has_counts=True,
    ),
    "per": Metric(
        "PER",
        "phone error rate: edits for each token of that reference, in %",
        of_any_language(per),
        of_tokens=True,
        lower_is_better=True,
        has_counts=True,
    ),
}
OF_TOKENS = tuple(name for name, metric in METRICS.items() if metric.of_tokens)
BY_TITLE = {metric.title: metric for metric in METRICS.values()}
LOWER_IS_BETTER = tuple(title for title, metric in BY_TITLE.items() if metric.lower_is_better)
