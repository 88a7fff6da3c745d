"""Differences of systems from a baseline, with intervals over seeds and tests over sentences."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import distillation_records
from distillation_records import Run

from macaron_fairseq.common.markdown import NOTHING
from macaron_fairseq.evaluation.scores import intervals, p_values, significance

METRICS = ("BLEU", "chrF")
GREEDY = "greedy BLEU"


def compared(
    base: Sequence[Run], other: Sequence[Run], reference: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """A system against a baseline, by the seeds that both have, on a test set's references.

    Returns:
        by metric the differences, their mean and its interval over seeds (Student's t). The p
        values are those of sacreBLEU's paired bootstrap over sentences, one for each seed.
    """
    sides = [{run.recipe.seeds[0]: run for run in side} for side in (base, other)]
    seeds = sorted({*sides[0]} & {*sides[1]})
    found: dict[str, dict[str, Any]] = {
        name: {"seeds": [], "differences": [], "p": []} for name in (*METRICS, GREEDY)
    }
    for seed in seeds:
        one, two = (side[seed] for side in sides)
        for name, of_metric in found.items():
            search, metric = ("greedy", "BLEU") if name == GREEDY else ("beam", name)
            difference, p = bootstrap(one, two, reference, search, metric)
            of_metric["seeds"].append(seed)
            of_metric["differences"].append(difference)
            of_metric["p"].append(p)
    for of_metric in found.values():
        values = of_metric["differences"]
        of_metric["mean"] = statistics.mean(values) if values else None
        of_metric["interval"] = intervals.over_seeds(values)
    return found


def main_comparisons(
    main: Sequence[str],
    baselines: Mapping[str, str],
    found: Mapping[str, Mapping[str, Any]],
    seeds: int,
) -> dict[str, dict[str, Any]]:
    """The planned comparisons that can be made: greedy BLEU minus that of the baseline.

    Args:
        main: all that were planned.
        baselines: of each system.
        found: by system what `compared` finds against its baseline.
        seeds: how many were asked for.

    Returns:
        By system the figures of `compared`, and its baseline. There is the greatest of the seeds' p
        values, and what Holm's correction for all planned comparisons makes of it. Those with fewer
        seeds have none: the rest is still to come. "one sign" says whether all seeds have
        the same.
    """
    made = {x: found[x][GREEDY] for x in main if x in found and found[x][GREEDY]["p"]}
    greatest = {name: max(one["p"]) for name, one in made.items()}
    whole = {name: p for name, p in greatest.items() if len(made[name]["p"]) == seeds}
    corrected = p_values.holm(whole, len(main))
    return {
        name: {
            "baseline": baselines[name],
            **one,
            "greatest": greatest[name],
            "holm": corrected.get(name),
            "one sign": one_sign(one["differences"]),
        }
        for name, one in made.items()
    }


def one_sign(differences: Sequence[float]) -> str:
    """Whether several differences have the same sign, in a word; a dash for one alone."""
    if len(differences) < 2:
        return NOTHING
    return "yes" if min(differences) > 0 or max(differences) < 0 else "no"


def bootstrap(
    base: Run, other: Run, reference: Sequence[str], search: str, name: str
) -> tuple[float, float]:
    """The difference in a metric on the task's test set, and its p value.

    Args:
        base: a run of the baseline.
        other: the run that is compared with it.
        reference: of each sentence.
        search: how both translated, beam or greedy.
        name: BLEU or chrF.
    """
    from sacrebleu.metrics import CHRF

    from macaron_fairseq.evaluation.scores.metrics import detokenised_bleu

    lowercase = "--lowercase" in base.recipe.score_flags
    metrics = {
        "BLEU": detokenised_bleu(base.recipe.target, lowercase),
        "chrF": CHRF(lowercase=lowercase),
    }
    texts = [distillation_records.unpack(run.result["hypotheses"][search]) for run in (base, other)]
    results, _ = significance.paired_bootstrap(texts, reference, metrics[name])
    (first, _), (second, p) = results
    return second - first, p
