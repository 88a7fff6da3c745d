"""Lines by layer, spectra in the complex plane, and singular values, for the page and as PNGs."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from macaron_fairseq.analysis import figures
from macaron_fairseq.analysis.by_layer import Model, Row, Side, find
from macaron_fairseq.analysis.figures import Line, Panel
from macaron_fairseq.analysis.residual.glossary import MEASURES
from macaron_fairseq.common import palette
from macaron_fairseq.common.themed_svg import STYLE, THEMED_COLOURS

Effect = dict[str, Any]  # of the interventions of `measurement.compare`

# Of the small picture: rows of a side, and a measure of them.
SHOWN = (
    ("layers", "rotation"),
    ("layers", "henrici"),
    ("layers", "asymmetry"),
    ("products", "effective_rank"),
    ("products", "lyapunov_largest"),
)
# Of the picture of communities.
SHOWN_OF_TOPOLOGY = tuple(
    ("layers", name) for name in ("communities", "modularity", "most_amplified", "coupling")
)
# What is drawn of interventions, and how it is called.
EFFECTS = {"bits_added": "removed", "control_bits_added": "control"}
OF = {"layers": "of a layer", "products": "from the first layer"}


def labels(models: Sequence[Model]) -> list[str]:
    """The label of each series, in the order of their colours."""
    return list(dict.fromkeys(model["label"] for model in models))


def lines(models: Sequence[Model], side: str, of: str, name: str) -> list[Line]:
    """A measure of layers or products by layer: trained models solid, untrained ones dashed.

    The band is the 95 % interval over runs.
    """
    names = labels(models)
    found = []
    for model in models:
        rows = [x for x in find(model, side)[of] if has(x, name)]
        label = "trained" if model["is_trained"] else "untrained"
        if rows:
            series, dash = names.index(model["label"]), int(not model["is_trained"])
            found.append(row_line(series, rows, name, dash, label))
    return found


def row_line(series: int, rows: Sequence[Row], name: str, dash: int, label: str) -> Line:
    """One line of rows that have the measure."""
    layers, of_rows = [row["layer"] for row in rows], [row["figures"][name] for row in rows]
    return line(series, layers, of_rows, dash, label, MEASURES[name].log)


def line(
    series: int,
    layers: Sequence[float],
    of_each: Sequence[dict[str, Any]],
    dash: int,
    label: str,
    log: bool = False,
) -> Line:
    """One line of means; their band only where all are known and the scale is not logarithmic."""
    margins = [x["margin"] for x in of_each]
    sds = None if log or None in margins else margins
    return Line(series, layers, [x["mean"] for x in of_each], sds, dash, label)


def has(row: Row, name: str) -> bool:
    """Whether a row has that measure."""
    return row["figures"].get(name, {}).get("mean") is not None


def overview(models: Sequence[Model], shown: Sequence[tuple[str, str]] = SHOWN) -> bytes:
    """A PNG file: a row for each side, a column for each measure that all sides have."""
    sides = [side["side"] for side in models[0]["sides"]]
    columns = [x for x in shown if all(lines(models, side, *x) for side in sides)]
    grid = []
    for side in sides:
        panels = []
        for of, name in columns:
            measure, found = MEASURES[name], lines(models, side, of, name)
            title = f"{side}: {measure.title.lower()} {OF[of]}"
            panels.append(Panel(title, found, figures.limits(found, measure.log), measure.log))
        grid.append(panels)
    return figures.panels_png(grid, labels(models))


# --- the complex plane ---------------------------------------------------------------------------


def eigenvalues(row: Row) -> np.ndarray:
    """Those of a row, (n, 2): real and imaginary parts."""
    return np.array(row["eigenvalues"]).reshape(-1, 2)


def window(models: Sequence[Model], side: str, of: str) -> tuple[float, float, float]:
    """The least and the greatest real part, and the greatest imaginary one; a margin around."""
    found = np.concatenate(
        [np.array([[0.9, 0.1], [1.1, -0.1]])]
        + [eigenvalues(row) for model in models for row in find(model, side)[of]]
    )
    low, high, top = found[:, 0].min(), found[:, 0].max(), np.abs(found[:, 1]).max()
    margin = 0.06 * max(high - low, 2 * top)
    return float(low - margin), float(high + margin), float(top + margin)


def draw_spectrum(axes: Axes, row: Row, colour: str, limits: tuple[float, float, float]) -> None:
    """Eigenvalues as points, with the unit circle."""
    values, angles = eigenvalues(row), np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(angles), np.sin(angles), color="grey", linewidth=0.7)
    # As an image: thousands of points as SVG would make a page large.
    axes.plot(
        *values.T,
        color=colour,
        marker="o",
        linestyle="",
        markersize=1.6,
        alpha=0.6,
        markeredgewidth=0,
        rasterized=True,
    )
    axes.set_aspect("equal")
    axes.set_xlim(limits[0], limits[1])
    axes.set_ylim(-limits[2], limits[2])


def spectrum_svg(row: Row, series: int, limits: tuple[float, float, float], alt: str) -> str:
    """The spectrum of a row as an element of a page."""

    def draw(axes: Axes) -> None:
        draw_spectrum(axes, row, palette.area(series), limits)
        axes.set_xlabel("real part")

    return figures.svg(draw, alt)


def spectra_png(models: Sequence[Model], side: str) -> bytes:
    """A PNG file: a row for each model, a column for each layer of a side and for all of them."""
    sides = [find(model, side) for model in models]
    depth = max(len(x["layers"]) for x in sides)
    names = labels(models)
    of_layers, of_all = window(models, side, "layers"), window(models, side, "products")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.75 * (depth + 1) + 0.4, 1.7 * len(models)), layout="constrained")
        grid: Any = figure.subplots(len(models), depth + 1, squeeze=False)
        for axes_of_row, model, of_side in zip(grid, models, sides, strict=True):
            colour = palette.light(names.index(model["label"]))
            for axes, row in zip(axes_of_row, of_side["layers"], strict=False):
                draw_spectrum(axes, row, colour, of_layers)
                axes.set_title(f"layer {row['layer']}", fontsize=8)
            for axes in axes_of_row[len(of_side["layers"]) : depth]:
                axes.set_axis_off()
            draw_spectrum(axes_of_row[-1], of_side["products"][-1], colour, of_all)
            axes_of_row[-1].set_title("all layers", fontsize=8)
            axes_of_row[0].set_ylabel(title(model).replace(", ", ",\n"), fontsize=7)
            for axes in axes_of_row:
                axes.tick_params(labelsize=6)
        return figures.png(figure, dpi=100)


def title(model: Model) -> str:
    """A model's name."""
    return model["label"] + ("" if model["is_trained"] else ", untrained")


