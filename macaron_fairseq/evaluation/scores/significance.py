"""Whether a difference of scores is more than chance in the choice of test sentences."""

from collections.abc import Sequence
from typing import cast

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from macaron_fairseq.evaluation.scores import intervals


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
        scores are the same. And the metric's signature. sacreBLEU's p counts the samples on the
        difference's own side: it is about half of a two-sided one, for differences that are clear.
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
