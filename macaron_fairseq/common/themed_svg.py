"""Pictures of matplotlib as elements of a page, whose colours follow the page's light or dark."""

import re
import zlib
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from macaron_fairseq.common import palette

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.figure import Figure

# matplotlib writes fixed colours; in a page's SVG these become what the page's style sheet says.
TEXT = "#010203"
THEMED_COLOURS = tuple(f"#01{i + 1:02x}f0" for i in range(len(palette.LIGHT)))
THEMED = {
    TEXT: "currentColor",
    **{colour: palette.variable(i) for i, colour in enumerate(THEMED_COLOURS)},
}

# matplotlib's settings: of all pictures, and of those in a page, also while they are drawn.
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "grid.alpha": 0.12,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "text.parse_math": False,  # a label with two $ is no formula
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 3,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "macaron",  # the same page from the same figures
}
OF_TEXT = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
PAGE_STYLE: dict[Any, Any] = {**STYLE, **dict.fromkeys((*OF_TEXT, "grid.color"), TEXT)}


def element(figure: "Figure", alt: str) -> str:
    """An SVG element whose colours follow the page and whose names no other element has.

    Args:
        figure: drawn, as this is called, with `PAGE_STYLE`; series in `THEMED_COLOURS`.
        alt: what to say where the picture cannot be seen.
    """
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    file = StringIO()
    figure.savefig(file, format="svg")
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for colour, themed in THEMED.items():
        text = text.replace(colour, themed)
    width, height = (re.search(rf'{x}="([\d.]+)pt"', text) for x in ("width", "height"))
    assert width and height
    head = (
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {width[1]} {height[1]}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    body = text[text.index(">") + 1 :].strip()
    # Names count for the whole page; equal ones would refer to another picture's parts.
    key = f"p{zlib.crc32((head + body).encode()):x}"
    body = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{key}-", body)
    return head + body
