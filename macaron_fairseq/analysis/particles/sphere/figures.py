"""Pictures of the experiments on the sphere, as the bytes of PNG files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from macaron_fairseq.analysis.figures import png
from macaron_fairseq.analysis.measures import Floats, cluster_labels
from macaron_fairseq.analysis.particles import drawing
from macaron_fairseq.analysis.particles.drawing import (
    COSINE,
    PI_LABELS,
    PI_TICKS,
    TIME,
    cell_edges,
    colours,
    drawn_of,
)
from macaron_fairseq.analysis.particles.sphere.experiments import (
    Equiangular,
    Histograms,
    Landscape,
    Phase,
    Trajectories,
)
from macaron_fairseq.analysis.particles.sphere.random_matrices import RandomPhase

LARGEST_EIGENVALUES = 6  # the scale of their number ends there


def trajectories(result: Trajectories, title: str, cosine: float) -> bytes:
    """The paths, a colour for each cluster at the end; clusters, cosines and energy over time."""
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    figure.suptitle(title)
    dim = result.positions.shape[2]
    panels: dict[str, Any] = figure.subplot_mosaic(
        [["paths", name] for name in ("clusters", "cosines", "energy")],
        width_ratios=(1.15, 1),
        per_subplot_kw={"paths": {"projection": "3d"}} if dim == 3 else {},
    )
    draw = {2: _draw_circle, 3: _draw_sphere}.get(dim, _draw_components)
    n = result.positions.shape[1]
    drawn = drawn_of(n)
    labels = cluster_labels(result.positions[-1], cosine)
    of_clusters = colours(labels.max() + 1)
    part = replace(result, positions=result.positions[:, drawn])
    draw(panels["paths"], part, [of_clusters[i] for i in labels[drawn]])
    if len(drawn) < n:
        panels["paths"].set_title(f"{len(drawn):,} of {n:,} paths", fontsize="small")
    top, middle, bottom = (panels[name] for name in ("clusters", "cosines", "energy"))
    top.plot(result.times, result.clusters, label=f"clusters (cosine > {cosine:g})")
    top.plot(result.times, result.effective_rank, label="effective rank")
    top.set_yscale("log", base=2)
    top.yaxis.set_major_formatter("{x:g}")
    top.set_ylabel("number")
    top.legend(fontsize="small")
    middle.plot(result.times, result.mean_cosine, label="mean cosine")
    middle.plot(result.times, result.share_above, label=f"share of pairs above {cosine:g}")
    lowest = min(-0.25, *(result.mean_cosine - 0.05))
    middle.set(ylabel="of all pairs", ylim=(lowest, 1.05))
    middle.legend(fontsize="small")
    bottom.plot(result.times, result.energy, label="energy $E_β$")
    if result.total is not None:
        bottom.plot(result.times, result.total, label="energy with the potential's part")
        bottom.legend(fontsize="small")
    bottom.set(xlabel=TIME, ylabel="energy")
    for axes in (top, middle, bottom):
        axes.grid(alpha=0.3)
    return png(figure)


def _draw_circle(axes: Axes, result: Trajectories, colours: Sequence[str]) -> None:
    angles = drawing.angles_of(result.positions)
    for path, colour in zip(angles.T, colours, strict=True):
        shown, times = drawing.with_gaps(path, result.times)
        axes.plot(times, shown, color=colour, lw=0.8)
    axes.set(xlabel=TIME, ylabel="angle of the particle (radians)", ylim=(-np.pi, np.pi))
    axes.set_yticks(PI_TICKS, PI_LABELS)
    axes.grid(alpha=0.3)


def _draw_sphere(axes: Any, result: Trajectories, colours: Sequence[str]) -> None:
    x = result.positions
    drawing.draw_wire_sphere(axes)
    for path, colour in zip(np.moveaxis(x, 1, 0), colours, strict=True):
        axes.plot(*path.T, color=colour, lw=0.8)
    axes.scatter(*x[0].T, s=8, color="grey", label="start")
    axes.scatter(*x[-1].T, s=35, color="black", label="end", depthshade=False)
    axes.set(xlabel="$x_1$", ylabel="$x_2$", zlabel="$x_3$", box_aspect=(1, 1, 1))
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_major_locator(MaxNLocator(2))
    axes.legend(fontsize="small", loc="upper left")


def _draw_components(axes: Axes, result: Trajectories, colours: Sequence[str]) -> None:
    x = result.positions
    plane = plane_of(x)
    for path, colour in zip(np.moveaxis(x @ plane.T, 1, 0), colours, strict=True):
        axes.plot(*path.T, color=colour, lw=0.8)
    for points, size, color, label in ((x[0], 8, "grey", "start"), (x[-1], 35, "black", "end")):
        shown = points @ plane.T
        axes.scatter(shown[:, 0], shown[:, 1], s=size, color=color, label=label, zorder=3)
    axes.plot(*drawing.on_circle(np.linspace(0, 2 * np.pi, 200)).T, color="grey", lw=0.5)
    axes.set(xlabel="first principal component", ylabel="second principal component")
    axes.set_aspect("equal")
    axes.legend(fontsize="small")


def plane_of(x: Floats, components: int = 2) -> Floats:
    """The first principal components of all positions, (t, n, d): (components, d).

    Of all times together, and without taking the mean away: 0 is the sphere's centre.
    """
    points = x.reshape(-1, x.shape[2])
    if len(points) < x.shape[2]:
        return np.linalg.svd(points, full_matrices=False)[2][:components]
    # The same as by the singular values of all points, in less memory.
    return np.linalg.eigh(points.T @ points)[1][:, : -components - 1 : -1].T


def histograms(result: Histograms, title: str, shown: Sequence[float]) -> bytes:
    """The cosines over time as a map, and at the times that are nearest to those shown."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    figure.suptitle(title)
    below: list[Any] = [f"panel {i}" for i in range(len(shown))]
    panels = figure.subplot_mosaic([["map"] * len(shown), below], height_ratios=(1.15, 1))
    share = result.counts / result.counts.sum(axis=1, keepdims=True)
    axes = panels["map"]
    smallest = share[share > 0].min()
    axes.set_facecolor(colormaps["viridis"](0.0))
    image = axes.pcolormesh(
        cell_edges(result.times),
        result.edges,
        np.where(share > 0, share, np.nan).T,
        norm=LogNorm(smallest, 1),
    )
    figure.colorbar(
        image, ax=axes, label=f"share of all pairs\nin a bin of {np.diff(result.edges)[0]:.2g}"
    )
    axes.set(xlabel=TIME, ylabel=COSINE)
    for name, time in zip(below, shown, strict=True):
        panel = panels[name]
        frame = int(np.abs(result.times - time).argmin())
        panel.stairs(share[frame], result.edges, fill=True)
        clusters = result.clusters[frame]
        panel.set_title(
            f"time {result.times[frame]:.3g}: {clusters} cluster{'s' if clusters > 1 else ''}",
            fontsize="small",
        )
        panel.set(xlabel=COSINE, yscale="log", ylim=(smallest / 2, 1.5))
        panel.grid(alpha=0.3)
        panel.label_outer()
    panels[below[0]].set_ylabel("share of all pairs")
    return png(figure)


