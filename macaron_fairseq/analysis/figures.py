"""Pictures, drawn by matplotlib: as PNG files, and as SVG text that follows a page's colours."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from textwrap import wrap
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from PIL import Image

from macaron_fairseq.common import palette, themed_svg
from macaron_fairseq.common.themed_svg import STYLE, TEXT, THEMED_COLOURS

# The last one is for all occurrences together, where a layer has an operator more than three times.
DASHES = ("solid", (0, (3, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
ALL_TOGETHER = len(DASHES) - 1
LETTER = 1 / 130  # inches that a letter is wide on average, for each point of its size
KEY = 9  # letters that a line in a legend and the space around it take
HALF = 0.2  # layers to each side of a single one: the width of a line that has no other


@dataclass(frozen=True)
class Line:
    """A line with, where `sds` are given, a band of one standard deviation."""

    series: int  # its colour and its mark
    x: Sequence[float]
    means: Sequence[float]
    sds: Sequence[float] | None = None
    dash: int = 0  # of `DASHES`
    label: str = ""  # of its dash


@dataclass(frozen=True)
class Panel:
    """Lines on axes with these vertical limits."""

    title: str
    lines: Sequence[Line]
    limits: tuple[float, float]
    log: bool = False


def limits(lines: Sequence[Line], log: bool = False) -> tuple[float, float]:
    """The vertical limits that show all means, and one deviation around them."""
    means = np.concatenate([line.means for line in lines])
    if log:
        positive = means[means > 0]
        if not positive.size:
            return 1e-9, 1
        return float(positive.min() / 1.5), float(positive.max() * 1.5)
    spread = np.concatenate(
        [np.zeros(len(x.means)) if x.sds is None else np.asarray(x.sds) for x in lines]
    )
    low, high = float((means - spread).min()), float((means + spread).max())
    if means.min() >= 0:  # what is never negative has no room below
        low = max(low, 0.0)
    if low == high:
        return (-0.05, 1.0) if low == 0 else (low - abs(low) / 2, low + abs(low) / 2)
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def lines_svg(panel: Panel, alt: str) -> str:
    """The panel without its title, as an element of a page."""
    return svg(lambda axes: draw_lines(axes, panel, THEMED_COLOURS), alt)


def draw_lines(axes: Axes, panel: Panel, colours: Sequence[str]) -> None:
    """Draw lines over layers; where dashes differ, a legend tells what they stand for."""
    for line in panel.lines:
        colour, dash = colours[line.series % len(colours)], DASHES[line.dash % len(DASHES)]
        axes.plot(line.x, line.means, color=colour, ls="", marker=palette.mark(line.series))
        wide = widened(line)
        axes.plot(wide.x, wide.means, color=colour, ls=dash)
        if wide.sds is not None:
            low, high = (np.add(wide.means, sign * np.asarray(wide.sds)) for sign in (-1, 1))
            axes.fill_between(wide.x, low, high, color=colour, alpha=0.13, linewidth=0)
    axes.set_ylim(*panel.limits)
    if panel.log:
        scale_by_logarithm(axes)
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    labels = {line.dash: line.label for line in panel.lines}
    if len(labels) > 1:
        for i, label in sorted(labels.items()):
            axes.plot([], [], color="grey", label=label, ls=DASHES[i % len(DASHES)])
        axes.legend(loc="best")


def widened(line: Line) -> Line:
    """The line; of a single layer with a width, or neither dash nor band could be seen."""
    if len(line.x) > 1:
        return line
    x, sds = line.x[0], None if line.sds is None else [*line.sds, *line.sds]
    return replace(line, x=[x - HALF, x + HALF], means=[*line.means, *line.means], sds=sds)


def scale_by_logarithm(axes: Axes) -> None:
    """Give the vertical axis, whose limits are set, a logarithmic scale with plain numbers.

    They stand at 1, 2 and 5, or over many decades at 1 alone.
    """
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def distributions_svg(
    shares: np.ndarray,
    quantiles: np.ndarray,
    ticks: Sequence[int],
    top: float,
    alt: str,
    series: int,
) -> str:
    """A column for each state: how values from -1 to 1 are distributed.

    Args:
        shares: of all values, by state and bin, (states, bins).
        quantiles: lines to draw, a low one, the median and a high one, (3, states).
        ticks: the states to number.
        top: the share that is drawn darkest.
        alt: what to say where the picture cannot be seen.
        series: its colour.
    """

    def draw(axes: Axes) -> None:
        depth = np.sqrt(np.clip(shares.T / top, 0, 1))  # the square root shows the small ones
        image = np.zeros((*depth.shape, 4))
        image[..., :3] = mpl.colors.to_rgb(palette.area(series))
        image[..., 3] = depth
        extent = (-0.5, len(shares) - 0.5, -1, 1)
        axes.imshow(image, origin="lower", aspect="auto", extent=extent, interpolation="nearest")
        for values, dash in zip(quantiles, ("dotted", "solid", "dotted"), strict=True):
            axes.plot(range(len(shares)), values, color=TEXT, linestyle=dash, linewidth=1)
        axes.set_ylim(-1, 1)
        axes.set_xticks(ticks, [str(i) for i in range(len(ticks))])
        axes.set_xlabel("layer")
        axes.grid(False)

    return svg(draw, alt)


def svg(draw: Callable[[Axes], None], alt: str) -> str:
    """An SVG element whose colours follow the page and whose names no other element has.

    Args:
        draw: draws on the axes.
        alt: what to say where the picture cannot be seen.
    """
    with mpl.rc_context(themed_svg.PAGE_STYLE):
        figure = Figure(figsize=(3.5, 2.3))
        # Fixed margins, so that pictures next to each other align.
        axes: Any = figure.add_axes((0.17, 0.19, 0.81, 0.78))
        draw(axes)
        head, end, body = themed_svg.element(figure, alt).partition(">")
    return head + end + shortened(body)


def shortened(text: str) -> str:
    """SVG of matplotlib in less than half as many characters, to be looked at and not edited."""
    text = re.sub(r"font-family: [^;\"]*; ?", "", text)  # the page's
    # Tenths of a point within tags, but hundredths of how opaque something is. What stands between
    # tags, as 0.25, is read by people.
    tenths = re.compile(r"(opacity[=: \"]+\d?\.\d\d)\d*|(\.\d)\d+")
    text = re.sub(
        r"<[^>]*>", lambda tag: tenths.sub(lambda x: (x[1] or "") + (x[2] or ""), tag[0]), text
    )
    text = re.sub(r"\n *([A-Z])", r"\1", text)
    text = re.sub(r"\s*\n\s*", " ", text).replace("> <", "><")
    used = set(re.findall(r"#([\w.-]+)", text))
    return re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)


def panels_png(rows: Sequence[Sequence[Panel]], labels: Sequence[str]) -> bytes:
    """A PNG file of panels, row by row; `labels` are those of the series."""
    size = (3.3 * len(rows[0]), 2.35 * len(rows) + 0.4)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        grid: Any = figure.subplots(len(rows), len(rows[0]), squeeze=False)
        for of_axes, of_panels in zip(grid, rows, strict=True):
            for axes, panel in zip(of_axes, of_panels, strict=True):
                draw_lines(axes, panel, palette.LIGHT)
                axes.set_title(panel.title, fontsize=9)
        add_colours(figure, labels)
        return png(figure, dpi=90)


def add_colours(figure: Figure, labels: Sequence[str]) -> None:
    """What the series' colours and marks stand for, above all panels."""
    handles = [
        Line2D([], [], color=palette.light(i), marker=palette.mark(i)) for i in range(len(labels))
    ]
    add_legend(figure, handles, labels, "outside upper center")


