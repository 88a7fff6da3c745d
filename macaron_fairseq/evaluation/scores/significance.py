"""Whether a difference in BLEU is more than chance in the choice of test sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.files import read_lines
from macaron_fairseq.common.progress import bar
from macaron_fairseq.evaluation.scores import intervals, metrics
from macaron_fairseq.evaluation.training.runs import Run

METRIC = "BLEU"


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
    shown = bar("paired bootstrap", items=jobs)
    return [found for test, base, others in shown for found in compare_on(test, base, others)]


def compare_on(test: str, base: Run, others: Sequence[Run]) -> list[Difference]:
    """The paired bootstrap on one test set."""
    systems, scored = [base, *others], base.tests[test]
    results, signature = paired_bootstrap(
        [[*read_lines(run.tests[test].hypotheses)] for run in systems],
        [*read_lines(scored.reference)],
        metrics.detokenised_bleu(base.manifest["data"]["target"], scored.lowercase),
    )
    for run, (score, _) in zip(systems, results, strict=True):
        recorded = run.tests[test].scores[METRIC]
        if abs(score - recorded) > 0.01:
            raise UserError(
                f"{run.tests[test].hypotheses} has {METRIC} {score:.2f} but its scores.json "
                f"says {recorded:.2f}: run the stage evaluate again"
            )
    baseline_score = results[0][0]
    return [
        Difference(
            test=test,
            arch=run.arch,
            seed=run.seed,
            baseline_score=baseline_score,
            score=score,
            difference=score - baseline_score,
            p_value=p,
            signature=signature,
        )
        for run, (score, p) in zip(others, results[1:], strict=True)
    ]


def paired_bootstrap(
    translations: Sequence[Sequence[str]], references: Sequence[str], metric: Metric
) -> tuple[list[tuple[float, float]], str]:
    """sacreBLEU's paired bootstrap over sentences.

    Args:
        translations: the baseline's, then those that are compared with it.
        references: of each sentence.
        metric: such as sacreBLEU's `BLEU`, without references.

    Returns:
        The score of each, and the p value of its difference to the baseline, which is 1 where both
        scores are the same. And the metric's signature.
    """
    systems = [(str(i), lines) for i, lines in enumerate(translations)]
    signatures, table = PairedTest(
        systems, {"metric": metric}, [[*references]], test_type="bs", n_samples=intervals.SAMPLES
    )()
    (name,) = signatures  # as sacreBLEU calls it: chrF is chrF2
    base, *others = cast(list[Result], table[name])
    # sacreBLEU counts samples whose difference is greater than that of the whole, of which two
    # equal translations have none: it would call them different with p = 1 / (samples + 1).
    # Nor do samples of one sentence differ from one another, whatever its translations are.
    found = [
        (x.score, 1.0 if x.score == base.score or len(references) == 1 else cast(float, x.p_value))
        for x in others
    ]
    return [(base.score, 1.0), *found], str(signatures[name])
