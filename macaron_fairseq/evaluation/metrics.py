"""BLEU of four kinds of tokens, and chrF; sacreBLEU counts, whatever the tokens are."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.bleu import BLEUScore

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.text.tokenization import Pipeline


@dataclass(frozen=True)
class Score:
    """A score from 0 to 100, how it came about, and all that is needed to compute it again."""

    metric: str
    score: float
    signature: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.metric} {self.score:.2f} ({self.signature})"


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str, lowercase: bool
) -> Score:
    """sacreBLEU of detokenised text, with its own tokenisation of the target language.

    Raises:
        UserError: if that tokenisation, of Japanese or Korean, is not installed.
    """
    try:
        metric = BLEU(lowercase=lowercase, trg_lang=language)
    except RuntimeError as error:
        raise UserError(" ".join(str(error).split())) from error
    result = metric.corpus_score(hypotheses, [references])
    return Score("BLEU", result.score, metric.get_signature().format(), detail(result))


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool) -> Score:
    """chrF of detokenised text: characters of up to 6, no words, spaces left out."""
    metric = CHRF(lowercase=lowercase)
    result = metric.corpus_score(hypotheses, [references])
    return Score("chrF", result.score, metric.get_signature().format())


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
    would else never match.

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


def detail(result: BLEUScore) -> str:
    """What BLEU is made of: n-gram precisions, brevity penalty, lengths in tokens."""
    precisions = "/".join(f"{precision:.1f}" for precision in result.precisions)
    return (
        f"{precisions} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
        f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
    )
