"""What models were found to do, by the layer: measures, rows as JSON has them, and names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from macaron_fairseq.analysis import figures

# Parts of what `dynamics.measurement.compare` and `residual.measurement.compare` give.
Row = dict[str, Any]
Side = dict[str, Any]
Model = dict[str, Any]

LAYER = "layer"
NAMES = {
    "self-attention": "Self-attention",
    "cross-attention": "Cross-attention",
    "ffn": "FFN",
    LAYER: "Whole layer",
}


@dataclass(frozen=True)
class Measure:
    """One measure, drawn by the layer."""

    name: str
    title: str
    definition: str
    log: bool = False
    band: bool = True  # of one standard deviation


@dataclass(frozen=True)
class Group:
    """Measures of the same thing."""

    title: str
    introduction: str
    measures: tuple[Measure, ...]


def find(model: Model, name: str) -> Side:
    """A model's encoder or decoder."""
    return next(side for side in model["sides"] if side["side"] == name)


def layer_by_layer(models: Sequence[Model]) -> Iterator[tuple[str, Model, Side, int]]:
    """Each layer of each model, the first of all models first.

    Yields:
        What to call it, the model, its side, and the layer's place in the side's lists.
    """
    for name in [side["side"] for side in models[0]["sides"]]:
        of_models = [(model, find(model, name)) for model in models]
        for i in range(max(len(side["layers"]) for _, side in of_models)):
            for model, side in of_models:
                if i < len(side["layers"]):
                    yield f"{name} {i + 1}", model, side, i


def sublayer_rows(layer: int, sublayers: Sequence[Any]) -> Iterator[tuple[Any, str, float, int]]:
    """Each sub-layer of a layer: itself, its name, when it ends, its operator's occurrence."""
    seen: list[str] = []
    for i, one in enumerate(sublayers, 1):
        seen.append(one.operator)
        time = layer - 1 + i / len(sublayers)
        yield one, f"{layer}: {one.title}", time, seen.count(one.operator)


def by_occurrence(rows: Sequence[Row]) -> list[tuple[int, Sequence[Row]]]:
    """The rows of each time that a layer has an operator, from 1; all together of too many."""
    occurrences = sorted({row["occurrence"] for row in rows})
    if len(occurrences) > figures.ALL_TOGETHER:
        return [(figures.ALL_TOGETHER + 1, rows)]
    return [(n, [row for row in rows if row["occurrence"] == n]) for n in occurrences]


def occurrence_label(occurrence: int) -> str:
    """What a line stands for: an operator's first time in the layer, or all times together."""
    if occurrence > figures.ALL_TOGETHER:
        return "all in the layer"
    return f"{ordinal(occurrence)} in the layer"


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n, 'th') }"
