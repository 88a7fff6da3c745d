"""The files of `macaron-fairseq dynamics --jacobian`: numbers, a page, and pictures."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

from macaron_fairseq.analysis import figures, output
from macaron_fairseq.analysis.by_layer import Model
from macaron_fairseq.analysis.output import Content
from macaron_fairseq.analysis.residual import page, pictures, topology_report
from macaron_fairseq.analysis.residual.pictures import Effect

# The columns of the CSV file: what a row is, and a measure of it.
CSV_COLUMNS = (
    "model",
    "trained",
    "side",
    "of",
    "name",
    "layer",
    "operator",
    "occurrence",
    "measure",
    "mean",
    "margin",
    "n",
)


def contents(content: dict[str, Any]) -> dict[str, Content]:
    """The files, by name, for what `measurement.compare` gives."""
    models, effects = content["models"], content["interventions"]
    lines = csv_text(models, effects)
    downloads = {"residual.json": output.compact(content), "residual.csv": lines}
    sides = [side["side"] for side in models[0]["sides"]]
    panels = pictures.effect_panels(models, effects)
    return {
        "residual.json": content,
        "residual.csv": lines,
        "residual.png": pictures.overview(models),
        "residual-singular-values.png": pictures.singular_values_png(models),
        "residual-topology.png": pictures.overview(models, pictures.SHOWN_OF_TOPOLOGY),
        **{
            f"residual-spectra-{x}.png": pictures.spectra_png(models, x) if x in sides else None
            for x in ("encoder", "decoder")
        },
        "residual-interventions.png": figures.panels_png(panels, pictures.labels(models))
        if panels
        else None,
        "residual.html": page.page(content, downloads),
    }


def csv_text(models: Sequence[Model], effects: Sequence[Effect]) -> str:
    """All means as CSV, a line for each: of sub-layers, layers, products and interventions."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for which, measured in [
        *of_models(models),
        *topology_report.csv_rows(models),
        *of_effects(effects),
    ]:
        for name, figure in measured.items():
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
