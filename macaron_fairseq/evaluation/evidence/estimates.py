"""Whether a scheme is better than another, by many tasks and seeds: estimates, tests and power.

Runs are paired by task and seed. Each task has a bootstrap interval. Over tasks there are a
mixed-effects model, two tests corrected for the number of schemes, and the power of the
comparison. SciPy and statsmodels, the extra `evidence`, do the statistics.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.evidence import records
from macaron_fairseq.evaluation.evidence.records import EDITS, Run
from macaron_fairseq.evaluation.scores import metrics, p_values

SAMPLES = 10_000
SAMPLES_AT_ONCE = 500
LEVEL = 0.95
POWER = 0.8


# --- One task ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskDifference:
    """A scheme against the baseline on one task: the mean over seeds, and a bootstrap interval."""

    task: str
    scheme: str
    metric: str
    seeds: list[int]
    left_out: list[int]  # seeds that one side lacks
    baseline_score: float
    score: float
    by_seed: list[float]  # differences
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Of the means, without what their rounding would make of equal ones."""
        return round(self.score - self.baseline_score, 12)

    @property
    def gain(self) -> float:
        """The difference, above 0 where the scheme is better."""
        return -self.difference if self.metric in metrics.LOWER_IS_BETTER else self.difference


def of_task(base: Sequence[Run], other: Sequence[Run]) -> TaskDifference:
    """The paired difference of two schemes on one task.

    Args:
        base: the baseline's runs.
        other: the scheme's, of the same task.

    Raises:
        UserError: if no seed has both sides, or the runs are not comparable.
    """
    records.refuse_different([*base, *other])
    sides = [{run.seed: run for run in runs} for runs in (base, other)]
    seeds = sorted(set(sides[0]) & set(sides[1]))
    if not seeds:
        raise UserError(
            f"{base[0].task}: {base[0].scheme} and {other[0].scheme} have no seed in common"
        )
    pairs = [(sides[0][seed], sides[1][seed]) for seed in seeds]
    scores = np.array([[exact_score(run) for run in pair] for pair in pairs])
    drawn = bootstrap(pairs, SAMPLES)
    low, high = quantiles(drawn[:, 1] - drawn[:, 0])
    return TaskDifference(
        task=base[0].task,
        scheme=other[0].scheme,
        metric=base[0].metric,
        seeds=seeds,
        left_out=sorted(set(sides[0]) ^ set(sides[1])),
        baseline_score=float(scores[:, 0].mean()),
        score=float(scores[:, 1].mean()),
        by_seed=[round(float(x), 12) for x in scores[:, 1] - scores[:, 0]],
        low=low,
        high=high,
    )


def exact_score(run: Run) -> float:
    """The score without its record's rounding, which would make equal differences unequal."""
    if run.metric != "WER":
        return run.score
    return 100 * sum(count > 0 for count in records.numbers(run.items)) / run.kinds.count


def score_interval(runs: Sequence[Run]) -> tuple[float, float]:
    """The interval of the mean score of a scheme's runs of one task, over seeds and test items.

    Raises:
        UserError: if the runs are not comparable.
    """
    records.refuse_different(runs)
    return quantiles(bootstrap([(run,) for run in runs], SAMPLES)[:, 0])


