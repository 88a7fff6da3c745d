"""What `macaron-fairseq dynamics --jacobian` prints: tables in Markdown.

A figure is a mean over runs, with half of its 95 % interval after ± where there are several.
"""

from collections.abc import Sequence
from typing import Any

from macaron_fairseq.analysis.by_layer import Model, layer_by_layer
from macaron_fairseq.analysis.residual import page, pictures, topology_report
from macaron_fairseq.analysis.residual.pictures import Effect
from macaron_fairseq.common import markdown
from macaron_fairseq.common.markdown import three_digits

# The columns of a layer, then of the product up to it.
LAYER_COLUMNS = {
    "rotation": "rotation",
    "departure": "henrici",
    "asymmetry": "asymmetry",
    "what is added": "added",
    "by the state's size": "added_scaled",
    "its departure": "added_henrici",
}
PRODUCT_COLUMNS = {"rank of the product": "effective_rank", "largest exponent": "lyapunov_largest"}
# The columns of an intervention, then those with a value before it and one after it.
EFFECT_COLUMNS = {
    "share of the mean map": "size",
    "chance in that map": "noise",
    "bits added": "bits_added",
    "over a random map": "bits_over_control",
    "equally far": "equal_bits_added",
    "the rest": "rest_bits_added",
    "difference": "bits_over_rest",
}
CHANGED_COLUMNS = {
    "departure of the product": "product_henrici",
    "its rank": "product_effective_rank",
    "coupling": "layer_coupling",
}


def as_text(content: dict[str, Any]) -> str:
    """All tables of what `measurement.compare` gives."""
    models, effects = content["models"], content["interventions"]
    found = [of_models(models), of_layers(models), topology_report.tables(models).rstrip("\n")]
    return "\n\n".join([*found, *([of_effects(effects)] if effects else [])]) + "\n"


def of_models(models: Sequence[Model]) -> str:
    """How many runs each model has, and how well it predicts."""
    rows = [
        [f"`{pictures.title(x)}`", str(len(x["runs"])), value(x["bits_per_token"])] for x in models
    ]
    return markdown.table(["model", "runs", "bits per token"], rows)


def of_layers(models: Sequence[Model]) -> str:
    """The layers of all models, one below the other."""
    rows = []
    for name, model, side, i in layer_by_layer(models):
        layer, product = side["layers"][i]["figures"], side["products"][i]["figures"]
        figures = [layer.get(x) for x in LAYER_COLUMNS.values()]
        figures += [product.get(x) for x in PRODUCT_COLUMNS.values()]
        rows.append([name, f"`{pictures.title(model)}`", *map(value, figures)])
    return markdown.table(["layer", "model", *LAYER_COLUMNS, *PRODUCT_COLUMNS], rows)


def of_effects(effects: Sequence[Effect]) -> str:
    """What each intervention does to the loss, the spectrum of the product and the coupling."""
    rows = []
    for x in effects:
        figures = x["figures"]
        changed = [
            f"{three_digits(figures[f'intact_{name}']['mean'])} → {value(figures[name])}"
            for name in CHANGED_COLUMNS.values()
        ]
        names = [page.layers_of(x), x["removed"], f"`{x['label']}`"]
        rows.append([*names, *(value(figures[y]) for y in EFFECT_COLUMNS.values()), *changed])
    heads = ["layers", "removed", "model", *EFFECT_COLUMNS, *CHANGED_COLUMNS]
    return markdown.table(heads, rows)


def value(figure: dict[str, Any] | None) -> str:
    """A mean, with half of its interval; a dash where there is none."""
    if figure is None or figure["margin"] is None:
        return three_digits(None if figure is None else figure["mean"])
    return f"{three_digits(figure['mean'])} ± {figure['margin']:.2g}"
