"""Pictures of what a perceptron block changes, over beta, time, its strength and the dimension."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from macaron_fairseq.analysis.figures import add_legend, png, scale_by_logarithm
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles.block import localization
from macaron_fairseq.analysis.particles.block.experiments import (
    Counts,
    Ends,
    Energies,
    Sweep,
)
from macaron_fairseq.analysis.particles.block.views import (
    TITLES,
    WITH,
    WITHOUT,
    draw_potential,
)
from macaron_fairseq.analysis.particles.drawing import PI_LABELS, PI_TICKS, TIME, colours, on_circle
from macaron_fairseq.analysis.particles.systems import Perceptron

ROOT_BETA = "√β"


def counts(result: Counts, block: Perceptron, title: str, mass: float) -> bytes:
    """Numbers of clusters, modes and heavy clusters, masses and times, over the root of beta.

    On the circle also where the particles of all starts are then, on the block's potential.
    """
    columns = 3 if result.with_block.angles is None else 4
    figure = Figure(figsize=(4 * columns, 7), layout="constrained")
    figure.suptitle(title)
    grid: Any = figure.subplots(2, columns, sharex=True)
    roots = np.sqrt(result.betas)
    numbers = (
        ("clusters", "clusters"),
        ("modes", "modes of the density"),
        ("heavy", f"clusters of {100 * mass:.3g} % of the particles or more"),
    )
    for axes, (name, label) in zip(grid[0, :3], numbers, strict=True):
        for ends, colour, side in _sides(result):
            _draw_mean(axes, roots, getattr(ends, name), colour, side)
        axes.set_title(label, fontsize="medium")
        if name != "heavy":  # of which there may be none
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")
    if result.predicted_mode is not None:
        predicted = {"color": "grey", "ls": ":", "label": r"fastest mode by $\gamma_k$"}
        grid[0, 1].plot(roots, result.predicted_mode, **predicted)
    grid[0, 1].legend(fontsize="small")
    _draw_masses(grid[1, :3], roots, result)
    if columns == 4:
        _draw_ends(grid[:, 3], roots, result, block)
    for axes in grid[1]:
        axes.set_xlabel(ROOT_BETA)
    for axes in grid.ravel():
        axes.grid(alpha=0.3)
    return png(figure, dpi=80)


def _sides(result: Counts) -> tuple[tuple[Ends, str, str], ...]:
    return (result.without, WITHOUT, TITLES[0]), (result.with_block, WITH, TITLES[1])


def _draw_masses(axes_of_kinds: Any, roots: Floats, result: Counts) -> None:
    """The heaviest cluster's share with bounds, all shares, and the time until metastable."""
    heaviest, masses, times = axes_of_kinds
    for ends, colour, side in _sides(result):
        largest = np.array([[of_start[0] for of_start in row] for row in ends.masses])
        _draw_mean(heaviest, roots, largest, colour, side)
        _draw_mean(times, roots, ends.time, colour, side)
        given_up = ~ends.converged
        where = np.broadcast_to(roots[:, None], given_up.shape)[given_up]
        times.plot(where, ends.time[given_up], "x", color=colour)
    if result.bound is not None:
        heaviest.plot(roots, result.bound, color="C3", ls="--", label="bound with the block")
    if (limit := result.bound_without) is not None:
        heaviest.axhline(limit, color="grey", lw=0.8, label=f"bound without it, {limit:.4f}")
    heaviest.set(ylim=(0, 1.05))
    heaviest.set_title("share of the heaviest cluster", fontsize="medium")
    heaviest.legend(fontsize="small")
    for root, row in zip(roots, result.with_block.masses, strict=True):
        for of_start in row:
            masses.plot([root] * len(of_start), of_start, ".", color=WITH, alpha=0.5)
    least = min(x for row in result.with_block.masses for of_start in row for x in of_start)
    masses.set_ylim(min(0.08, least / 1.5), 1.2)
    scale_by_logarithm(masses)
    masses.set_title("shares of all clusters, with the block", fontsize="medium")
    times.set_title("time until metastable (cross: given up)", fontsize="medium")
    scale_by_logarithm(times)


def _draw_ends(axes_of_sides: Any, roots: Floats, result: Counts, block: Perceptron) -> None:
    """Where the particles of all starts are then, without the block and with it."""
    for axes, (ends, _, side) in zip(axes_of_sides, _sides(result), strict=True):
        if ends is result.with_block and block.s is not None:
            angles = np.linspace(-np.pi, np.pi, 361)
            values = np.repeat(block.potential(on_circle(angles))[:, None], 2, axis=1)
            draw_potential(axes, (0, max(1.05 * roots[-1], 1)), angles, values)
        of_betas: Any = ends.angles
        for root, angles in zip(roots, of_betas, strict=True):
            axes.plot(np.full(angles.size, root), angles.ravel(), "k.", ms=2)
        axes.set(ylim=(-np.pi, np.pi))
        axes.set_yticks(PI_TICKS, PI_LABELS)
        axes.set_title(f"angles when metastable, {side}", fontsize="medium")


