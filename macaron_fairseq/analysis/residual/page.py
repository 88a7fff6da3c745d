"""The page of `macaron-fairseq dynamics --jacobian`: pictures and tables, without a script."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from macaron_fairseq.analysis import figures
from macaron_fairseq.analysis.by_layer import (
    NAMES,
    Measure,
    Model,
    Row,
    by_occurrence,
    find,
    occurrence_label,
)
from macaron_fairseq.analysis.figures import Line, Panel
from macaron_fairseq.analysis.residual import pictures, topology_report
from macaron_fairseq.analysis.residual.glossary import GROUPS, MATRICES, MEASURES
from macaron_fairseq.analysis.residual.pictures import Effect
from macaron_fairseq.common import html_page
from macaron_fairseq.common.wording import number

KINDS = {
    "layers": "Whole layers",
    "products": "From the first layer to this one",
}


def page(content: dict[str, Any], downloads: Mapping[str, str]) -> str:
    """The page of what `measurement.compare` gives.

    Args:
        content: see there.
        downloads: the text of files that the page is to hold, by name.
    """
    models, effects = content["models"], content["interventions"]
    sides = [side["side"] for side in models[0]["sides"]]
    headings = {side: side.capitalize() for side in sides}
    sensitivity = [*topology_report.html_sensitivity(models)]
    if sensitivity:
        headings["choices"] = "What the choices change"
    if effects:
        headings["interventions"] = "Interventions"
    headings["numbers"] = "All figures"
    links = " ".join(f'<a href="#{name}">{text}</a>' for name, text in headings.items())
    introduction = MATRICES.introduction.format(tokens=content["settings"]["tokens"])
    parts = [
        f"<h1>{escape(content['title'])}</h1>",
        f'<nav aria-label="Contents">{links}</nav>',
        html_page.legend(pictures.labels(models)),
        html_page.definitions(facts(content)),
        f"<p>Download: {', '.join(html_page.download(*x) for x in downloads.items())}.</p>",
        f'<p class="soft">{escape(introduction)} Bands show the 95 % interval over the runs of a '
        "model, by Student's t; one run has none.</p>",
        *(part for side in sides for part in one_side(side, models)),
        *([f'<h2 id="choices">{headings["choices"]}</h2>'] if sensitivity else []),
        *sensitivity,
        *interventions(models, effects),
        '<h2 id="numbers">All figures</h2>',
        '<p class="soft">Means, with half of the 95 % interval over runs where there are '
        "several.</p>",
        *(part for model in models for part in all_figures(model)),
    ]
    return html_page.page(content["title"], parts)


def facts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What was measured on what."""
    data = content["data"]
    for model in content["models"]:
        runs = ", ".join(f"<code>{escape(run['name'])}</code>" for run in model["runs"])
        bits = model["bits_per_token"]["mean"]
        yield (
            escape(pictures.title(model)),
            f"{escape(', '.join([model['architecture'], *model['settings'].values()]))}, "
            f"{model['parameters']:,} parameters"
            + ("" if bits is None else f", {value(model['bits_per_token'])} bits per token")
            + f"; {runs}",
        )
    yield "Text", f"{data['sentences']:,} sentences of <code>{escape(data['source'])}</code>"
    yield "Decoder", escape(data["decoder"])
    choices = {**content["settings"]["graph"]["graph"], **content["settings"]["graph"]}
    named = (f"{name} {choice}" for name, choice in choices.items() if name != "graph")
    yield "Communities", escape(", ".join(named))
    yield "Command", f"<code>{escape(content['command'])}</code>"


# --- pictures ------------------------------------------------------------------------------------


def one_side(name: str, models: Sequence[Model]) -> Iterator[str]:
    """The elements on the encoder or the decoder."""
    yield f'<h2 id="{name}">{name.capitalize()}</h2>'
    yield spectra(name, models)
    yield singular_values(name, models)
    for group in GROUPS:
        cards = [x for measure in group.measures if (x := card(measure, name, models))]
        if not cards:
            continue
        yield f"<h3>{group.title}</h3>"
        if group is not MATRICES:
            yield f"<p>{escape(group.introduction)}</p>"
        yield from cards
    yield topology_report.html_table(name, models)


