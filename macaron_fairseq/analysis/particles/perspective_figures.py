"""Pictures of the experiments of arXiv 2312.10794 and its relatives, as the bytes of PNG files."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.spatial import ConvexHull

from macaron_fairseq.analysis.figures import png
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles.circle import draw_angles
from macaron_fairseq.analysis.particles.figures import TIME, cell_edges
from macaron_fairseq.analysis.particles.mean_field import MeanField
from macaron_fairseq.analysis.particles.metastability import FirstClusters
from macaron_fairseq.analysis.particles.random_matrices import RandomPhase
from macaron_fairseq.analysis.particles.rescaled import DRAWN, Leaders, Rescaled
from macaron_fairseq.analysis.particles.staircase import Staircase

TURN_TICKS = np.pi * np.array([0, 0.5, 1, 1.5, 2])
TURN_LABELS = ["0", "π/2", "π", "3π/2", "2π"]
ANGLE = "angle (radians)"
MOST_COORDINATES = 3  # that are drawn of many
LARGEST_EIGENVALUES = 6  # the scale of their number ends there


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


def rescaled(result: Rescaled, title: str) -> bytes:
    """The paths with the hulls at start and end; coordinates along V's eigenvectors; numbers.

    In more than three dimensions there are no paths, but coordinates along the eigenvectors that
    shrink.
    """
    figure = Figure(figsize=(10, 5), layout="constrained")
    figure.suptitle(title)
    dim = result.positions.shape[2]
    panels: dict[str, Any] = figure.subplot_mosaic(
        [["paths", "coordinates"], ["paths", "numbers"]],
        width_ratios=(1.2, 1),
        per_subplot_kw={"paths": {"projection": "3d"}} if dim == 3 else {},
    )
    if dim > DRAWN:
        axes = panels["paths"]
        _draw_coordinates(axes, result.times, result.shrinking, result.real(-1), "shrinking")
        axes.set(xlabel=TIME, yscale="symlog")
    else:
        _draw_paths(panels["paths"], result.positions)
    axes = panels["coordinates"]
    _draw_coordinates(axes, result.times, result.coordinates, result.real(1), "growing")
    axes = panels["numbers"]
    axes.plot(result.times, result.places, "k", label="places of tokens")
    if dim <= DRAWN:
        axes.plot(result.times, result.corners, "k:", label="corners of the hull")
    for k, groups in enumerate(result.groups.T[:MOST_COORDINATES]):
        axes.plot(result.times, groups, f"C{k}", label=f"values of coordinate {k + 1}")
    axes.set(xlabel=TIME, ylabel="number", ylim=(0, None))
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    return png(figure, dpi=90)


def _draw_paths(axes: Any, z: Floats) -> None:
    """Paths (t, n, 2 or 3), in the plane with the hulls at start and end."""
    for path in np.moveaxis(z, 1, 0):
        axes.plot(*path.T, color="C0", lw=0.5, alpha=0.7)
    axes.scatter(*z[0].T, s=10, color="grey", label="start")
    axes.scatter(*z[-1].T, s=28, color="C1", edgecolors="black", lw=0.5, label="end")
    if z.shape[2] == 2:
        for points, color in ((z[0], "grey"), (z[-1], "C1")):
            for edge in _hull_edges(points):
                axes.plot(*points[edge].T, color=color, lw=0.8)
    axes.set(xlabel="$z_1$", ylabel="$z_2$")
    if z.shape[2] == 3:
        axes.set_zlabel("$z_3$")
        for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
            axis.set_major_locator(MaxNLocator(5))
    axes.legend(fontsize="small")


def _draw_coordinates(
    axes: Axes, times: Floats, coordinates: Floats, eigenvalues: Floats, kind: str
) -> None:
    """The first coordinates, (t, n, k), over time, with the eigenvalues that they belong to."""
    for k, of_mode in enumerate(np.moveaxis(coordinates, 2, 0)[:MOST_COORDINATES]):
        lines = axes.plot(times, of_mode, f"C{k}", lw=0.6)
        lines[0].set_label(f"eigenvalue {eigenvalues[k]:.2g}")
    axes.set(ylabel="coordinate of each token")
    axes.set_title(f"along V's {kind} eigenvectors", fontsize="medium")
    if len(eigenvalues):
        axes.legend(fontsize="small", loc="best")
    axes.grid(alpha=0.3)


def _hull_edges(points: Floats) -> Any:
    spread = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    return ConvexHull(points).simplices if spread[-1] > 1e-9 * spread[0] else []


def leaders(result: Leaders, title: str) -> bytes:
    """Attention matrices at some times; its rank and the number of leaders over time."""
    count, dim = len(result.shown), result.positions.shape[2]
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    figure.suptitle(title)
    names: list[Any] = [f"matrix {i}" for i in range(count)]
    following = min(2, count - 1) if dim == 2 else 0  # columns of the picture of who follows whom
    below: list[Any] = ["rank"] * (count - following) + ["who"] * following
    panels: dict[str, Any] = figure.subplot_mosaic([names, below])
    for name, time, matrix in zip(names, result.shown, result.matrices, strict=True):
        image = panels[name].imshow(matrix, vmin=0, vmax=1, cmap="Blues", interpolation="nearest")
        frame = int(np.abs(result.times - time).argmin())
        panels[name].set_title(f"time {time:.3g}: rank {result.rank[frame]}", fontsize="medium")
        panels[name].set(xticks=[], yticks=[])
    figure.colorbar(image, ax=[panels[name] for name in names], label="attention")
    axes = panels["rank"]
    axes.plot(result.times, result.rank, label="rank, to rounding")
    axes.plot(result.times, result.effective_rank, label="effective rank")
    axes.plot(result.times, result.leaders, label="leaders (over half of a token's attention)")
    axes.set(xlabel=TIME, ylabel="number", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    if following:
        _draw_following(panels["who"], result.positions[-1], result.matrices[-1])
    return png(figure, dpi=90)


def _draw_following(axes: Axes, z: Floats, matrix: Floats) -> None:
    """Tokens, each with lines to those that it attends to."""
    for i, row in enumerate(matrix):
        for share, (x, y) in zip(row[row > 0.02], z[row > 0.02], strict=True):
            axes.plot([z[i, 0], x], [z[i, 1], y], color="black", lw=1.5 * share, alpha=0.4)
    led = (matrix > 0.5).any(axis=0)
    axes.plot(*z[~led].T, "C0o", ms=4, label="token")
    axes.plot(*z[led].T, "C1o", ms=7, mec="black", label="leader")
    axes.set_title("who attends to whom at the end", fontsize="medium")
    axes.set(xlabel="$z_1$", ylabel="$z_2$")
    axes.legend(fontsize="small")


def staircase(result: Staircase, title: str) -> bytes:
    """The energy over the logarithm of time, and over the length of the path."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2, sharey=True)
    for i, beta in enumerate(result.betas):
        style = {"color": f"C{i % 10}", "label": f"β = {beta:g}"}
        left.plot(result.log_times[i] / np.log(beta), result.energies[i], **style)
        unit = np.log(beta) / (2 * np.sqrt(beta))
        right.plot(result.lengths[i] / unit, result.energies[i], **style)
    left.set(xlabel="ln t / ln β", ylabel="energy E")
    right.set(xlabel="length of the path, in units of ln β / (2 √β)")
    left.set_title("over the logarithm of time", fontsize="medium")
    right.set_title("over the path, as if the speed were 1", fontsize="medium")
    left.set_xlim(left=0)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(fontsize="small")
    return png(figure)