def energies(result: Energies, title: str) -> bytes:
    """The energy over time, linear and logarithmic, one colour for each beta."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(title)
    of_betas = colours(len(result.betas))
    for axes, scale in zip(figure.subplots(1, 2, sharey=True), ("linear", "log"), strict=True):
        first = 1 if scale == "log" else 0  # 0 has no logarithm
        for i, beta in enumerate(result.betas):
            colour, times = of_betas[i], result.times[first:]
            axes.plot(times, result.with_block[i, first:], color=colour, label=f"β = {beta:g}")
            axes.plot(times, result.without[i, first:], color=colour, ls="--", lw=0.8)
        axes.set(xlabel=TIME, xscale=scale)
        axes.grid(alpha=0.3)
        if scale == "linear":
            axes.set_ylabel("energy")
            axes.plot([], [], color="grey", ls="--", lw=0.8, label=TITLES[0])
            handles, labels = axes.get_legend_handles_labels()
            add_legend(figure, handles, labels, "outside lower center")
    return png(figure, dpi=80)


def sweep(result: Sweep, title: str) -> bytes:
    """Time until metastable and clusters over the values; dashed lines are without the block."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(f"{title}\ndashed: without the block; crosses: given up")
    left, right = figure.subplots(1, 2)
    for i, name in enumerate(result.systems):
        for ends, dashed in ((result.with_block[i], False), (result.without[i], True)):
            colour, label = f"C{i}", "" if dashed else name
            for axes, values in ((left, ends.time), (right, ends.clusters)):
                _draw_mean(axes, result.values, values, colour, label, dashed)
            shape = (len(result.values), ends.time.shape[1])
            given_up = ~np.broadcast_to(ends.converged, shape)
            where = np.broadcast_to(result.values[:, None], shape)[given_up]
            left.plot(where, np.broadcast_to(ends.time, shape)[given_up], "x", color=colour)
    left.set(ylabel="time until metastable", yscale="log")
    right.set(ylabel="clusters", ylim=(0.9, None))
    right.set_yscale("log", base=2)
    right.yaxis.set_major_formatter("{x:g}")
    for axes in (left, right):
        axes.set(xlabel={"strength": "strength of the block", "dim": "dimension d"}[result.over])
        axes.set_xscale("log", base=2 if result.over == "dim" else 10)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
    left.legend(fontsize="small")
    return png(figure, dpi=80)


def modes(result: localization.Modes) -> bytes:
    """The growth rates by mode, and the fastest mode over the root of beta."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    of_betas = colours(len(result.betas))
    for i, (beta, growth) in enumerate(zip(result.betas, result.growth, strict=True)):
        left.plot(growth, "o-", color=of_betas[i], ms=4, label=f"β = {beta:g}")
        left.plot(result.predicted[i], growth.max(), "o", color=of_betas[i], ms=9, mfc="none")
    left.set(
        xlabel="mode k", ylabel=r"$e^{-\beta} \gamma_k$", title="how fast a wave of k crests grows"
    )
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(fontsize="small")
    roots = np.sqrt(result.fine_betas)
    right.plot(roots, result.fine_predicted, label=r"k of the largest $\gamma_k$")
    right.plot(roots, np.sqrt(2) * roots, color="grey", ls="--", label="√(2β)")
    right.plot(np.sqrt(result.betas), result.predicted, "ko", ms=5)
    right.set(xlabel=ROOT_BETA, ylabel="fastest mode k")
    right.legend(fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return png(figure, dpi=80)


def _draw_mean(
    axes: Axes, x: Floats, values: NDArray[Any], colour: str, label: str, dashed: bool = False
) -> None:
    """The mean over the starts, (s, r), with a band of one standard deviation; none if dashed.

    A single setting is a line across all of x.
    """
    mean, several = values.mean(axis=1), values.shape[1] > 1
    if dashed:
        axes.plot(x, np.broadcast_to(mean, x.shape), color=colour, ls="--", lw=0.9)
        return
    axes.plot(x, mean, "o-", color=colour, ms=4, label=label)
    if several:
        deviation = values.std(axis=1, ddof=1)
        low = np.maximum(mean - deviation, 0)  # no time or number is below
        axes.fill_between(x, low, mean + deviation, color=colour, alpha=0.15, lw=0)
