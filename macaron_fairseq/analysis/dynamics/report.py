"""What `macaron-fairseq dynamics` leaves: numbers, a page, a picture, and a table to print."""

import csv
from collections.abc import Sequence
from io import StringIO
from typing import Any

from macaron_fairseq.analysis import figures, output
from macaron_fairseq.analysis.by_layer import LAYER, Model, find, layer_by_layer
from macaron_fairseq.analysis.dynamics import cosines
from macaron_fairseq.analysis.dynamics import page as dynamics_page
from macaron_fairseq.analysis.dynamics.glossary import MEASURES
from macaron_fairseq.analysis.dynamics.lines import mean, move_lines, state_lines
from macaron_fairseq.analysis.figures import Panel
from macaron_fairseq.analysis.output import Content
from macaron_fairseq.common import markdown

# What the small picture shows: of the states, then of whole layers.
SHOWN_OF_STATES = ("cosine", "effective_rank_per_token")
SHOWN_OF_LAYERS = ("step", "singular_value", "local_error_1")

# The columns of the printed table: of the state after a layer, then of the layer.
STATE_COLUMNS = {
    "cosine": "cosine",
    "across": "cosine_across",
    "rank per token": "effective_rank_per_token",
}
LAYER_COLUMNS = {
    "relative step": "step",
    "turn": "turn",
    "largest singular value": "singular_value",
    "local error": "local_error_1",
    "slope": "local_error_slope",
}

# The columns of the CSV file: what a row is, and a measure of it.
ROW_COLUMNS = ("name", "layer", "time", "operator", "occurrence", "step")
CSV_COLUMNS = ("model", "side", "of", *ROW_COLUMNS, "measure", "mean", "sd", "n")


def contents(content: dict[str, Any]) -> dict[str, Content]:
    """The files, by name, for what `measurement.compare` gives."""
    numbers = {key: value for key, value in content.items() if key != "views"}
    lines = csv_text(content)
    downloads = {"dynamics.json": output.compact(numbers), "dynamics.csv": lines}
    return {
        "dynamics.json": numbers,
        "dynamics.csv": lines,
        "dynamics.png": overview(content["models"]),
        "dynamics-cosines.png": cosines.histograms_png(content["models"]),
        "dynamics.html": dynamics_page.page(content, downloads),
        "tokens.html": None,  # unless it is wanted, see `token_page`
    }


def csv_text(content: dict[str, Any]) -> str:
    """All means as CSV, a line for each: of the states, and of whole layers."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for model in content["models"]:
        for side in model["sides"]:
            for of in ("states", "layers"):
                for row in side[of]:
                    which = [model["label"], side["side"], of, *(row[x] for x in ROW_COLUMNS)]
                    for name, figure in row["figures"].items():
                        writer.writerow([*which, name, *(figure[x] for x in ("mean", "sd", "n"))])
                    for name in ("cosine_across", "local_error_slope"):  # without a spread
                        if row.get(name) is not None:
                            writer.writerow([*which, name, row[name], "", ""])
    return file.getvalue()


def overview(models: Sequence[Model]) -> bytes:
    """A PNG file: a row for each side, a column for each measure that all sides have."""
    columns = []
    for name in SHOWN_OF_STATES + SHOWN_OF_LAYERS:
        measure = MEASURES[name]
        column = []
        for side_name in [side["side"] for side in models[0]["sides"]]:
            sides = [find(model, side_name) for model in models]
            if name in SHOWN_OF_STATES:
                lines, what = state_lines(sides, measure), measure.title
            else:
                lines, what = move_lines(sides, measure, LAYER), f"{measure.title} of a layer"
            column.append((f"{side_name}: {what[0].lower()}{what[1:]}", lines, measure.log))
        if all(lines for _, lines, _ in column):
            columns.append(
                [Panel(title, x, figures.limits(x, log), log) for title, x, log in column]
            )
    labels = [model["label"] for model in models]
    return figures.panels_png([*zip(*columns, strict=True)], labels)


def table(models: Sequence[Model]) -> str:
    """The models' layers, one below the other, in Markdown."""
    heads = ["layer", "model", *STATE_COLUMNS, *LAYER_COLUMNS]
    rows = []
    for title, model, side, i in layer_by_layer(models):
        row = side["layers"][i]
        (state,) = (x for x in side["states"] if x["time"] == row["layer"])
        values = [mean(state, name) for name in STATE_COLUMNS.values()]
        values += [mean(row, name) for name in LAYER_COLUMNS.values()]
        rows.append([title, f"`{model['label']}`", *map(markdown.three_digits, values)])
    return markdown.table(heads, rows) + "\n"