def card(measure: Measure, side: str, models: Sequence[Model]) -> str:
    """One measure: of layers, of products, and of each operator's sub-layers."""
    found = {title: pictures.lines(models, side, of, measure.name) for of, title in KINDS.items()}
    for operator in operators(models, side):
        title = f"{NAMES.get(operator, operator)}, trained"
        found[title] = sublayer_lines(models, side, operator, measure.name)
    together = [line for lines in found.values() for line in lines]
    if not together:  # nothing is added, for one
        return ""
    limits = figures.limits(together, measure.log)
    drawn = (
        html_page.figure(
            figures.lines_svg(
                Panel(measure.title, lines, limits, measure.log),
                f"{measure.title}, {title}, by layer. {ends(lines, models)}.",
            ),
            escape(title),
        )
        for title, lines in found.items()
        if lines
    )
    return html_page.card(measure.title, escape(measure.definition), html_page.panels(drawn))


def operators(models: Sequence[Model], side: str) -> list[str]:
    """Those of all models' sub-layers."""
    rows = [row for model in models for row in find(model, side)["sublayers"]]
    return list(dict.fromkeys(row["operator"] for row in rows))


def sublayer_lines(models: Sequence[Model], side: str, operator: str, name: str) -> list[Line]:
    """A measure of one operator in the trained models, a line for each time a layer has it."""
    names, found = pictures.labels(models), []
    for model in models:
        of_operator = [
            row
            for row in find(model, side)["sublayers"]
            if row["operator"] == operator and pictures.has(row, name) and model["is_trained"]
        ]
        series = names.index(model["label"])
        for occurrence, rows in by_occurrence(of_operator):
            label = occurrence_label(occurrence)
            one = pictures.row_line(series, rows, name, occurrence - 1, label)
            if occurrence > figures.ALL_TOGETHER:
                one = replace(one, x=[row["time"] for row in rows])
            found.append(one)
    return found


def ends(lines: Sequence[Line], models: Sequence[Model]) -> str:
    """Where each line begins and ends, in words."""
    names = pictures.labels(models)
    return "; ".join(
        f"{names[x.series]} ({x.label}): {number(x.means[0])} at {x.x[0]:g} to "
        f"{number(x.means[-1])} at {x.x[-1]:g}"
        for x in lines
    )


def spectra(name: str, models: Sequence[Model]) -> str:
    """The eigenvalues of each layer and of the product of all, for each model."""
    names = pictures.labels(models)
    of_layers, of_all = (pictures.window(models, name, x) for x in ("layers", "products"))
    rows = []
    for model in models:
        series, side = names.index(model["label"]), find(model, name)
        drawn = [
            html_page.figure(
                pictures.spectrum_svg(
                    row,
                    series,
                    limits,
                    f"Eigenvalues of {row['name']}, {pictures.title(model)}.",
                ),
                f"{html_page.key(series, pictures.title(model))}: {row['name']}",
            )
            for row, limits in [
                *((row, of_layers) for row in side["layers"]),
                (side["products"][-1], of_all),
            ]
        ]
        rows.append(html_page.panels(drawn))
    return html_page.card(
        "Eigenvalues",
        "Those of each layer's Jacobian, then of the product of all, in the complex plane with the "
        "unit circle. They are of a few tokens of the first run. All layers have one scale, and "
        "all products another.",
        "".join(rows),
        level=3,
    )


