"""Pictures of the figures, as SVG text for a page or as a PNG file."""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO, StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from PIL import Image

# One for each model: blue, orange, green, purple, as on a light page.
COLOURS = ("#1f6fb2", "#c2571a", "#2f8f4e", "#8a4fb0")

# matplotlib writes fixed colours; in a page's SVG these become what the page's style sheet says.
TEXT = "#010203"
MODELS = ("#0101f0", "#0102f0", "#0103f0", "#0104f0")
THEMED = {
    TEXT: "currentColor",
    **{colour: f"var(--model-{i})" for i, colour in enumerate(MODELS)},
}

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
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 3,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "dynamics",  # the same page from the same figures
}
DASHES = ("solid", (0, (3, 1.5)), (0, (1, 1.2)))


@dataclass(frozen=True)
class Line:
    """A measure of one model along its layers."""

    model: int
    occurrence: int  # of an operator that a layer has several times: how the line is dashed
    x: Sequence[float]
    means: Sequence[float]
    sds: Sequence[float] | None


def lines_svg(
    lines: Sequence[Line], alt: str, xlabel: str, limits: tuple[float, float], log: bool = False
) -> str:
    """Lines with a band of one standard deviation, on axes from `limits`."""

    def draw(axes: Axes) -> None:
        draw_lines(axes, lines, MODELS, xlabel, limits, log)

    return svg(draw, alt)


def draw_lines(
    axes: Axes,
    lines: Sequence[Line],
    colours: Sequence[str],
    xlabel: str,
    limits: tuple[float, float],
    log: bool,
) -> None:
    """Draw them; where there are several of an operator in a layer, a legend tells which."""
    for line in lines:
        colour = colours[line.model % len(colours)]
        dash = DASHES[(line.occurrence - 1) % len(DASHES)]
        axes.plot(line.x, line.means, color=colour, linestyle=dash, marker="o")
        if line.sds is not None:
            low, high = (np.add(line.means, sign * np.asarray(line.sds)) for sign in (-1, 1))
            axes.fill_between(line.x, low, high, color=colour, alpha=0.13, linewidth=0)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(*limits)
    axes.set_xlabel(xlabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    occurrences = sorted({line.occurrence for line in lines})
    if len(occurrences) > 1:
        for occurrence in occurrences:
            axes.plot(
                [],
                [],
                color="grey",
                linestyle=DASHES[(occurrence - 1) % len(DASHES)],
                label=f"{ordinal(occurrence)} in the layer",
            )
        axes.legend(loc="best")


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n, 'th') }"


def histograms_svg(
    shares: np.ndarray, quantiles: np.ndarray, starts: Sequence[int], top: float, alt: str
) -> str:
    """A column for each state: how the cosines from -1 to 1 are distributed.

    Args:
        shares: of all cosines, by state and bin, (states, bins).
        quantiles: lines to draw, (lines, states).
        starts: the state before each layer, and the last state.
        top: the share that is drawn darkest.
        alt: what to say where the picture cannot be seen.
    """

    def draw(axes: Axes) -> None:
        depth = np.sqrt(np.clip(shares.T / top, 0, 1))  # the square root shows the small ones
        image = np.zeros((*depth.shape, 4))
        image[..., :3] = mpl.colors.to_rgb("#3b86c8")  # in the middle: for light pages and dark
        image[..., 3] = depth
        extent = (-0.5, len(shares) - 0.5, -1, 1)
        axes.imshow(image, origin="lower", aspect="auto", extent=extent, interpolation="nearest")
        for values, dash in zip(quantiles, ("dotted", "solid", "dotted"), strict=True):
            axes.plot(range(len(shares)), values, color=TEXT, linestyle=dash, linewidth=1)
        axes.set_ylim(-1, 1)
        axes.set_xticks(starts, [str(i) for i in range(len(starts))])
        axes.set_xlabel("layer")
        axes.grid(False)

    return svg(draw, alt)


def svg(draw: Callable[[Axes], None], alt: str) -> str:
    """An SVG element whose colours follow the page and whose names are its own.

    Args:
        draw: draws on the axes.
        alt: what to say where the picture cannot be seen.
    """
    colours: dict[Any, Any] = {
        name: TEXT
        for name in (
            "text.color",
            "axes.labelcolor",
            "axes.edgecolor",
            "xtick.color",
            "ytick.color",
        )
    }
    with mpl.rc_context({**STYLE, **colours, "grid.color": TEXT}):
        figure = Figure(figsize=(3.5, 2.3))
        figure.patch.set_alpha(0)
        # Fixed margins, so that pictures beside each other align.
        axes: Any = figure.add_axes((0.17, 0.19, 0.81, 0.78))
        axes.patch.set_alpha(0)
        draw(axes)
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


def png(
    panels: Sequence[tuple[str, Sequence[Line], tuple[float, float], bool]],
    labels: Sequence[str],
    columns: int,
) -> bytes:
    """A PNG file of panels, (title, lines, limits, log), row by row, with the models' labels."""
    rows = -(-len(panels) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.3 * columns, 2.35 * rows + 0.4), layout="constrained")
        for axes, (title, lines, limits, log) in zip(
            np.ravel(figure.subplots(rows, columns)), panels, strict=True
        ):
            draw_lines(axes, lines, COLOURS, "layer", limits, log)
            axes.set_title(title, fontsize=9)
        handles = [
            mpl.lines.Line2D([], [], color=COLOURS[i % len(COLOURS)], marker="o")
            for i in range(len(labels))
        ]
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        file = BytesIO()
        figure.savefig(file, format="png", dpi=90)
    small = BytesIO()  # a palette makes it a third as large
    Image.open(file).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return small.getvalue()
