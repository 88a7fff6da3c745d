"""The figures as one HTML page, which needs nothing but itself."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from macaron_fairseq.analysis.dynamics import pictures
from macaron_fairseq.analysis.dynamics.glossary import (
    ERRORS,
    JACOBIANS,
    MOVES,
    STATES,
    STEPS,
    Measure,
)
from macaron_fairseq.analysis.dynamics.pictures import Line

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

CSS = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --text: #1c2430; --soft: #5a6472; --rule: #d9dee5;
  --model-0: #1f6fb2; --model-1: #c2571a; --model-2: #2f8f4e; --model-3: #8a4fb0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181e; --card: #1c222b; --text: #e4e8ee; --soft: #a2acba; --rule: #333c48;
    --model-0: #6ab0ec; --model-1: #f2a065; --model-2: #74cf93; --model-3: #c69be6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 78rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.6rem; margin: .5rem 0; }
h2 { font-size: 1.35rem; margin: 2.5rem 0 .5rem; border-bottom: 2px solid var(--rule); }
h3 { font-size: 1.1rem; margin: 1.8rem 0 .3rem; }
h4 { font-size: 1rem; margin: 0; }
p { margin: .4rem 0; max-width: 48rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .5rem 0; }
a { color: inherit; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .4em; }
.measure { margin: 1rem 0; padding: .8rem; background: var(--card); border-radius: .5rem; }
.measures { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }
.measures .measure { margin: 0; }
.panels { display: grid; gap: .5rem 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)); }
figure { margin: 0; max-width: 32rem; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .9rem; }
dt { font-weight: 600; }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
summary { cursor: pointer; padding: .3rem 0; }
code { overflow-wrap: anywhere; }
"""


