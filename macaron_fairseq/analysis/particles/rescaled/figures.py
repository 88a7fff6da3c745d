"""Pictures of rescaled tokens, as the bytes of PNG files."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.spatial import ConvexHull

from macaron_fairseq.analysis.figures import png
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles.drawing import TIME
from macaron_fairseq.analysis.particles.rescaled.tokens import DRAWN, Leaders, Rescaled

MOST_COORDINATES = 3  # that are drawn of many


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