def first_clusters(result: FirstClusters, title: str) -> bytes:
    """Paths, the density when the fastest mode is largest, the modes' rates and their growth."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    figure.suptitle(title)
    (paths, density), (rates, growth) = figure.subplots(2, 2)
    draw_angles(paths, result.times, result.angles, color="C0", lw=0.3, alpha=0.6)
    for angle in result.predicted:
        paths.axhline(angle, color="C3", ls="--", lw=1)
    paths.set(xlabel="time", ylabel=ANGLE, ylim=(0, 2 * np.pi))
    paths.set_yticks(TURN_TICKS, TURN_LABELS)
    paths.set_title("particles; dashed: predicted clusters", fontsize="medium")
    edges = np.linspace(0, 2 * np.pi, result.densities.shape[1] + 1)
    density.stairs(result.densities[result.best], edges, fill=True)
    _draw_predicted(density, result.predicted)
    density.set_title(f"density at time {result.times[result.best]:.3g}", fontsize="medium")
    rates.bar(result.modes, result.rates, color="C0")
    rates.bar([result.fastest], [result.rates[result.fastest - 1]], color="C3")
    rates.set(xlabel="mode k", ylabel="rate $k^2 I_k(β) / β$")
    rates.set_title("how fast each mode grows at first", fontsize="medium")
    _draw_growth(growth, result.times, result.amplitudes, result.rates)
    return png(figure, dpi=90)


def _draw_predicted(axes: Axes, predicted: Floats) -> None:
    for angle in predicted:
        axes.axvline(angle, color="C3", ls="--", lw=1)
    axes.set(xlabel=ANGLE, ylabel="density", xlim=(0, 2 * np.pi))
    axes.set_xticks(TURN_TICKS, TURN_LABELS)


def _draw_growth(axes: Axes, times: Floats, amplitudes: Floats, rates: Floats) -> None:
    """The four fastest modes, and how each would grow by its rate alone."""
    for i, mode in enumerate(np.sort(np.argsort(-rates)[:4])):
        axes.semilogy(times, amplitudes[:, mode], f"C{i}", label=f"k = {mode + 1}")
        alone = amplitudes[0, mode] * np.exp(rates[mode] * times)
        axes.semilogy(times, np.where(alone < 1, alone, np.nan), f"C{i}:", lw=1)
    axes.set(xlabel="time", ylabel="$|μ_k|$", ylim=(None, 1.5))
    axes.set_title("modes; dotted: $e^{rt}$ alone", fontsize="medium")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def mean_field(result: MeanField, title: str) -> bytes:
    """The density over time and at some times, how modes grow, and energy and mass."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    figure.suptitle(title)
    (picture, density), (growth, kept) = figure.subplots(2, 2)
    shown = np.maximum(result.densities, 1e-3)
    image = picture.pcolormesh(
        cell_edges(result.times), cell_edges(result.angles), shown.T, norm=LogNorm()
    )
    figure.colorbar(image, ax=picture, label="density")
    picture.set(xlabel="time", ylabel=ANGLE)
    picture.set_yticks(TURN_TICKS, TURN_LABELS)
    picture.set_title("density over time", fontsize="medium")
    for i, part in enumerate((0, 0.5, 0.75, 1)):
        frame = round(part * (len(result.times) - 1))
        label = f"time {result.times[frame]:.3g}"
        density.semilogy(result.angles, np.maximum(result.densities[frame], 1e-4), f"C{i}", lw=1)
        density.plot([], [], f"C{i}", label=label)
    _draw_predicted(density, result.predicted)
    density.set_title("dashed: predicted clusters", fontsize="medium")
    density.legend(fontsize="small")
    _draw_growth(growth, result.times, result.amplitudes, result.rates)
    kept.plot(result.times, result.energy, label="energy $E_β$")
    kept.set(xlabel="time", ylabel="energy $E_β$")
    kept.set_title(
        f"energy; the mass changes by {np.ptp(result.mass):.0e} at most", fontsize="medium"
    )
    kept.grid(alpha=0.3)
    return png(figure, dpi=90)