def quantiles(drawn: np.ndarray) -> tuple[float, float]:
    """The bounds of an interval of `LEVEL`."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def bootstrap(pairs: Sequence[tuple[Run, ...]], samples: int) -> np.ndarray:
    """The mean scores of samples that are drawn from seeds and test items, the same for all sides.

    Args:
        pairs: of each seed the runs of the sides, of one task.
        samples: how many.

    Returns:
        samples x sides; NaN where there are fewer than two items, which tell nothing of others.
    """
    rng = np.random.default_rng(1)
    kinds, metric = pairs[0][0].kinds, pairs[0][0].metric
    items = kinds.count if kinds.kind == EDITS else len(drawn_groups(pairs))
    if items < 2:
        return np.full((samples, len(pairs[0])), math.nan)
    # How often each seed and item is drawn; of items for some samples at a time, which needs less
    # memory.
    of_seeds = rng.multinomial(len(pairs), np.full(len(pairs), 1 / len(pairs)), samples)
    found = []
    for some in np.split(of_seeds, range(SAMPLES_AT_ONCE, samples, SAMPLES_AT_ONCE)):
        of_items = rng.multinomial(items, np.full(items, 1 / items), len(some))
        if kinds.kind == EDITS:
            found.append(100 * of_edits(pairs, metric, some, of_items))
        else:
            found.append(of_ngrams(pairs, some, of_items))
    return np.concatenate(found)


def of_edits(
    pairs: Sequence[tuple[Run, ...]], metric: str, of_seeds: np.ndarray, of_items: np.ndarray
) -> np.ndarray:
    """Of an error rate, which is a quotient of sums over items."""
    errors = np.array([[records.numbers(run.items) for run in pair] for pair in pairs])
    lengths = np.array(records.numbers(pairs[0][0].kinds.reference))
    if metric == "WER":
        errors, lengths = np.minimum(errors, 1), np.ones_like(lengths)
    # seeds x sides x items
    sums = np.einsum("bs,ski,bi->bk", of_seeds, errors, of_items, optimize=True)
    return sums / len(pairs) / (of_items @ lengths)[:, None]


def of_ngrams(
    pairs: Sequence[tuple[Run, ...]], of_seeds: np.ndarray, of_items: np.ndarray
) -> np.ndarray:
    """Of BLEU, whose counts are summed over groups of items."""
    chosen = drawn_groups(pairs)
    reference = np.array(pairs[0][0].kinds.reference)[chosen, None]
    found = np.zeros((len(of_items), len(pairs[0])))
    for i, pair in enumerate(pairs):
        for side, run in enumerate(pair):
            groups = np.concatenate([reference, np.array(run.items)[chosen]], axis=1)
            counts = of_items @ groups
            for j in np.flatnonzero(of_seeds[:, i]):
                found[j, side] += of_seeds[j, i] * metrics.bleu_of_counts(
                    counts[j].tolist(), run.metric
                )
    return found / len(pairs)


def drawn_groups(pairs: Sequence[tuple[Run, ...]]) -> np.ndarray:
    """Which groups of items have any: of fewer sentences than groups some are empty."""
    return np.flatnonzero(pairs[0][0].kinds.reference)


# --- Many tasks ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """The mean effect over tasks, with its interval."""

    estimate: float
    low: float
    high: float
    between_tasks: float | None  # its standard deviation; None: no mixed-effects model was fitted


@dataclass(frozen=True)
class Overall:
    """A scheme against the baseline over the tasks of a family."""

    family: str
    scheme: str
    metric: str
    tasks: int
    runs: int  # pairs of runs
    effect: Effect  # difference of the score, by the mixed-effects model
    better: int  # tasks on which the scheme is better
    worse: int  # and those on which it is worse; the others are equal
    wilcoxon: float | None  # p values; None: one task
    wilcoxon_holm: float | None
    sign: float | None
    sign_holm: float | None
    detectable: float | None  # with POWER at the level of the interval


def over_tasks(
    family: str, found: Sequence[TaskDifference], schemes: Iterable[str] = ()
) -> list[Overall]:
    """All schemes of a family of tasks, p values corrected for their number.

    Args:
        family: its name.
        found: the differences of its tasks, of all schemes; of one metric.
        schemes: what is to be compared in the end, next to those that are here.
    """
    by_scheme: dict[str, list[TaskDifference]] = {}
    for one in found:
        by_scheme.setdefault(one.scheme, []).append(one)
    tests = {scheme: tests_over_tasks(theirs) for scheme, theirs in by_scheme.items()}
    number = len({*by_scheme, *schemes})
    corrected = [
        p_values.holm({scheme: p[i] for scheme, p in tests.items()}, number) for i in (0, 1)
    ]
    result = []
    for scheme, theirs in by_scheme.items():
        effect = mixed_effects({one.task: one.by_seed for one in theirs})
        result.append(
            Overall(
                family=family,
                scheme=scheme,
                metric=theirs[0].metric,
                tasks=len(theirs),
                runs=sum(len(one.seeds) for one in theirs),
                effect=effect,
                better=sum(one.gain > 0 for one in theirs),
                worse=sum(one.gain < 0 for one in theirs),
                wilcoxon=tests[scheme][0],
                wilcoxon_holm=corrected[0][scheme],
                sign=tests[scheme][1],
                sign_holm=corrected[1][scheme],
                detectable=detectable([one.difference for one in theirs]),
            )
        )
    return result


def mixed_effects(differences: Mapping[str, Sequence[float]]) -> Effect:
    """The mean effect with a random intercept for each task (REML), and its interval.

    The interval is Student's, with one degree of freedom fewer than tasks. Where each task has one
    seed, the effects of task and seed are not apart: the interval is that of the means. So it is
    where the seeds of no task differ, or no method fits the model. A single task has the interval
    of its seeds, and with one seed none: it is infinitely wide. So it is where all differences are
    the same, which happens by chance where scores take few values.

    Args:
        differences: of each task, by seed.
    """
    p_values.require_packages()
    import statsmodels.api as models
    from scipy import stats

    between: float | None = None
    means = [float(np.mean(values)) for values in differences.values()]
    values = np.concatenate([np.asarray(x, dtype=float) for x in differences.values()])
    units = means if len(means) > 1 else [*values]
    estimate, error = float(np.mean(units)), standard_error(units)
    fitted = None
    if len(means) > 1 and any(np.ptp(x) > 0 for x in differences.values()):
        groups = [task for task, x in differences.items() for _ in x]
        fitted = converged(models.MixedLM(values, np.ones((len(values), 1)), groups=groups))
    if fitted:
        estimate = float(fitted.fe_params[0])
        between = math.sqrt(max(float(np.asarray(fitted.cov_re)[0, 0]), 0.0))
        # Of generalised least squares. statsmodels' own takes in how uncertain the variances are,
        # which is wrong where tasks have different numbers of seeds, and at the bound 0.
        weights = [len(x) / (fitted.scale + len(x) * between**2) for x in differences.values()]
        error = 1 / math.sqrt(sum(weights))
    t = float(stats.t.ppf((1 + LEVEL) / 2, len(units) - 1)) if len(units) > 1 else math.inf
    half = t * error if error else math.inf
    return Effect(estimate, estimate - half, estimate + half, between)


def converged(model: Any) -> Any:
    """A mixed-effects model's fit by REML; None if no method finds the maximum.

    Powell's method needs no gradient, which does not exist where the variance between tasks is 0.
    """
    for method in ("powell", "nm", "bfgs"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this variance is at its bound, 0
            try:
                fitted = model.fit(reml=True, method=method)
            except np.linalg.LinAlgError:
                continue
        if fitted.converged:
            return fitted
    return None


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of independent values; 0 of a single one, and of values that are the same."""
    if np.ptp(values) <= p_values.SAME:  # a single one's, too
        return 0.0
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def tests_over_tasks(found: Sequence[TaskDifference]) -> tuple[float | None, float | None]:
    """The p values of Wilcoxon's signed-rank test and of the sign test, two-sided.

    Differences of 0 are left out of both.
    """
    from scipy import stats

    values = [one.difference for one in found]
    unequal = [value for value in values if value]
    wilcoxon = p_values.signed_rank(values)
    if len(values) < 2 or not unequal:
        return wilcoxon, wilcoxon  # None of a single one, 1 where all are 0; so is the sign test's
    sign = stats.binomtest(sum(value > 0 for value in unequal), len(unequal))
    return wilcoxon, float(sign.pvalue)


def detectable(differences: Sequence[float]) -> float | None:
    """The smallest mean difference that a t test over tasks finds with a probability `POWER`.

    None for a single task, and for differences that are all the same: see `p_values.paired_t`.
    """
    if len(differences) < 2 or np.ptp(differences) <= p_values.SAME:
        return None
    p_values.require_packages()
    from statsmodels.stats.power import TTestPower

    size = TTestPower().solve_power(nobs=len(differences), alpha=1 - LEVEL, power=POWER)
    return float(np.atleast_1d(size)[0] * np.std(differences, ddof=1))
