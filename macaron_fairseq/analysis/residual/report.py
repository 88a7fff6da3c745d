"""What `macaron-fairseq dynamics --jacobian` leaves: numbers, a page, pictures, and a table."""

import csv
import json
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

from macaron_fairseq.analysis import output
from macaron_fairseq.analysis.dynamics.report import three_digits
from macaron_fairseq.analysis.output import Content
from macaron_fairseq.analysis.residual import page, pictures, topology_report
from macaron_fairseq.analysis.residual.pictures import Effect, Model
from macaron_fairseq.common import markdown

# The columns of the printed table: of a layer, then of the product up to it.
LAYER_COLUMNS = {"rotation": "rotation", "departure": "henrici", "asymmetry": "asymmetry"}
PRODUCT_COLUMNS = {"rank of the product": "effective_rank", "largest exponent": "lyapunov_largest"}

# The columns of the CSV file: what a row is, and a measure of it.
CSV_COLUMNS = (
    *("model", "trained", "side", "of", "name", "layer", "operator", "occurrence"),
    *("measure", "mean", "margin", "n"),
)


def contents(content: dict[str, Any]) -> dict[str, Content]:
    """The files, by name, for what `compare.compare` gives."""
    models, effects = content["models"], content["interventions"]
    lines = csv_text(models, effects)
    compact = json.dumps(json.loads(output.as_json(content)), separators=(",", ":"))
    downloads = {"residual.json": compact, "residual.csv": lines}
    found: dict[str, Content] = {
        "residual.json": content,
        "residual.csv": lines,
        "residual.png": pictures.overview(models),
        "residual-singular-values.png": pictures.singular_values_png(models),
        "residual-topology.png": pictures.overview(models, pictures.SHOWN_OF_TOPOLOGY),
    }
    for side in models[0]["sides"]:
        name = side["side"]
        found[f"residual-spectra-{name}.png"] = pictures.spectra_png(models, name)
    if pictures.effect_panels(models, effects):
        found["residual-interventions.png"] = pictures.effects_png(models, effects)
    found["residual.html"] = page.page(content, downloads)
    return found


def csv_text(models: Sequence[Model], effects: Sequence[Effect]) -> str:
    """All means as CSV, a line for each: of sub-layers, layers, products and interventions."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for which, figures in [
        *of_models(models),
        *topology_report.csv_rows(models),
        *of_effects(effects),
    ]:
        for name, figure in figures.items():
            writer.writerow([*which, name, *(figure[x] for x in ("mean", "margin", "n"))])
    return file.getvalue()


def of_models(models: Sequence[Model]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """What each row of the models is, and its figures."""
    for model in models:
        for side in model["sides"]:
            for of in ("sublayers", "layers", "products"):
                for row in side[of]:
                    which = [model["label"], int(model["is_trained"]), side["side"], of]
                    names = [row[x] for x in ("name", "layer", "operator", "occurrence")]
                    yield [*which, *names], row["figures"]


def of_effects(effects: Sequence[Effect]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """What each intervention is, and its figures."""
    for x in effects:
        which = [x["label"], 1, "", "interventions"]
        yield [*which, ",".join(x["layers"]), "", x["removed"], ""], x["figures"]


def table(content: dict[str, Any]) -> str:
    """The models' layers, one below the other, in Markdown; then what interventions add."""
    models = content["models"]
    heads = ["layer", "model", *LAYER_COLUMNS, *PRODUCT_COLUMNS]
    rows = []
    for number, side in enumerate(models[0]["sides"]):
        for i in range(max(len(model["sides"][number]["layers"]) for model in models)):
            for model in models:
                of_side = model["sides"][number]
                for layer, product in zip(
                    of_side["layers"][i : i + 1], of_side["products"][i : i + 1], strict=True
                ):
                    values = [mean(layer, name) for name in LAYER_COLUMNS.values()]
                    values += [mean(product, name) for name in PRODUCT_COLUMNS.values()]
                    names = [f"{side['side']} {i + 1}", f"`{pictures.title(model)}`"]
                    rows.append([*names, *map(three_digits, values)])
    text = markdown.table(heads, rows) + "\n\n" + topology_report.tables(models)
    if content["interventions"]:
        text += "\n" + effects_table(content["interventions"])
    return text


def mean(row: dict[str, Any], name: str) -> float | None:
    """A figure's mean, where there is one."""
    return row["figures"].get(name, {}).get("mean")


def effects_table(effects: Sequence[Effect]) -> str:
    """What each intervention adds to the loss, in Markdown."""
    rows = [
        [
            page.layers_of(x),
            x["removed"],
            f"`{x['label']}`",
            *(three_digits(mean(x, name)) for name in ("bits_added", "control_bits_added")),
        ]
        for x in effects
    ]
    heads = ["layers", "removed", "model", "bits added", "by the control"]
    return markdown.table(heads, rows) + "\n"
