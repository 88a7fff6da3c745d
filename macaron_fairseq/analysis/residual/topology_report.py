"""Communities and their coupling in the files of `macaron-fairseq dynamics --jacobian`."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from macaron_fairseq.analysis.by_layer import Model, find, layer_by_layer
from macaron_fairseq.analysis.residual import pictures
from macaron_fairseq.common import html_page, markdown
from macaron_fairseq.common.markdown import three_digits

LEVEL = 0.05

COLUMNS = ("communities", "modularity", "least amplified", "most amplified", "coupling", "p")
P_OF_ALL = "p for all layers"
SENSITIVITY_COLUMNS = (
    "choice",
    "communities",
    "modularity",
    "agreement",
    "coupling",
    "layers with p < 0.05",
    "smallest p for all layers",
)


def tables(models: Sequence[Model]) -> str:
    """The communities of each layer, then what the choices change, in Markdown."""
    rows = []
    for name, model, side, i in layer_by_layer(models):
        row = cells(side["layers"][i], side["topology"][i])
        rows.append([name, f"`{pictures.title(model)}`", *row])
    text = markdown.table(["layer", "model", *COLUMNS, P_OF_ALL], rows) + "\n"
    found = [
        [f"`{pictures.title(model)}`", *row] for model in models for row in sensitivity_rows(model)
    ]
    if found:
        text += "\n" + markdown.table(["model", *SENSITIVITY_COLUMNS], found) + "\n"
    return text


def cells(row: dict[str, Any], layer: dict[str, Any]) -> list[str]:
    """The figures of the communities of one layer: means over runs; of all runs the coupling."""
    names = ("communities", "modularity", "least_amplified", "most_amplified")
    values = [row["figures"][name]["mean"] for name in names]
    return [
        *map(three_digits, values),
        *(three_digits(layer[name]) for name in ("coupling", "p", "corrected_p")),
    ]


def sensitivity_rows(model: Model) -> Iterator[list[str]]:
    """What each choice changes: a row for each, the default first; none where none was measured."""
    for row in model["sensitivity"] or []:
        couplings = [x for x in row["coupling"].values() if x is not None]
        p_values = [x for x in row["p"].values() if x is not None]
        mean = sum(couplings) / len(couplings) if couplings else None
        yield [
            name_of(row),
            *(three_digits(row[name]) for name in ("communities", "modularity", "agreement")),
            three_digits(mean),
            f"{sum(p < LEVEL for p in p_values)} of {len(p_values)}",
            three_digits(row["least_p"]),
        ]


def name_of(row: dict[str, Any]) -> str:
    """A choice and its value, in words."""
    return row["choice"] if row["value"] is None else f"{row['choice']} {row['value']}"


def csv_rows(models: Sequence[Model]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Of all runs of a model: the coupling of each layer; of each run, each community.

    What each row is, and its figures, as in `report.of_models`.
    """
    for model in models:
        for side in model["sides"]:
            for layer in side["topology"]:
                which = [model["label"], int(model["is_trained"]), side["side"]]
                names = ("coupling", "p", "corrected_p")
                figures = {name: alone(layer[name], layer["points"]) for name in names}
                title = f"layer {layer['layer']}"
                yield [*which, "topology", title, layer["layer"], "layer", 1], figures
                for i, run in enumerate(layer["runs"], 1):
                    of_each = zip(
                        run["sizes"], run["centralities"], run["amplifications"], strict=True
                    )
                    for number, (size, central, amplified) in enumerate(of_each, 1):
                        name = f"{title}, run {i}, community {number}"
                        of_one = {
                            "centrality": alone(central, size),
                            "amplification": alone(amplified, size),
                        }
                        yield [*which, "communities", name, layer["layer"], "layer", 1], of_one


def alone(value: float | None, n: int) -> dict[str, Any]:
    """A figure that has no interval."""
    return {"mean": value, "margin": None, "n": n}


# --- elements of the page ------------------------------------------------------------------------


def html_table(side: str, models: Sequence[Model]) -> str:
    """The communities of each layer of a side, of all models."""
    rows = []
    for model in models:
        found = find(model, side)
        for row, layer in zip(found["layers"], found["topology"], strict=True):
            rows.append(
                [escape(f"{pictures.title(model)}, layer {layer['layer']}"), *cells(row, layer)]
            )
    table = html_page.folded_table("By layer", [*COLUMNS, P_OF_ALL], rows)
    return html_page.card(
        "Coupling over all runs",
        "Communities are compared within a layer of a run. p is the share of permutations, within "
        "each run, whose mean coefficient is at least as far from 0. The last column is corrected "
        "for all layers of the model by Holm's method.",
        table,
    )


def html_sensitivity(models: Sequence[Model]) -> Iterator[str]:
    """What the choices change, of the models that it was measured of."""
    for model in models:
        rows = [[escape(name), *values] for name, *values in sensitivity_rows(model)]
        if rows:
            yield html_page.card(
                escape(pictures.title(model)),
                "One choice at a time. Agreement is the adjusted Rand index with the default's "
                "communities. Agreement and coupling are means over layers.",
                html_page.folded_table("By choice", SENSITIVITY_COLUMNS[1:], rows),
                level=3,
            )