def singular_values(name: str, models: Sequence[Model]) -> str:
    """The singular values of the products, for each model."""
    names = pictures.labels(models)
    limits = pictures.range_of_singular_values(models, name)
    drawn = []
    for model in models:
        series, side = names.index(model["label"]), find(model, name)
        values = side["products"][-1]["singular_values"]
        alt = (
            f"Singular values, {pictures.title(model)}. After all layers from "
            f"{number(values[0])} to {number(values[-1])}."
        )
        picture = pictures.singular_values_svg(side, series, limits, alt)
        drawn.append(html_page.figure(picture, html_page.key(series, pictures.title(model))))
    return html_page.card(
        "Singular values of the product",
        "From the first layer to each, the more layers the stronger the line: geometric means over "
        "tokens and runs. A bottleneck is a fast fall.",
        html_page.panels(drawn),
        level=3,
    )


def interventions(models: Sequence[Model], effects: Sequence[Effect]) -> Iterator[str]:
    """What removing parts of layers does."""
    if not effects:
        return
    yield '<h2 id="interventions">Interventions</h2>'
    yield (
        "<p>A layer gives f(x) - N (x - x₀): N is a part of M, the mean of its Jacobians, and x₀ "
        "the mean state. Without its non-normal part (Schur form) M is normal, with the same "
        "eigenvalues. Without its antisymmetric part it is symmetric. The control removes N "
        "turned at random, QNQᵀ, times what makes it move the states as far. The rest is "
        "M - I - N. Of N and the rest, the one that moves the states farther is made smaller. "
        "The figures equal and rest say what each costs then. Noise is the share of |M - I|² that "
        "the choice of the tokens makes.</p>"
    )
    for panels in pictures.effect_panels(models, effects):
        drawn = (
            html_page.figure(
                figures.lines_svg(panel, f"{panel.title}. {ends(panel.lines, models)}."),
                escape(panel.title),
            )
            for panel in panels
        )
        yield html_page.card(
            "Bits per token that one layer's part is worth",
            "Loss without it minus loss of the whole model.",
            html_page.panels(drawn),
            level=3,
        )
    names = list(effects[0]["figures"])
    yield html_page.folded_table(
        "Interventions, all figures",
        names,
        [
            [
                escape(f"{x['label']}: {layers_of(x)} without the {x['removed']} part"),
                *(value(x["figures"][name]) for name in names),
            ]
            for x in effects
        ],
    )


def layers_of(effect: Effect) -> str:
    """The layers that lose a part: encoder 2, or encoder 1 to 4."""
    sides: dict[str, list[int]] = {}
    for place in effect["layers"]:
        side, _, layer = place.partition(":")
        sides.setdefault(side, []).append(int(layer))
    return ", ".join(f"{side} {numbers_of(found)}" for side, found in sides.items())


def numbers_of(found: Sequence[int]) -> str:
    """2, or 1 to 4, or 1 + 3."""
    if len(found) > 1 and list(found) == list(range(found[0], found[-1] + 1)):
        return f"{found[0]} to {found[-1]}"
    return " + ".join(map(str, found))


# --- tables --------------------------------------------------------------------------------------


def all_figures(model: Model) -> Iterator[str]:
    """All figures of one model, in tables."""
    yield f"<h3>{escape(pictures.title(model))}</h3>"
    for side in model["sides"]:
        for of in ("sublayers", *KINDS):
            names = [name for name in MEASURES if name in side[of][0]["figures"]]
            kind = KINDS.get(of, "Sub-layers")
            yield html_page.folded_table(
                f"{side['side'].capitalize()}: {kind[0].lower()}{kind[1:]}",
                [MEASURES[name].title for name in names],
                [[escape(row["name"]), *cells(row, names)] for row in side[of]],
            )


def cells(row: Row, names: Sequence[str]) -> Iterator[str]:
    """The figures of a row."""
    for name in names:
        yield value(row["figures"][name])


def value(figure: Mapping[str, Any]) -> str:
    """A mean, with half of its interval."""
    if figure["mean"] is None:
        return ""
    margin = figure["margin"]
    interval = "" if margin is None else f" <small>± {number(margin)}</small>"
    return number(figure["mean"]) + interval
