"""The largest differences between measured models, in words."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scipy.stats import t

from macaron_fairseq.analysis.by_layer import Measure, Model, Row, find
from macaron_fairseq.analysis.dynamics.glossary import MOVES, STATES
from macaron_fairseq.analysis.dynamics.lines import mean
from macaron_fairseq.common.wording import number

SHOWN = 5
LEAST = 0.5  # standard deviations; Cohen 1988 calls that a medium effect
FEWEST = 10  # values of each model; the spread of fewer says little


@dataclass(frozen=True)
class Difference:
    """One measure of one side, at the layer where a model is farthest from the baseline."""

    measure: Measure
    side: str
    layer: int  # from 1
    is_of_state: bool  # after the layer; otherwise it is of the layer itself
    means: tuple[float, float]  # the baseline's and the model's
    effects: list[float]  # see `effect`, of layers that have it
    layers: int  # of both models
    noise: float  # what the effect of its layer must exceed to be told from chance

    @property
    def effect(self) -> float:
        """That of its layer."""
        return max(self.effects, key=abs)

    @property
    def is_clear(self) -> bool:
        """Whether it is large enough to be said, and more than chance gives."""
        return abs(self.effect) >= max(LEAST, self.noise)


def sentences(models: Sequence[Model]) -> Iterator[str]:
    """A sentence on each of the largest differences of each model from the first."""
    baseline = models[0]
    for model in models[1:]:
        found = [x for x in largest(baseline, model) if x.is_clear][:SHOWN]
        for difference in found:
            yield in_words(difference, baseline["label"], model["label"])
        if not found:
            yield (
                f"No mean of a layer of {model['label']} is {LEAST} standard deviations or more "
                f"from that of {baseline['label']}, and farther than chance alone takes it."
            )


def largest(baseline: Model, model: Model) -> list[Difference]:
    """The differences, one for each side and measure, the largest first.

    Compared are the states after whole layers, and whole layers: models of other schemes have
    these, too. Measures without a spread are left out.
    """
    found: list[Difference] = []
    for side in baseline["sides"]:
        other = find(model, side["side"])
        for measure in STATES.measures:
            rows = [
                [row for row in x["states"] if row["layer"] and row["time"] == row["layer"]]
                for x in (side, other)
            ]
            found += of_rows(measure, side["side"], True, *rows)
        for group in MOVES:
            for measure in group.measures:
                found += of_rows(measure, side["side"], False, side["layers"], other["layers"])
    return sorted(found, key=lambda x: -abs(x.effect))


def of_rows(
    measure: Measure, side: str, is_of_state: bool, ours: Sequence[Row], others: Sequence[Row]
) -> Iterator[Difference]:
    """The difference between two models' rows of the same layers; none if they lack the measure."""
    pairs = [*zip(ours, others)]  # noqa: B905 - a deeper model's further layers have no partner
    effects = [effect(*pair, measure.name) for pair in pairs]
    known = [x for x in effects if x is not None]
    if not known:
        return
    place = effects.index(max(known, key=abs))
    row, other = pairs[place]
    means = mean(row, measure.name), mean(other, measure.name)
    n, n_other = (x["figures"][measure.name]["n"] for x in (row, other))
    limit = noise(n, n_other, len(known))
    yield Difference(measure, side, row["layer"], is_of_state, means, known, len(pairs), limit)


def effect(row: Row, other: Row, name: str) -> float | None:
    """The difference of the means in pooled standard deviations; None without any.

    It is Hedges' g: Cohen's d, less what small samples add to it.
    """
    figures = [x["figures"].get(name) for x in (row, other)]
    if any(x is None or x["mean"] is None or x["n"] < FEWEST for x in figures):
        return None
    pooled = math.sqrt(sum(x["sd"] ** 2 for x in figures) / 2)
    if not pooled:
        return None
    freedom = sum(x["n"] for x in figures) - 2
    return (1 - 3 / (4 * freedom - 1)) * (figures[1]["mean"] - figures[0]["mean"]) / pooled


def noise(n: int, other: int, layers: int) -> float:
    """The effect that Student's test, at 5 %, just tells from 0, with that many values of each.

    The layer is the one of `layers` with the largest effect: Bonferroni's correction is for that.
    It takes all values as independent. Those of one sentence are not, and those of two models at
    the same token are not either. So it is a rough limit: it keeps out the noise of few values.
    """
    return float(t.ppf(1 - 0.025 / layers, n + other - 2)) * math.sqrt(1 / n + 1 / other)


def in_words(x: Difference, baseline: str, model: str) -> str:
    """One difference as a sentence or two."""
    ours, other = x.means
    place = f"{'after' if x.is_of_state else 'of'} {x.side} layer {x.layer}"
    size = f"{abs(x.effect):.1f} standard deviations"
    percent = f"{other / ours - 1:+.0%}" if ours > 0 and other > 0 else ""
    if percent.strip("+-0%"):  # from 0.9996 to 0.9991 are not 0 %
        size = f"{percent}, {size}"
    values = f"{number(other)} in {model}, {number(ours)} in {baseline} ({size})"
    sentence = f"{x.measure.title} {place}: {values}."
    if x.layers == 1:
        return sentence
    word = "larger" if x.effect > 0 else "smaller"
    agreeing = sum((effect > 0) == (x.effect > 0) for effect in x.effects)
    where = "all" if agreeing == x.layers else f"{agreeing} of"
    return f"{sentence} It is {word} in {where} {x.layers} layers."
