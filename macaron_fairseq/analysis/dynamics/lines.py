"""The figures of `measurement.compare` by the layer, as lines of a picture."""

from collections.abc import Sequence
from typing import Any

from macaron_fairseq.analysis import figures
from macaron_fairseq.analysis.by_layer import (
    LAYER,
    NAMES,
    Measure,
    Row,
    Side,
    by_occurrence,
    occurrence_label,
)
from macaron_fairseq.analysis.figures import Line


def mean(row: Row, name: str) -> Any:
    """A measure's mean; None if the row does not have it."""
    return row["figures"][name]["mean"] if name in row["figures"] else row.get(name)


def state_lines(sides: Sequence[Side], measure: Measure) -> list[Line]:
    """A measure of the states, one line for each model."""
    lines = (line(i, 1, side["states"], measure, "time") for i, side in enumerate(sides))
    return [x for x in lines if x]


def move_lines(sides: Sequence[Side], measure: Measure, operator: str) -> list[Line]:
    """A measure of one operator's sub-layers, or of whole layers; a line for each occurrence."""
    lines = []
    for i, side in enumerate(sides):
        rows = side["layers"] if operator == LAYER else side["states"]
        rows = [row for row in rows if row["operator"] == operator]
        for occurrence, of_it in by_occurrence(rows):
            x = "layer" if occurrence <= figures.ALL_TOGETHER else "time"
            lines.append(line(i, occurrence, of_it, measure, x))
    return [x for x in lines if x]


def line(i: int, occurrence: int, rows: Sequence[Row], measure: Measure, x: str) -> Line | None:
    """One line, of the rows that have the measure; None if none has."""
    rows = [row for row in rows if mean(row, measure.name) is not None]
    if not rows:
        return None
    sds = None
    if measure.band and not measure.log:
        known = [row["figures"].get(measure.name, {}).get("sd") for row in rows]
        sds = None if None in known else known
    means = [mean(row, measure.name) for row in rows]
    label = occurrence_label(occurrence)
    return Line(i, [row[x] for row in rows], means, sds, occurrence - 1, label)


def operators_of(sides: Sequence[Side]) -> list[str]:
    """The operators of all models, those of `NAMES` in that order, and then the whole layer."""
    found = {row["operator"] for side in sides for row in side["states"][1:]}
    known = [name for name in NAMES if name in found]
    return [*known, *sorted(found - set(known)), LAYER]
