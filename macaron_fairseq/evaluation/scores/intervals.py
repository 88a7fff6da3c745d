"""95 % intervals: over seeds, by Student's t; of one score over sentences, by bootstrap."""

import json
import math
import statistics
from collections.abc import Sequence
from statistics import NormalDist

from sacrebleu.metrics.base import Metric

Interval = tuple[float, float]

SAMPLES = 1000  # of a bootstrap

# The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom; this room does without SciPy.
STUDENT_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def student_t(degrees: int) -> float:
    """The 0.975 quantile of Student's t, to three decimals.

    Beyond the table: the first two terms of its expansion (Abramowitz and Stegun, 26.7.5).
    """
    if degrees <= len(STUDENT_T):
        return STUDENT_T[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def over_seeds(values: Sequence[float]) -> Interval | None:
    """The 95 % interval of the mean of what independent seeds gave; None for a single seed."""
    if len(values) < 2:
        return None
    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    margin = student_t(len(values) - 1) * error
    return mean - margin, mean + margin


def over_sentences(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str], recorded: float
) -> Interval | None:
    """sacreBLEU's 95 % interval of a score if other sentences of this kind had been drawn.

    Args:
        metric: sacreBLEU's.
        hypotheses: of all sentences.
        references: one for each.
        recorded: the score; None is returned if the metric gives another, or for one sentence.
    """
    if len(hypotheses) < 2:
        return None
    try:
        score = metric.corpus_score(hypotheses, [references], n_bootstrap=SAMPLES)
    except TypeError:  # sacreBLEU 2.6's, where some samples of a few sentences score exactly 0
        return None
    if abs(score.score - recorded) > 0.01:
        return None
    signature = metric.get_signature().format()
    found = json.loads(score.format(width=4, signature=signature, is_json=True))
    if "confidence_mean" not in found:  # of a score of 0
        return None
    mean, margin = found["confidence_mean"], found["confidence_var"]
    return mean - margin, mean + margin
