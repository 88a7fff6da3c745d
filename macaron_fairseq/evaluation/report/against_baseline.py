"""Each run's BLEU against that of the baseline with the same seed: is the difference chance?"""

from collections.abc import Sequence
from dataclasses import dataclass

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.text_lines import read_lines
from macaron_fairseq.evaluation.scores import metrics, significance
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
    results, signature = significance.paired_bootstrap(
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
