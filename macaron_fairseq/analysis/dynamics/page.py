"""The page of `macaron-fairseq dynamics`: pictures, tables, and single sentences.

Each picture stands there as matplotlib drew it, with what it shows as JSON next to it; without
JavaScript that is all. The scripts draw it anew with values to point at: `charts.js` the
pictures of all sentences, `sentences.js` single ones, which no picture could show all of.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from macaron_fairseq.analysis import figures
from macaron_fairseq.analysis.by_layer import NAMES, Measure, Model, Row, Side, find
from macaron_fairseq.analysis.dynamics import differences, sentence_views
from macaron_fairseq.analysis.dynamics.glossary import ERRORS, JACOBIANS, MOVES, STATES, STEPS
from macaron_fairseq.analysis.dynamics.lines import mean, move_lines, operators_of, state_lines
from macaron_fairseq.analysis.dynamics.sentence_views import SideView, View
from macaron_fairseq.analysis.figures import Panel
from macaron_fairseq.analysis.running_statistics import rounded
from macaron_fairseq.common import html_page
from macaron_fairseq.common.wording import number

HERE = Path(__file__).parent
STYLE = HERE / "page.css"
# One module of the page: each uses what stands in those before it.
SCRIPTS = [HERE / f"{x}.js" for x in ("../number", "elements", "charts", "sentences", "page")]
# The values of single sentences are whole numbers, times so much. More digits of attention weights
# would make the page half as large again.
COSINE_SCALE, WEIGHT_SCALE = 10_000, 1_000


def page(content: dict[str, Any], downloads: Mapping[str, str]) -> str:
    """The page of what `measurement.compare` gives.

    Args:
        content: see there.
        downloads: the text of files that the page is to hold, by name.
    """
    models, settings = content["models"], content["settings"]
    words = {
        "threshold": settings["threshold"],
        "beta": settings["beta"],
        "jacobians": settings["jacobian_sentences"],
    }
    labels = [model["label"] for model in models]
    sides = [side["side"] for side in models[0]["sides"]]
    contents = {"differences": "The largest differences"} if len(models) > 1 else {}
    contents |= {side: side.capitalize() for side in sides}
    if content["views"]:
        contents["sentences"] = "Single sentences"
    contents["numbers"] = "All figures"
    links = " ".join(f'<a href="#{name}">{title}</a>' for name, title in contents.items())
    parts = [
        f"<h1>{escape(content['title'])}</h1>",
        f'<nav aria-label="Contents">{links}</nav>',
        controls(labels),
        html_page.definitions(facts(content)),
        f"<p>Download: {', '.join(html_page.download(*x) for x in downloads.items())}.</p>",
        *summary(models),
        "<p class='soft'>Each sentence runs alone, so that no padding enters. Its tokens, the "
        "end-of-sentence symbol among them, are the particles; cosines are of pairs within a "
        "sentence, unless said otherwise. Bands show one standard deviation.</p>",
        *(part for side in sides for part in one_side(side, models, words)),
        *single_sentences(content),
        '<h2 id="numbers">All figures</h2>',
        '<p class="soft">Means, with the standard deviation of what the mean is taken over: '
        "tokens, pairs of tokens or sentences. The files to download have the numbers of each; "
        "the JSON file also the histograms.</p>",
        *(part for model in models for part in all_figures(model)),
    ]
    script = "\n".join(path.read_text("utf-8") for path in SCRIPTS)
    return html_page.page(content["title"], parts, STYLE.read_text("utf-8"), script)


def controls(labels: Sequence[str]) -> str:
    """Which models are shown, and how; without JavaScript a legend."""
    models = "".join(
        f'<label><input type="checkbox" name="model" value="{i}" checked>'
        f"{html_page.key(i, label)}</label>"
        for i, label in enumerate(labels)
    )
    views = ""
    if len(labels) > 1:
        views = (
            "<fieldset><legend>Show</legend>"
            '<label><input type="radio" name="view" value="values" checked>values</label>'
            '<label><input type="radio" name="view" value="difference">'
            f"difference from {escape(labels[0])}</label></fieldset>"
        )
    return (
        f'<div class="without-script">{html_page.legend(labels)}</div>'
        '<form id="controls" class="controls" aria-label="What is shown" hidden>'
        f"<fieldset><legend>Models</legend>{models}</fieldset>{views}</form>"
        f'<script type="application/json" id="labels">{as_json(labels)}</script>'
    )


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


def summary(models: Sequence[Model]) -> Iterator[str]:
    """The largest differences in words."""
    if len(models) == 1:
        return
    yield '<h2 id="differences">The largest differences</h2>'
    items = "".join(f"<li>{escape(x)}</li>" for x in differences.sentences(models))
    yield f"<ul>{items}</ul>"
    yield (
        '<p class="soft">Of whole layers and of the states after them, for each measure where it '
        "differs most. Standard deviations are those of the tokens, pairs or sentences that a mean "
        "is over. With one training run of each model, a difference may come from the seed as well "
        "as from the layers.</p>"
    )


# --- pictures of the layers ----------------------------------------------------------------------


def one_side(name: str, models: Sequence[Model], words: dict[str, Any]) -> Iterator[str]:
    """The elements on the encoder or the decoder."""
    sides, labels = [find(model, name) for model in models], [model["label"] for model in models]
    yield f'<h2 id="{name}">{name.capitalize()}</h2>'
    yield f'<div class="without-script">{html_page.legend(labels)}</div>'
    yield f"<h3>{STATES.title}</h3><p>{STATES.introduction}</p>"
    yield histograms(sides, labels)
    yield '<div class="cards">'
    for measure in STATES.measures:
        lines = state_lines(sides, measure)
        if lines:  # sentences of one token have no pairs
            panel = Panel(measure.title, lines, figures.limits(lines, measure.log), measure.log)
            yield card(measure, picture(panel, labels, "states"), words)
    yield "</div>"
    for group in MOVES:
        cards = [x for measure in group.measures for x in moves(measure, sides, labels, words)]
        if cards:  # there are no Jacobians with --jacobian-sentences 0
            yield f"<h3>{group.title}</h3><p>{group.introduction.format(**words)}</p>"
            yield from cards


def moves(
    measure: Measure, sides: Sequence[Side], labels: Sequence[str], words: dict[str, Any]
) -> Iterator[str]:
    """A measure of sub-layers and layers, with a picture for each operator; none without values."""
    found = {x: move_lines(sides, measure, x) for x in operators_of(sides)}
    together = [line for lines in found.values() for line in lines]
    if not together:
        return
    limits = figures.limits(together, measure.log)
    panels = (
        picture(
            Panel(f"{measure.title}, {title}", lines, limits, measure.log),
            labels,
            "layers",
            title,
        )
        for operator, lines in found.items()
        if lines and (title := escape(NAMES.get(operator, operator)))
    )
    yield card(measure, html_page.panels(panels), words)


def card(measure: Measure, content: str, words: dict[str, Any]) -> str:
    """One measure with its definition and its pictures."""
    return html_page.card(measure.title, escape(measure.definition.format(**words)), content)


def picture(panel: Panel, labels: Sequence[str], of: str, caption: str = "") -> str:
    """Lines, what they show as JSON and, in words, where each begins and ends.

    Args:
        panel: what to draw.
        labels: of the models.
        of: "states" or "layers".
        caption: above the picture.
    """
    ends = "; ".join(
        f"{labels[x.series]}"
        + (f" ({x.label})" if x.dash else "")
        + f": {number(x.means[0])} at {x.x[0]:g} to {number(x.means[-1])} at {x.x[-1]:g}"
        for x in panel.lines
    )
    drawn = figures.lines_svg(panel, f"{panel.title} by layer. {ends}.")
    data = {
        "kind": "lines",
        "title": panel.title,
        "of": of,
        "log": panel.log,
        "limits": panel.limits,
        "lines": [
            {
                "series": x.series,
                "dash": x.dash,
                "label": x.label,
                "x": [*x.x],
                "means": [*x.means],
                "sds": x.sds,
            }
            for x in panel.lines
        ],
    }
    return html_page.figure(with_data(drawn, data), caption)


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
            f"Distribution of the cosines, {label}. Median {number(quantiles[1][0])} before the "
            f"first layer, {number(quantiles[1][-1])} after the last."
        )
        drawn = figures.distributions_svg(share, quantiles, starts, top, alt, i)
        data = {
            "kind": "distributions",
            "series": i,
            "top": top,
            "names": [row["name"] for row in rows],
            "times": [row["time"] for row in rows],
            "counts": [row["cosine_histogram"] for row in rows],
            "quantiles": [[*row["cosine_quantiles"].values()] for row in rows],
        }
        pictures.append(html_page.figure(with_data(drawn, data), html_page.key(i, label)))
    return html_page.card(
        "Cosines",
        "Distribution of the cosines of all pairs of tokens of a sentence, a column for each "
        "state: the stronger the colour, the more. Lines, where no difference is shown: median, "
        "and the 5th and 95th percentile.",
        html_page.panels(pictures),
    )


def with_data(drawn: str, data: dict[str, Any]) -> str:
    """A picture and what it shows."""
    return f'{drawn}<script type="application/json">{as_json(data)}</script>'


def as_json(data: Any) -> str:
    """JSON that can stand within a `script` element, numbers to six digits."""
    shorter = json.loads(json.dumps(data), parse_float=lambda written: rounded(float(written)))
    return html_page.as_json(shorter)


# --- single sentences ----------------------------------------------------------------------------


def single_sentences(content: dict[str, Any]) -> Iterator[str]:
    """What the script needs to show sentences, and what to say without it."""
    if not content["views"]:
        return
    shown = len(content["views"])
    yield '<h2 id="sentences">Single sentences</h2>'
    yield (
        f"<p>{shown} of the {content['data']['sentences']:,} sentences, spread over those that a "
        "picture can hold. Point at a cell for its value, or go to a picture with the tab key and "
        "through it with the arrow keys.</p>"
        "<noscript><p>This part needs JavaScript.</p></noscript>"
    )
    data = {
        "threshold": content["settings"]["threshold"],
        "sentences": [
            {
                "number": views[0].number,
                "title": sentence_views.title(views[0].sides[0].tokens),
                "models": [packed(view) for view in views],
            }
            for views in content["views"]
        ],
    }
    yield (
        '<div id="sentence-view"></div>'
        f'<script type="application/json" id="sentence-data">{as_json(data)}</script>'
    )


def packed(view: View) -> dict[str, Any]:
    """A sentence in one model: what its maps are, and all their numbers in one text.

    Base64 of zlib of 16-bit whole numbers, lowest byte first, each a value times its map's scale.
    """
    arrays: list[np.ndarray] = []
    sides = [
        {"side": side.side, "tokens": side.tokens, "maps": [*maps_of(side, arrays)]}
        for side in view.sides
    ]
    flat = np.concatenate([x.ravel() for x in arrays])
    whole = np.round(flat).astype("<i2").tobytes()
    return {"sides": sides, "packed": html_page.deflated(whole)}


def maps_of(side: SideView, arrays: list[np.ndarray]) -> Iterator[dict[str, Any]]:
    """What the maps of one side are; their numbers, times `scale`, are appended to `arrays`."""
    for layer, cosines in enumerate(side.cosines):
        arrays.append(COSINE_SCALE * cosines)
        found = {"kind": "cosine", "layer": layer}
        yield {**found, "shape": [1, *cosines.shape], "scale": COSINE_SCALE}
    for x in side.attentions:
        arrays.append(WEIGHT_SCALE * x.weights)
        found = {"kind": x.kind, "layer": x.layer, "occurrence": x.occurrence, "keys": x.keys}
        yield {**found, "shape": [*x.weights.shape], "scale": WEIGHT_SCALE}


# --- tables --------------------------------------------------------------------------------------


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
    sd = row["figures"].get(name, {}).get("sd")
    return number(value) + (f" <small>± {number(sd)}</small>" if sd is not None else "")