def add_legend(
    figure: Figure,
    handles: Sequence[Any],
    labels: Sequence[str],
    where: Literal["outside upper center", "outside lower center"],
) -> None:
    """A legend outside the panels, in as many rows as its labels need; the figure grows with it."""
    letters = KEY + max(map(len, labels))
    each = LETTER * mpl.rcParams["font.size"] * letters  # inches
    figure.set_figwidth(max(figure.get_figwidth(), each + 0.2))
    columns = min(len(labels), int(figure.get_figwidth() / each))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(handles, labels, loc=where, ncols=columns)


def wrapped(text: str, inches: float, points: float) -> str:
    """A heading in lines that fit into a width, in letters of a size."""
    most = int(inches / (LETTER * points))
    return "\n".join(part for line in text.split("\n") for part in wrap(line, most))


def spread(n: int) -> list[str]:
    """So many colours in the order of their hue, neither dark nor light, for any page."""
    by_hue = [palette.AREA[i] for i in (0, 4, 2, 6, 1, 5, 3)]
    between = LinearSegmentedColormap.from_list("", by_hue)
    return [to_hex(between(x)) for x in np.linspace(0, 1, n)]


def png(figure: Figure, dpi: int = 100) -> bytes:
    """A PNG file of the figure; a palette makes it a third as large."""
    image, small = BytesIO(), BytesIO()
    figure.savefig(image, format="png", dpi=dpi)
    Image.open(image).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return small.getvalue()