def phase(result: Phase, title: str, cosine: float) -> bytes:
    """The two shares over time and beta."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    shares = (
        (result.all_pairs, f"share of trials, all pairs above {cosine:g}"),
        (result.pairs, f"share of pairs above {cosine:g}"),
    )
    for axes, (share, label) in zip(panels, shares, strict=True):
        image = axes.pcolormesh(
            cell_edges(result.times), cell_edges(result.betas), share, cmap="RdBu_r", vmin=0, vmax=1
        )
        axes.set(xlabel=TIME, title=label)
        axes.plot(
            result.equiangular_time,
            result.betas,
            color="limegreen",
            lw=2,
            label="equiangular start (many dimensions)",
        )
        axes.set_xlim(result.times[0], result.times[-1])
    panels[0].set_ylabel("inverse temperature β")
    if np.isfinite(result.equiangular_time).any():
        panels[0].legend(fontsize="small", loc="upper left")
    figure.colorbar(image, ax=panels, label="share")
    return png(figure)


def phase_random(result: RandomPhase, title: str, cosine: float) -> bytes:
    """Pairs on a linear and a logarithmic scale, Gram eigenvalues, and the clusters, over time."""
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    figure.suptitle(title)
    panels: Any = figure.subplots(2, 3)
    x, y = cell_edges(result.times), cell_edges(result.betas)
    positive = result.pairs[result.pairs > 0]
    floor = float(positive.min()) if positive.size else 1e-6
    n = result.sizes.shape[1]
    over_time: tuple[tuple[Floats, str, dict[str, Any]], ...] = (
        (result.pairs, f"share of pairs above {cosine:g}", {"vmin": 0, "vmax": 1}),
        (
            np.maximum(result.pairs, floor),
            "the same, logarithmic",
            {"norm": LogNorm(floor, max(1.0, floor * 10))},
        ),
        (
            result.eigenvalues,
            "Gram eigenvalues above 0.001",
            {
                "vmin": 1,
                "vmax": min(LARGEST_EIGENVALUES, max(2, np.ceil(result.eigenvalues.max()))),
            },
        ),
        (result.clusters, "clusters", {"norm": LogNorm(1, n)}),
        (result.largest, "share of the largest cluster", {"vmin": 0, "vmax": 1}),
    )
    for axes, (values, label, scale) in zip(panels.flat, over_time, strict=False):
        image = axes.pcolormesh(x, y, values, cmap="RdBu_r", **scale)
        figure.colorbar(image, ax=axes)
        axes.plot(result.boundary, result.betas, color="limegreen", lw=2, label="β(t), see below")
        axes.set_xlim(result.times[0], result.times[-1])
        axes.set_title(label, fontsize="medium")
        axes.set(xlabel=TIME, ylabel="β")
    axes = panels[1, 2]
    sizes = result.sizes * np.arange(1, n + 1) / n
    image = axes.pcolormesh(np.arange(n + 1) + 0.5, y, sizes, cmap="magma_r", vmin=0)
    figure.colorbar(image, ax=axes)
    axes.set_title("share of particles in clusters of a size, at the end", fontsize="medium")
    axes.set(xlabel="size of the cluster", ylabel="β")
    figure.supxlabel(
        "green: β(t), when orthogonal particles with V = B = I arrive", fontsize="small"
    )
    return png(figure, dpi=85)


def equiangular(result: Equiangular, title: str) -> bytes:
    """The equation as lines, the particles as dots, and how far they are apart."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    every = max(1, len(result.times) // 20)
    for i, beta in enumerate(result.betas):
        left.plot(result.times, result.equation[i], f"C{i}", label=f"β = {beta:g}")
        left.plot(result.times[::every], result.simulation[i, ::every], f"C{i}o", ms=3.5)
        apart = np.abs(result.simulation[i] - result.equation[i])
        right.semilogy(result.times, np.maximum(apart, 1e-17), f"C{i}", label=f"β = {beta:g}")
    left.set(xlabel=TIME, ylabel="cosine of every pair")
    left.set_title("lines: the differential equation; dots: particles", fontsize="medium")
    left.legend(fontsize="small")
    right.set(xlabel=TIME, ylabel="|particles - equation|")
    right.set_title("difference of the cosines", fontsize="medium")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return png(figure)


def landscape(result: Landscape, title: str) -> bytes:
    """The perceptron's potential over the angle, and above it where particles end at each beta."""
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    figure.suptitle(title)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(2.2, 1))
    betas = np.broadcast_to(result.betas[:, None], result.final_angles.shape)
    v = result.potential[:-1]  # the last angle is the first again
    for angle in result.angles[:-1][(v > np.roll(v, 1)) & (v > np.roll(v, -1))]:
        upper.axvline(angle, color="C0", ls=":", lw=1)
    upper.plot(result.final_angles, betas, "k.", ms=3)
    upper.set(ylabel="inverse temperature β")
    upper.set_title("where each particle ended; dotted: the potential's maxima", fontsize="medium")
    lower.plot(result.angles, result.potential)
    lower.set(xlabel="angle (radians)", ylabel="potential V", xlim=(-np.pi, np.pi))
    lower.set_xticks(PI_TICKS, PI_LABELS)
    lower.set_title("the perceptron's potential, which particles climb", fontsize="medium")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    return png(figure)