# --- singular values -----------------------------------------------------------------------------


def draw_singular_values(axes: Axes, side: Side, colour: str, limits: tuple[float, float]) -> None:
    """Those of each product, largest first; the more layers, the stronger the line."""
    products = side["products"]
    for i, row in enumerate(products, 1):
        values = row["singular_values"]
        strength = 0.25 + 0.75 * i / len(products)
        axes.plot(range(1, len(values) + 1), values, color=colour, alpha=strength, linewidth=1.2)
    axes.set_ylim(*limits)
    figures.scale_by_logarithm(axes)
    axes.set_xlabel("its rank, from the largest")


def range_of_singular_values(models: Sequence[Model], side: str) -> tuple[float, float]:
    """Limits that show those of all models."""
    found = [x for m in models for row in find(m, side)["products"] for x in row["singular_values"]]
    values = np.array(found)
    values = values[values > values.max() * 1e-12]
    return float(values.min() / 1.5), float(values.max() * 1.5)


def singular_values_svg(side: Side, series: int, limits: tuple[float, float], alt: str) -> str:
    """The singular values of a side's products as an element of a page."""
    colour = THEMED_COLOURS[series % len(THEMED_COLOURS)]
    return figures.svg(lambda axes: draw_singular_values(axes, side, colour, limits), alt)


def singular_values_png(models: Sequence[Model]) -> bytes:
    """A PNG file: a row for each side, a column for each model."""
    sides, names = [side["side"] for side in models[0]["sides"]], labels(models)
    with mpl.rc_context(STYLE):
        size = (2.6 * len(models), 2.1 * len(sides) + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        grid: Any = figure.subplots(len(sides), len(models), squeeze=False, sharey="row")
        for of_row, side in zip(grid, sides, strict=True):
            limits = range_of_singular_values(models, side)
            for axes, model in zip(of_row, models, strict=True):
                colour = palette.light(names.index(model["label"]))
                draw_singular_values(axes, find(model, side), colour, limits)
                axes.set_title(f"{side}\n{title(model)}", fontsize=7)
            of_row[0].set_ylabel("singular value")
        heading = "of the products from the first layer on; stronger: more layers"
        figure.suptitle(figures.wrapped(heading, size[0], 8), fontsize=8)
        return figures.png(figure, dpi=90)


# --- interventions -------------------------------------------------------------------------------


def parts(effects: Sequence[Effect]) -> list[str]:
    """What was removed, in order."""
    return list(dict.fromkeys(effect["removed"] for effect in effects))


def effect_lines(
    models: Sequence[Model], effects: Sequence[Effect], side: str, part: str
) -> list[Line]:
    """The bits per token that removing a part of one layer adds, and its control, by layer."""
    names, found = labels(models), []
    for label in names:
        alone = [
            x
            for x in effects
            if (x["label"], x["removed"]) == (label, part)
            and len(x["layers"]) == 1
            and x["layers"][0].startswith(f"{side}:")
        ]
        for dash, (name, what) in enumerate(EFFECTS.items()):
            if alone:
                layers = [int(x["layers"][0].partition(":")[2]) for x in alone]
                of_each = [x["figures"][name] for x in alone]
                found.append(line(names.index(label), layers, of_each, dash, what))
    return found


def effect_panels(models: Sequence[Model], effects: Sequence[Effect]) -> list[list[Panel]]:
    """A row for each side, a column for each part; none where no layer was taken alone."""
    grid = []
    for side in [side["side"] for side in models[0]["sides"]]:
        found = {part: effect_lines(models, effects, side, part) for part in parts(effects)}
        if all(found.values()) and found:
            grid.append(
                [
                    Panel(f"{side}: bits added without the {part} part", x, figures.limits(x))
                    for part, x in found.items()
                ]
            )
    return grid
