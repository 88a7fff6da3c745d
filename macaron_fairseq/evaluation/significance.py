"""Whether a difference in BLEU is more than chance in the choice of test sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result
from tqdm import tqdm

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.files import read_lines
from macaron_fairseq.evaluation.runs import Run, Scored

METRIC = "BLEU"
SAMPLES = 1000


@dataclass
class Difference:
    """One architecture against the baseline, on one test set, trained with one seed."""

    test: str
    arch: str
    seed: int
    baseline_score: float
    score: float
    difference: float
    p_value: float
    signature: str


def compare(runs: Sequence[Run], baseline: str) -> list[Difference]:
    """sacreBLEU's paired bootstrap of each run and the baseline's run with the same seed.

    Raises:
        UserError: if the hypotheses of a run do not have the score that is recorded for them.
    """
    jobs = [
        (test, base, others)
        for test, scored in runs[0].tests.items()
        if METRIC in scored.scores
        for base in runs
        if base.arch == baseline
        if (others := [run for run in runs if run.seed == base.seed and run is not base])
    ]
    bar = tqdm(jobs, desc="paired bootstrap", disable=None)
    return [found for test, base, others in bar for found in compare_on(test, base, others)]


def compare_on(test: str, base: Run, others: Sequence[Run]) -> list[Difference]:
    """The paired bootstrap on one test set."""
    systems = [base, *others]
    texts = [list(read_lines(run.tests[test].hypotheses)) for run in systems]
    scored = base.tests[test]
    signatures, table = PairedTest(
        [(run.arch, text) for run, text in zip(systems, texts, strict=True)],
        {METRIC: metric(scored, base.manifest["data"]["target"])},
        [list(read_lines(scored.reference))],
        test_type="bs",
        n_samples=SAMPLES,
    )()
    results = cast(list[Result], table[METRIC])
    for run, result in zip(systems, results, strict=True):
        recorded = run.tests[test].scores[METRIC]
        if abs(result.score - recorded) > 0.01:
            raise UserError(
                f"{run.tests[test].hypotheses} has {METRIC} {result.score:.2f} but its scores.json "
                f"says {recorded:.2f}: run the stage evaluate again"
            )
    return [
        Difference(
            test=test,
            arch=run.arch,
            seed=run.seed,
            baseline_score=results[0].score,
            score=result.score,
            difference=result.score - results[0].score,
            p_value=p_value(results[0], result),
            signature=str(signatures[METRIC]),
        )
        for run, result in zip(others, results[1:], strict=True)
    ]


def metric(scored: Scored, language: str, effective_order: bool = False) -> BLEU:
    """BLEU as `macaron-fairseq score` computes it; scores tell whether it is the same.

    Args:
        scored: with or without regard to case.
        language: of the translations.
        effective_order: for a single sentence: only orders count of which it has n-grams.

    Raises:
        UserError: if sacreBLEU's tokenisation of that language is not installed.
    """
    try:
        return BLEU(lowercase=scored.lowercase, trg_lang=language, effective_order=effective_order)
    except RuntimeError as error:
        raise UserError(" ".join(str(error).split())) from error


def p_value(base: Result, result: Result) -> float:
    """The p value of a result, which is 1 where there is no difference.

    sacreBLEU counts samples whose difference is greater than that of the whole, of which two equal
    translations have none: it would call them different with p = 1 / (SAMPLES + 1).
    """
    if result.score == base.score:
        return 1.0
    return cast(float, result.p_value)
