"""95 % intervals: over seeds, by Student's t; of one score over sentences, by bootstrap."""

import json
import math
import statistics
from collections.abc import Sequence

from sacrebleu.metrics.base import Metric

from macaron_fairseq.evaluation.scores.p_values import SAME

Interval = tuple[float, float]

SAMPLES = 1000  # of a bootstrap


def over_seeds(values: Sequence[float]) -> Interval | None:
    """The 95 % interval of the mean of what independent seeds gave.

    None for a single seed, and where all gave the same: that spread, 0 by chance, tells nothing.
    """
    if len(values) < 2 or max(values) - min(values) <= SAME:
        return None
    from scipy.special import stdtrit  # here, since its import takes a third of a second

    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    margin = float(stdtrit(len(values) - 1, 0.975)) * error
    return mean - margin, mean + margin


def over_sentences(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str], recorded: float
) -> Interval | None:
    """sacreBLEU's 95 % interval of a score if other sentences of this kind had been drawn.

    Args:
        metric: sacreBLEU's BLEU or chrF, which are from 0 to 100.
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
    return max(mean - margin, 0.0), min(mean + margin, 100.0)  # it is symmetric, scores are not
