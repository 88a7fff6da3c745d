"""What `macaron-fairseq order` shows of its errors and slopes: a table and a picture."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from macaron_fairseq.analysis import figures, output
from macaron_fairseq.analysis.local_error import FITTED
from macaron_fairseq.analysis.order.results import Measured, Result
from macaron_fairseq.analysis.output import Content
from macaron_fairseq.schemes import splitting

# Dots and spaces in line widths.
DASHES = [(4, 2), (2, 2), (6, 2, 1, 2), (5, 3), (1, 1), (3, 1, 1, 1), (8, 3)]
MARKERS = "osD^v<>PX*"


def contents(measured: Measured) -> dict[str, Content]:
    """The files, by name."""
    return {
        "order.txt": table(measured),
        "order.json": {
            "title": measured.title,
            **output.provenance(),
            **measured.about,
            "steps": measured.steps,
            "results": [asdict(x) for x in measured.results],
        },
        "order.png": picture(measured),
    }


def table(measured: Measured) -> str:
    """A line for each scheme and sub-step, with error and slope of both sides next to each other.

    Of a trained model, all layers of a side are together.
    """
    shown, steps = measured.together, measured.steps
    sides = list(dict.fromkeys(x.side for x in shown))
    found = {(x.scheme, x.substep, x.side): x for x in shown}
    names = dict.fromkeys((x.scheme, x.substep) for x in shown)
    head = ("scheme", "sub-step")
    width, substep_width = (max(len(x[i]) for x in [*names, head]) for i in (0, 1))
    line = f"{head[0]:{width}}  {head[1]:{substep_width}}"
    lines = [measured.title, line + "".join(f"  {side:>9} {'slope':>6}" for side in sides)]
    for scheme, substep in names:
        line = f"{scheme:{width}}  {substep:{substep_width}}"
        for side in sides:
            x = found.get((scheme, substep, side))
            error = f"{x.errors[0]:9.1e}" if x else " " * 9
            slope = "-" if x is None or x.slope is None else f"{x.slope:.2f}"
            line += f"  {error} {slope:>6}"
        lines.append(line)
    lines.append(
        f"errors at h = {steps[0]:g}; slopes over the {FITTED} shortest h, down to "
        f"{steps[-1]:g}, whose errors are above rounding"
    )
    return "".join(line.rstrip() + "\n" for line in lines)


def picture(measured: Measured) -> bytes:
    """A PNG file: a row for each side, a column for each sub-step; error over h, both log."""
    results, steps = measured.together, measured.steps
    sides, substeps, names = (
        list(dict.fromkeys(getattr(x, name) for x in results))
        for name in ("side", "substep", "scheme")
    )
    size = (1.2 + 2.4 * len(substeps), 1.1 + 2.6 * len(sides))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(figures.wrapped(measured.title, size[0], 10), fontsize=10)
    grid: Any = figure.subplots(len(sides), len(substeps), sharex=True, sharey=True, squeeze=False)
    for row, side in zip(grid, sides, strict=True):
        for axes, substep in zip(row, substeps, strict=True):
            draw(axes, [x for x in results if (x.side, x.substep) == (side, substep)], names, steps)
            axes.set_title(f"{side}, {substep}", fontsize=9)
        row[0].set_ylabel("error")
    for axes in grid[-1]:
        axes.set_xlabel("step h")
    drawn = {handle.get_label(): handle for axes in figure.axes for handle in axes.get_lines()}
    figure.legend(
        handles=[drawn[name] for name in names if name in drawn],
        loc="outside right center",
        fontsize=8,
        frameon=False,
    )
    return figures.png(figure, dpi=110)


def draw(axes: Axes, results: Sequence[Result], names: list[str], steps: Sequence[float]) -> None:
    """A line for each of the results; errors of zero are left out.

    Each scheme has another marker, hollow, and lines get thinner from scheme to scheme, so
    that one that lies on another hides nothing of it.
    """
    for x in results:
        pairs = [(h, e) for h, e in zip(steps, x.errors, strict=True) if e > 0]
        if not pairs:
            continue
        number = names.index(x.scheme)
        under = 1 - number / len(names)  # from 1 to 0
        axes.plot(
            *zip(*pairs, strict=True),
            color=f"C{number % 10}",
            linestyle=(0, DASHES[(number - 1) % len(DASHES)]) if number else "solid",
            linewidth=1 + 2.5 * under,
            marker=MARKERS[number % len(MARKERS)],
            markersize=4 + 5 * under,
            markerfacecolor="none",
            markeredgewidth=1,
            label=x.scheme,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(steps, [splitting.as_fraction(h) for h in steps])
    axes.tick_params(axis="x", labelsize=8)
    axes.set_yscale("log")
    axes.grid(alpha=0.2)
