"""GLUE's metrics, in per cent, of scikit-learn and SciPy."""

import math
from collections.abc import Mapping, Sequence

from glue_tasks import Task

from macaron_fairseq.common.errors import UserError, explain_missing

# How the scores from 0 to 5 of STS-B are learnt (Lu et al. 2019): near 0, from -1.5 to 1.
MIDDLE, SCALE = 3.0, 2.0


def target(label: str) -> float:
    """What a model of STS-B learns of a score."""
    return (float(label) - MIDDLE) / SCALE


def score(output: float) -> float:
    """The score that a model's output stands for, within 0 and 5."""
    return min(max(SCALE * output + MIDDLE, 0.0), 5.0)


def answers(task: Task, outputs: Sequence[Sequence[float]]) -> list[str]:
    """The labels of a model's outputs, as GLUE spells them.

    Args:
        task: the task.
        outputs: of each example, a number for each class, or one.

    Raises:
        UserError: if an output is not finite.
    """
    if not all(math.isfinite(x) for one in outputs for x in one):
        raise UserError(f"{task.name}: the model's outputs are not finite, so there is no answer")
    if task.is_regression:
        return [f"{score(one[0]):.4f}" for one in outputs]
    return [task.labels[max(range(len(one)), key=one.__getitem__)] for one in outputs]


def of_set(metrics: Sequence[str], given: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """The metrics of the answers to one set.

    A correlation with answers that are all the same is undefined, and counts as 0.

    Args:
        metrics: their names.
        given: the answers.
        right: the labels.

    Raises:
        UserError: if scikit-learn or SciPy is missing.
    """
    try:
        from scipy import stats
        from sklearn import metrics as sklearn
    except ImportError as error:
        explain_missing(error, "scikit-learn scipy", "glue")
    found: dict[str, float] = {}
    for name in metrics:
        if name == "Matthews":
            value = sklearn.matthews_corrcoef(right, given)
        elif name == "F1":
            value = sklearn.f1_score(right, given, pos_label="1", zero_division=0)
        elif name in ("Pearson", "Spearman"):
            numbers = [[float(x) for x in side] for side in (given, right)]
            is_flat = any(min(side) == max(side) for side in numbers)
            correlation = stats.pearsonr if name == "Pearson" else stats.spearmanr
            value = 0.0 if is_flat else correlation(*numbers)[0]
        else:
            value = sklearn.accuracy_score(right, given)
        found[name] = 100 * float(value)
        assert math.isfinite(found[name])
    return found


def of_task(
    task: Task, given: Mapping[str, Sequence[str]], right: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """The metrics of a task; MNLI's are the accuracies on its two dev sets.

    Args:
        task: the task.
        given: the answers, by the name of the dev set.
        right: the labels, as well.
    """
    if len(task.dev) == 1:
        (dev,) = task.dev
        return of_set(task.metrics, given[dev.name], right[dev.name])
    return {
        metric: of_set(["accuracy"], given[dev.name], right[dev.name])["accuracy"]
        for metric, dev in zip(task.metrics, task.dev, strict=True)
    }
