"""A page on which points move: a slider over time or layers, rotation, values to point at.

One HTML file that asks for nothing else. Plotly draws. Its JavaScript is taken from the installed
package and stands in the page compressed, 1.9 MB instead of 4.9.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.common import html_page
from macaron_fairseq.common.errors import explain_missing

HERE = Path(__file__).parent
# Of all paths together, before the page leaves them out until one asks for them.
MANY = 20_000


@dataclass(frozen=True)
class Scene:
    """Points that move: t steps of n points in two or three dimensions."""

    group: str  # a heading in the list of scenes; "" for none
    title: str  # its name there
    steps: Sequence[str]  # what each is called, (t,)
    names: Sequence[str]  # of the points, (n,)
    positions: Floats  # (t, n, 2) or (t, n, 3)
    axes: Sequence[str]  # (2,) or (3,)
    colours: Sequence[str]  # as CSS has them, (n,)
    values: Mapping[str, Floats] = field(default_factory=dict)  # to point at, each (t, n)
    on_sphere: bool = False  # whether to draw the unit sphere, or circle
    labelled: bool = False  # whether the names stand next to the points


def library() -> str:
    """Plotly's JavaScript, of the installed package.

    Raises:
        UserError: if it is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        explain_missing(error, "plotly", "pages")
    return get_plotlyjs()


def page(
    title: str, introduction: str, facts: Iterable[tuple[str, str]], scenes: Sequence[Scene]
) -> str:
    """The page.

    Args:
        title: text.
        introduction: a paragraph, may hold elements.
        facts: names and what belongs to each, may hold elements.
        scenes: one at least; the first is shown first.

    Raises:
        UserError: see `library`.
    """
    packed_scenes = html_page.as_json([*map(packed, scenes)])
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{introduction}</p>",
        '<noscript><p class="soft">This page needs JavaScript.</p></noscript>',
        controls(scenes),
        f'<h3 id="which"{" hidden" if len(scenes) == 1 else ""}></h3>',
        '<div id="plot" role="img" aria-label="The points"></div>',
        '<p><output id="values" for="point step"></output></p>',
        '<p class="soft"><span id="turning">Drag to turn, or use the slider <em>Turn</em>.</span> '
        "Point at a point for its values, or give its number. The arrow keys move a slider that "
        "has the focus.</p>",
        '<p class="soft" id="flat" hidden>This browser has no WebGL: only the first two '
        "coordinates are shown.</p>",
        html_page.definitions(facts),
        f'<script type="text/plain" id="library">{html_page.deflated(library().encode())}</script>',
        f'<script type="application/json" id="scenes">{packed_scenes}</script>',
    ]
    style = (HERE / "interactive_page.css").read_text("utf-8")
    script = "".join((HERE / x).read_text("utf-8") for x in ("number.js", "interactive_page.js"))
    return html_page.page(title, parts, style, script)


def controls(scenes: Sequence[Scene]) -> str:
    """What to choose a scene and a step with."""
    groups: dict[str, list[str]] = {}
    for i, scene in enumerate(scenes):
        option = f'<option value="{i}" dir="auto">{escape(scene.title)}</option>'
        groups.setdefault(scene.group, []).append(option)
    options = "".join(
        f'<optgroup label="{escape(name)}">{"".join(found)}</optgroup>' if name else "".join(found)
        for name, found in groups.items()
    )
    hidden = " hidden" if len(scenes) == 1 else ""
    return (
        '<form id="controls" aria-label="What is shown">'
        f'<label class="wide"{hidden}>Shown <select id="choice">{options}</select></label>'
        '<label class="wide">Step <input type="range" id="step" min="0" value="0"></label>'
        '<button type="button" id="play">Play</button><span id="now"></span>'
        '<label class="turn">Turn <input type="range" id="turn" min="-180" max="180" step="5" '
        'value="45"></label>'
        '<label><input type="checkbox" id="paths"> paths</label>'
        '<label><input type="checkbox" id="names"> names</label>'
        '<label>Values of point <input type="number" id="point" min="1"></label></form>'
    )


def packed(scene: Scene) -> dict[str, Any]:
    """A scene as the script reads it."""
    paths = scene.positions.shape[0] * scene.positions.shape[1] <= MANY
    return {
        "group": scene.group,
        "title": scene.title,
        "steps": [*scene.steps],
        "names": [*scene.names],
        "axes": [*scene.axes],
        "colours": [*scene.colours],
        "sphere": scene.on_sphere,
        "labelled": scene.labelled,
        "paths": paths,
        "positions": numbers(scene.positions),
        "values": {name: numbers(values) for name, values in scene.values.items()},
    }


def numbers(array: Floats) -> dict[str, Any]:
    """An array as 32-bit numbers, lowest byte first; it lies between `from` and `to`."""
    return {
        "shape": [*array.shape],
        "from": float(array.min()),
        "to": float(array.max()),
        "deflated": html_page.deflated(array.astype("<f4").tobytes()),
    }
