"""What `macaron-fairseq dynamics` shows of its measures: a page, a small picture and a table."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from macaron_fairseq.analysis import figures
from macaron_fairseq.analysis.figures import Line, Panel
from macaron_fairseq.analysis.glossary import (
    ERRORS,
    JACOBIANS,
    MEASURES,
    MOVES,
    STATES,
    STEPS,
    Measure,
)
from macaron_fairseq.analysis.output import Content
from macaron_fairseq.common import html_page

# Parts of what `dynamics.compare` gives.
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

# What the small picture shows: of the states, then of whole layers.
SHOWN_OF_STATES = ("cosine", "effective_rank_per_token")
SHOWN_OF_LAYERS = ("step", "singular_value", "local_error_1")

# The columns of the printed table: of the state after a layer, then of the layer.
STATE_COLUMNS = {"cosine": "cosine", "rank per token": "effective_rank_per_token"}
LAYER_COLUMNS = {
    "relative step": "step",
    "turn": "turn",
    "largest singular value": "singular_value",
    "local error": "local_error_1",
    "slope": "local_error_slope",
}


def contents(content: dict[str, Any]) -> dict[str, Content]:
    """The files, by name, for what `dynamics.compare` gives."""
    return {
        "dynamics.json": content,
        "dynamics.png": overview(content["models"]),
        "dynamics.html": page(content),
    }


# --- figures by the layer ------------------------------------------------------------------------


def find(model: Model, name: str) -> Side:
    """A model's encoder or decoder."""
    return next(side for side in model["sides"] if side["side"] == name)


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
        occurrences = sorted({row["occurrence"] for row in rows})
        if len(occurrences) > len(figures.DASHES):  # too many for a line each
            lines.append(line(i, 1, rows, measure, "time"))
            continue
        for occurrence in occurrences:
            of_it = [row for row in rows if row["occurrence"] == occurrence]
            lines.append(line(i, occurrence, of_it, measure, "layer"))
    return [x for x in lines if x]


def line(i: int, occurrence: int, rows: Sequence[Row], measure: Measure, x: str) -> Line | None:
    """One line, of the rows that have the measure; None if none has."""
    rows = [row for row in rows if mean(row, measure.name) is not None]
    if not rows:
        return None
    sds = None
    if measure.band and not measure.log and all(measure.name in row["figures"] for row in rows):
        sds = [row["figures"][measure.name]["sd"] for row in rows]
    means = [mean(row, measure.name) for row in rows]
    label = f"{ordinal(occurrence)} in the layer"
    return Line(i, [row[x] for row in rows], means, sds, occurrence - 1, label)


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n, 'th') }"


# --- the small picture and the table -------------------------------------------------------------


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
    return figures.panels_png([*zip(*columns, strict=True)], labels, "layer")


def table(models: Sequence[Model]) -> str:
    """The models' layers, one below the other, in Markdown."""
    heads = ["layer", "model", *STATE_COLUMNS, *LAYER_COLUMNS]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for number, side in enumerate(models[0]["sides"]):
        depth = max(len(model["sides"][number]["layers"]) for model in models)
        for i in range(depth):
            for model in models:
                for row in model["sides"][number]["layers"][i : i + 1]:
                    states = model["sides"][number]["states"]
                    (state,) = (x for x in states if x["time"] == row["layer"])
                    values = [mean(state, name) for name in STATE_COLUMNS.values()]
                    values += [mean(row, name) for name in LAYER_COLUMNS.values()]
                    names = [f"{side['side']} {row['layer']}", f"`{model['label']}`"]
                    lines.append("| " + " | ".join([*names, *map(three_digits, values)]) + " |")
    return "\n".join(lines) + "\n"


def three_digits(value: float | None) -> str:
    """The value, or a dash where there is none."""
    return "-" if value is None else f"{value:#.3g}".rstrip(".")


# --- the page ------------------------------------------------------------------------------------


def page(content: dict[str, Any]) -> str:
    """The page of what `dynamics.compare` gives."""
    models, settings = content["models"], content["settings"]
    words = {
        "threshold": settings["threshold"],
        "beta": settings["beta"],
        "jacobians": settings["jacobian_sentences"],
    }
    sides = [side["side"] for side in models[0]["sides"]]
    links = " ".join(f'<a href="#{side}">{side.capitalize()}</a>' for side in sides)
    parts = [
        f"<h1>{escape(content['title'])}</h1>",
        html_page.legend([model["label"] for model in models]),
        html_page.definitions(facts(content)),
        "<p class='soft'>Each sentence runs alone, so that no padding enters. Its tokens, the "
        "end-of-sentence symbol among them, are the particles; cosines are of pairs within a "
        "sentence. Bands show one standard deviation.</p>",
        f'<nav aria-label="Contents">{links} <a href="#numbers">All figures</a></nav>',
        *(part for side in sides for part in one_side(side, models, words)),
        '<h2 id="numbers">All figures</h2>',
        '<p class="soft">Means, with the standard deviation of what the mean is taken over: '
        "tokens, pairs of tokens or sentences. The JSON file next to this page has the numbers "
        "of each, and the histograms.</p>",
        *(part for model in models for part in all_figures(model)),
    ]
    return html_page.page(content["title"], parts)