def render(content: dict[str, Any]) -> str:
    """The page of what `writing.summary` gives."""
    models, settings = content["models"], content["settings"]
    words = {
        "threshold": settings["threshold"],
        "beta": settings["beta"],
        "jacobians": settings["jacobian_sentences"],
    }
    sides = [side["side"] for side in models[0]["sides"]]
    links = " ".join(f'<a href="#{side}">{side.capitalize()}</a>' for side in sides)
    body = "\n".join(
        [
            f"<h1>{escape(content['title'])}</h1>",
            legend(models),
            facts(content),
            f'<nav aria-label="Contents">{links} <a href="#numbers">All figures</a></nav>',
            *(one_side(side, models, words) for side in sides),
            '<h2 id="numbers">All figures</h2>',
            '<p class="soft">Means, with the standard deviation of what the mean is taken over: '
            "tokens, pairs of tokens or sentences. The JSON file beside this page has the numbers "
            "of each, and the histograms.</p>",
            *(tables(model) for model in models),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(content['title'])}</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def legend(models: Sequence[Model]) -> str:
    """The colours of the models."""
    return (
        "<nav>"
        + " ".join(f"<strong>{named(models, i)}</strong>" for i in range(len(models)))
        + "</nav>"
    )


def named(models: Sequence[Model], i: int) -> str:
    """A model's label with its colour."""
    colour = i % len(pictures.COLOURS)
    return (
        f'<span class="key" style="background: var(--model-{colour})"></span>'
        f"{escape(models[i]['label'])}"
    )


def facts(content: dict[str, Any]) -> str:
    """What was measured on what."""
    data, models = content["data"], content["models"]
    rows = [
        *(
            (
                escape(model["label"]),
                f"{escape(', '.join([model['architecture'], *model['settings'].values()]))}, "
                f"{model['parameters']:,} parameters, "
                f"{', '.join(norms(model))}{bits(model)}; <code>{escape(model['path'])}</code>",
            )
            for model in models
        ),
        (
            "Text",
            f"{data['sentences']:,} sentences of <code>{escape(data['source'])}</code>; "
            + "; ".join(
                f"{side}: {count['tokens']:,} tokens, {count['unknown'] / count['tokens']:.1%} of "
                "them unknown"
                for side, count in data["tokens"].items()
            ),
        ),
        ("Decoder", escape(data["decoder"])),
        ("Command", f"<code>{escape(content['command'])}</code>"),
    ]
    return (
        "<dl>" + "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows) + "</dl>"
        "<p class='soft'>Each sentence runs alone, so that no padding enters. Its tokens, the "
        "end-of-sentence symbol among them, are the particles; cosines are of pairs within a "
        "sentence. Bands show one standard deviation.</p>"
    )


def norms(model: Model) -> Iterable[str]:
    """What the states of each side are."""
    for side in model["sides"]:
        after = "" if side["norm"] == "pre" else ", states after the LayerNorm"
        yield f"{side['side']} {side['norm']}-norm{after}"


def bits(model: Model) -> str:
    """How likely the model finds the references, where there are any."""
    needed = model["bits_per_token"]
    return "" if needed is None else f", {needed:.3g} bits per token of the references"


# --- one side ------------------------------------------------------------------------------------


def one_side(name: str, models: Sequence[Model], words: dict[str, Any]) -> str:
    """Encoder or decoder."""
    sides = [find(model, name) for model in models]
    parts = [
        f'<h2 id="{name}">{name.capitalize()}</h2>',
        legend(models),
        f"<h3>{STATES.title}</h3><p>{STATES.introduction}</p>",
        histograms(sides, models),
        '<div class="measures">',
    ]
    for measure in STATES.measures:
        lines = state_lines(sides, measure)
        if not lines:  # sentences of one token have no pairs
            continue
        picture = picture_of(measure, lines, models, extent(measure, lines), measure.title)
        parts.append(card(measure, f"<figure>{picture}</figure>", words))
    parts.append("</div>")
    for group in MOVES:
        parts.append(f"<h3>{group.title}</h3><p>{group.introduction.format(**words)}</p>")
        for measure in group.measures:
            panels = {
                operator: lines
                for operator in operators_of(sides)
                if (lines := move_lines(sides, measure, operator))
            }
            if not panels:
                continue
            limits = extent(measure, [line for lines in panels.values() for line in lines])
            figures = "".join(
                f"<figure><figcaption>{shown(operator)}</figcaption>"
                + picture_of(
                    measure,
                    lines,
                    models,
                    limits,
                    f"{measure.title}, {shown(operator)}",
                )
                + "</figure>"
                for operator, lines in panels.items()
            )
            parts.append(card(measure, f'<div class="panels">{figures}</div>', words))
    return "\n".join(parts)


def operators_of(sides: Sequence[Side]) -> list[str]:
    """The operators of all models, those of `NAMES` in that order, and then the whole layer."""
    found = {row["operator"] for side in sides for row in side["states"][1:]}
    known = [name for name in NAMES if name in found]
    return [*known, *sorted(found - set(known)), LAYER]


def shown(operator: str) -> str:
    """An operator's name in a heading."""
    return escape(NAMES.get(operator, operator))


def card(measure: Measure, figures: str, words: dict[str, Any]) -> str:
    """One measure with its definition and its pictures."""
    definition = escape(measure.definition.format(**words))
    return (
        f'<section class="measure"><h4>{measure.title}</h4>'
        f'<p class="soft">{definition}</p>{figures}</section>'
    )


def find(model: Model, name: str) -> Side:
    """A model's encoder or decoder."""
    return next(side for side in model["sides"] if side["side"] == name)


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
        if len(occurrences) > len(pictures.DASHES):  # too many for a line each
            lines.append(line(i, 1, rows, measure, "time"))
            continue
        for occurrence in occurrences:
            of_it = [row for row in rows if row["occurrence"] == occurrence]
            lines.append(line(i, occurrence, of_it, measure, "layer"))
    return [x for x in lines if x]


def line(i: int, occurrence: int, rows: Sequence[Row], measure: Measure, x: str) -> Line | None:
    """One line, of the rows that have the measure; None if none has."""
    rows = [row for row in rows if mean(row, measure) is not None]
    if not rows:
        return None
    sds = None
    if measure.band and not measure.log and all(measure.name in row["figures"] for row in rows):
        sds = [row["figures"][measure.name]["sd"] for row in rows]
    return Line(i, occurrence, [r[x] for r in rows], [mean(r, measure) for r in rows], sds)


def mean(row: Row, measure: Measure) -> Any:
    """A figure's mean; None if the row does not have it."""
    if measure.name in row["figures"]:
        return row["figures"][measure.name]["mean"]
    return row.get(measure.name)


def extent(measure: Measure, lines: Sequence[Line]) -> tuple[float, float]:
    """The vertical limits that show all means, and one deviation around them."""
    means = np.concatenate([line.means for line in lines])
    if measure.log:
        positive = means[means > 0]
        return (
            (float(positive.min() / 1.5), float(positive.max() * 1.5))
            if positive.size
            else (1e-9, 1)
        )
    around = [np.zeros(len(x.means)) if x.sds is None else np.asarray(x.sds) for x in lines]
    spread = np.concatenate(around)
    low, high = float((means - spread).min()), float((means + spread).max())
    if means.min() >= 0:  # what is never negative has no room below
        low = max(low, 0.0)
    if low == high:
        return (-0.05, 1.0) if low == 0 else (low - abs(low) / 2, low + abs(low) / 2)
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def picture_of(
    measure: Measure,
    lines: Sequence[Line],
    models: Sequence[Model],
    limits: tuple[float, float],
    title: str,
) -> str:
    """Lines and, in words, where each begins and ends."""
    ends = "; ".join(
        f"{models[x.model]['label']}"
        + (f" ({pictures.ordinal(x.occurrence)} in the layer)" if x.occurrence > 1 else "")
        + f": {x.means[0]:.3g} at {x.x[0]:g} to {x.means[-1]:.3g} at {x.x[-1]:g}"
        for x in lines
    )
    return pictures.lines_svg(lines, f"{title} by layer. {ends}.", "layer", limits, measure.log)


def histograms(sides: Sequence[Side], models: Sequence[Model]) -> str:
    """The distributions of the cosines, a picture for each model, on one scale."""
    found = []
    for side in sides:
        rows = [row for row in side["states"] if "cosine_histogram" in row]
        counts = np.array([row["cosine_histogram"] for row in rows], dtype=float)
        if rows:
            found.append((rows, counts / counts.sum(axis=1, keepdims=True)))
        else:
            found.append((rows, counts))
    if not all(rows for rows, _ in found):
        return ""
    top = max(shares.max() for _, shares in found)
    figures = []
    for i, (rows, shares) in enumerate(found):
        quantiles = np.array([list(row["cosine_quantiles"].values()) for row in rows]).T
        starts = [j for j, row in enumerate(rows) if row["time"] == int(row["time"])]
        alt = (
            f"Distribution of the cosines, {models[i]['label']}. Median {quantiles[1][0]:.3g} "
            f"before the first layer, {quantiles[1][-1]:.3g} after the last."
        )
        picture = pictures.histograms_svg(shares, quantiles, starts, top, alt)
        figures.append(f"<figure><figcaption>{named(models, i)}</figcaption>{picture}</figure>")
    return (
        '<section class="measure"><h4>Cosines</h4><p class="soft">Distribution of the cosines of '
        "all pairs of tokens of a sentence, a column for each state: the stronger the colour, the "
        "more. Lines: median, and the 5th and 95th percentile.</p>"
        f'<div class="panels">{"".join(figures)}</div></section>'
    )


# --- tables --------------------------------------------------------------------------------------


def tables(model: Model) -> str:
    """All figures of one model, folded."""
    parts = [f"<h3>{escape(model['label'])}</h3>"]
    for side in model["sides"]:
        for title, rows, measures in (
            ("states", side["states"], STATES.measures),
            (
                "sub-layers and layers",
                [*side["states"][1:], *side["layers"]],
                (*STEPS.measures, *JACOBIANS.measures, *ERRORS.measures),
            ),
        ):
            heads = "".join(f"<th scope='col'>{measure.title}</th>" for measure in measures)
            lines = "".join(
                f"<tr><th scope='row'>{escape(row['name'])}</th>"
                + "".join(f"<td>{cell(row, measure)}</td>" for measure in measures)
                + "</tr>"
                for row in rows
            )
            parts.append(
                f"<details><summary>{side['side'].capitalize()}, {title}</summary>"
                f'<div class="scroll"><table><thead><tr><th></th>{heads}</tr></thead>'
                f"<tbody>{lines}</tbody></table></div></details>"
            )
    return "\n".join(parts)


def cell(row: Row, measure: Measure) -> str:
    """A mean and its standard deviation."""
    value = mean(row, measure)
    if value is None:
        return ""
    figure = row["figures"].get(measure.name)
    return f"{value:.3g}" + (f" <small>± {figure['sd']:.2g}</small>" if figure else "")
