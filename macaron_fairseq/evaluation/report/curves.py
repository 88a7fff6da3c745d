"""The learning curves of a report, drawn by matplotlib where it is installed."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from macaron_fairseq.common import palette, themed_svg
from macaron_fairseq.evaluation.training.runs import Run
from macaron_fairseq.evaluation.training.training_log import Curve

TITLE = "loss in validation (marks) and in training (thin), fitted to the last three quarters"
POINTS = 500  # of a curve, at most


def draw_png(runs: Sequence[Run]) -> bytes | None:
    """The learning curves of all runs, a colour and a mark for each architecture, as a PNG file.

    None where matplotlib is not installed, or no log holds a figure.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    if not late_losses(runs):
        return None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    archs = draw(axes, runs, palette.LIGHT)
    for i, arch in enumerate(archs):
        axes.plot([], [], color=palette.light(i), marker=palette.mark(i), ms=4, label=arch)
    axes.set_title(TITLE)
    axes.grid(alpha=0.3)
    axes.legend()
    image = BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return image.getvalue()


def draw_svg(runs: Sequence[Run]) -> str | None:
    """The same as an element of a page, which has its own legend; None as above."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    if not late_losses(runs):
        return None
    with mpl.rc_context(themed_svg.PAGE_STYLE):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        draw(figure.subplots(), runs, themed_svg.THEMED_COLOURS)
        return themed_svg.element(figure, describe(runs))


def draw(axes: Any, runs: Sequence[Run], colours: Sequence[str]) -> list[str]:
    """Draw the curves of all runs; returns the architectures in the order of their colours."""
    archs = list(dict.fromkeys(run.arch for run in runs))
    for run in runs:
        series = archs.index(run.arch)
        colour = colours[series % len(colours)]
        training = run.training
        if training.train_curve:
            points = zip(*thinned(training.train_curve), strict=True)
            axes.plot(*points, color=colour, alpha=0.4, lw=0.8)
        if training.valid_curve:
            points = zip(*thinned(training.valid_curve), strict=True)
            axes.plot(*points, color=colour, marker=palette.mark(series), ms=4)
    axes.set(xlabel="updates", ylabel="loss (bits per token)")
    late = late_losses(runs)  # the first ones would press all curves into one
    margin = 0.05 * (max(late) - min(late)) or 0.1
    axes.set_ylim(min(late) - margin, max(late) + margin)
    return archs


def late_losses(runs: Sequence[Run]) -> list[float]:
    """The losses of all curves after the first quarter of each."""
    curves = [x for run in runs for x in (run.training.train_curve, run.training.valid_curve) if x]
    return [loss for curve in curves for updates, loss in curve if updates >= curve[-1][0] / 4]


def thinned(curve: Curve) -> Curve:
    """A curve's points, evenly left out where they are too many; the last one stays."""
    every = -(-len(curve) // POINTS)
    return curve[::-1][::every][::-1]


def describe(runs: Sequence[Run]) -> str:
    """The curves in words, for whom the picture cannot be seen."""
    ends = (
        f"{run.arch}, seed {run.seed}: {run.training.valid_curve[0][1]:.3g} at first, "
        f"{run.training.valid_curve[-1][1]:.3g} at last"
        for run in runs
        if run.training.valid_curve
    )
    return f"Learning curves. Loss in validation: {'; '.join(ends)}."