def facts(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What was measured on what."""
    data = content["data"]
    for model in content["models"]:
        bits = model["bits_per_token"]
        yield (
            escape(model["label"]),
            f"{escape(', '.join([model['architecture'], *model['settings'].values()]))}, "
            f"{model['parameters']:,} parameters, {', '.join(norms(model))}"
            + ("" if bits is None else f", {bits:.3g} bits per token of the references")
            + f"; <code>{escape(model['path'])}</code>",
        )
    counts = (
        f"{side}: {count['tokens']:,} tokens, {count['unknown'] / count['tokens']:.1%} of them "
        "unknown"
        for side, count in data["tokens"].items()
    )
    source = f"<code>{escape(data['source'])}</code>"
    yield "Text", f"{data['sentences']:,} sentences of {source}; {'; '.join(counts)}"
    yield "Decoder", escape(data["decoder"])
    yield "Command", f"<code>{escape(content['command'])}</code>"


def norms(model: Model) -> Iterable[str]:
    """What the states of each side are."""
    for side in model["sides"]:
        after = "" if side["norm"] == "pre" else ", states after the LayerNorm"
        yield f"{side['side']} {side['norm']}-norm{after}"


def one_side(name: str, models: Sequence[Model], words: dict[str, Any]) -> Iterator[str]:
    """The elements on the encoder or the decoder."""
    sides, labels = [find(model, name) for model in models], [model["label"] for model in models]
    yield f'<h2 id="{name}">{name.capitalize()}</h2>'
    yield html_page.legend(labels)
    yield f"<h3>{STATES.title}</h3><p>{STATES.introduction}</p>"
    yield histograms(sides, labels)
    yield '<div class="cards">'
    for measure in STATES.measures:
        lines = state_lines(sides, measure)
        if lines:  # sentences of one token have no pairs
            panel = Panel(measure.title, lines, figures.limits(lines, measure.log), measure.log)
            yield card(measure, html_page.figure(picture(panel, labels)), words)
    yield "</div>"
    for group in MOVES:
        yield f"<h3>{group.title}</h3><p>{group.introduction.format(**words)}</p>"
        for measure in group.measures:
            found = {x: move_lines(sides, measure, x) for x in operators_of(sides)}
            together = [line for lines in found.values() for line in lines]
            if not together:
                continue
            limits = figures.limits(together, measure.log)
            panels = (
                html_page.figure(
                    picture(Panel(f"{measure.title}, {title}", lines, limits, measure.log), labels),
                    title,
                )
                for operator, lines in found.items()
                if lines and (title := escape(NAMES.get(operator, operator)))
            )
            yield card(measure, html_page.panels(panels), words)


def operators_of(sides: Sequence[Side]) -> list[str]:
    """The operators of all models, those of `NAMES` in that order, and then the whole layer."""
    found = {row["operator"] for side in sides for row in side["states"][1:]}
    known = [name for name in NAMES if name in found]
    return [*known, *sorted(found - set(known)), LAYER]


def card(measure: Measure, content: str, words: dict[str, Any]) -> str:
    """One measure with its definition and its pictures."""
    return html_page.card(measure.title, escape(measure.definition.format(**words)), content)


def picture(panel: Panel, labels: Sequence[str]) -> str:
    """Lines and, in words, where each begins and ends."""
    ends = "; ".join(
        f"{labels[x.series]}"
        + (f" ({x.label})" if x.dash else "")
        + f": {x.means[0]:.3g} at {x.x[0]:g} to {x.means[-1]:.3g} at {x.x[-1]:g}"
        for x in panel.lines
    )
    return figures.lines_svg(panel, f"{panel.title} by layer. {ends}.", "layer")


def histograms(sides: Sequence[Side], labels: Sequence[str]) -> str:
    """The distributions of the cosines, a picture for each model, on one scale."""
    found = [[row for row in side["states"] if "cosine_histogram" in row] for side in sides]
    if not all(found):
        return ""
    counts = [np.array([row["cosine_histogram"] for row in rows], dtype=float) for rows in found]
    shares = [x / x.sum(axis=1, keepdims=True) for x in counts]
    top = max(x.max() for x in shares)
    pictures = []
    for i, (label, rows, share) in enumerate(zip(labels, found, shares, strict=True)):
        quantiles = np.array([list(row["cosine_quantiles"].values()) for row in rows]).T
        starts = [j for j, row in enumerate(rows) if row["time"] == int(row["time"])]
        alt = (
            f"Distribution of the cosines, {label}. Median {quantiles[1][0]:.3g} before the first "
            f"layer, {quantiles[1][-1]:.3g} after the last."
        )
        drawn = figures.distributions_svg(share, quantiles, starts, top, alt)
        pictures.append(html_page.figure(drawn, html_page.key(i, label)))
    return html_page.card(
        "Cosines",
        "Distribution of the cosines of all pairs of tokens of a sentence, a column for each "
        "state: the stronger the colour, the more. Lines: median, and the 5th and 95th percentile.",
        html_page.panels(pictures),
    )


def all_figures(model: Model) -> Iterator[str]:
    """All figures of one model, in tables."""
    yield f"<h3>{escape(model['label'])}</h3>"
    of_moves = (*STEPS.measures, *JACOBIANS.measures, *ERRORS.measures)
    for side in model["sides"]:
        for title, rows, measures in (
            ("states", side["states"], STATES.measures),
            ("sub-layers and layers", [*side["states"][1:], *side["layers"]], of_moves),
        ):
            yield html_page.folded_table(
                f"{side['side'].capitalize()}, {title}",
                [measure.title for measure in measures],
                [[escape(row["name"]), *(cell(row, x.name) for x in measures)] for row in rows],
            )


def cell(row: Row, name: str) -> str:
    """A mean and its standard deviation."""
    value = mean(row, name)
    if value is None:
        return ""
    figure = row["figures"].get(name)
    return f"{value:.3g}" + (f" <small>± {figure['sd']:.2g}</small>" if figure else "")
