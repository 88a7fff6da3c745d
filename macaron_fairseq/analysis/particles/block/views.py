"""Pictures of particles on the circle and on the sphere, with the block's potential behind them."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from macaron_fairseq.analysis.figures import png, wrapped
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles.block.experiments import Field, Frames, Path, Paths
from macaron_fairseq.analysis.particles.drawing import (
    PI_LABELS,
    PI_TICKS,
    TIME,
    angles_of,
    draw_angles,
    drawn_of,
    on_circle,
    with_gaps,
)
from macaron_fairseq.analysis.particles.systems import Perceptron

WITHOUT, WITH = "C1", "C0"  # the colours of particles without the block and with it
TITLES = ("without the block", "with the block")
# Of a potential, from low to high: pale, so that particles stand out.
POTENTIAL = ListedColormap(0.45 + 0.55 * colormaps["PiYG"](np.linspace(0.1, 0.9, 128)))
BINS = 72  # of a circle's histogram
CELLS = (24, 10)  # of a sphere's: by longitude, and by height, so that all have the same area


def paths(result: Paths, block: Perceptron, title: str) -> bytes:
    """The paths with and without the block: angles over time, or on the sphere.

    Raises:
        ValueError: if the particles are in more than three dimensions.
    """
    draw = {2: _paths_on_the_circle, 3: _paths_on_the_sphere}
    dim = result.with_block.positions.shape[2]
    if dim not in draw:
        raise ValueError(f"no picture of particles in {dim} dimensions")
    n = result.with_block.positions.shape[1]
    drawn = drawn_of(n)
    if len(drawn) < n:
        title += f"; {len(drawn):,} paths are drawn"
    return png(draw[dim](result, drawn, block, title), dpi=80)


def frames(result: Frames, block: Perceptron, title: str) -> bytes:
    """Where the particles are at each of the times: histograms, and maps of the sphere.

    Raises:
        ValueError: if the particles are in more than three dimensions.
    """
    dim = result.paths.with_block.positions.shape[2]
    if dim > 3:
        raise ValueError(f"no picture of particles in {dim} dimensions")
    if result.field:
        return png(_frames_of_the_circle(result.paths, result.field, block, title), dpi=80)
    return png(_frames_of_the_sphere(result.paths, block, title), dpi=80)


# --- the circle ----------------------------------------------------------------------------------


def draw_potential(axes: Any, x: ArrayLike, y: ArrayLike, potential: Floats) -> Any:
    """Colours behind all else, from the lowest to the highest: a constant in it means nothing."""
    return axes.pcolormesh(x, y, potential, cmap=POTENTIAL, shading="gouraud", zorder=0)


def _paths_on_the_circle(
    result: Paths, drawn: NDArray[np.int64], block: Perceptron, title: str
) -> Figure:
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    figure.suptitle(title)
    grid: Any = figure.subplots(2, 3, width_ratios=(1, 1, 0.45), sharey=True)
    angles = np.linspace(-np.pi, np.pi, 361)
    potential = block.potential(on_circle(angles))
    rows = zip(grid, (result.without, result.with_block), (WITHOUT, WITH), TITLES, strict=True)
    for axes_of_row, path, colour, name in rows:
        for axes, scale in zip(axes_of_row[:2], ("linear", "log"), strict=True):
            first = 1 if scale == "log" else 0  # 0 has no logarithm
            times = result.times[first:]
            if path is result.with_block:
                values = np.repeat(potential[:, None], 2, axis=1)
                draw_potential(axes, times[[0, -1]], angles, values)
            angles_of_paths = angles_of(path.positions[first:, drawn])
            draw_angles(axes, times, angles_of_paths, color=colour, lw=0.6)
            axes.set(xscale=scale, xlim=times[[0, -1]], ylim=(-np.pi, np.pi))
            axes.set_title(f"{name}: {_clusters(path)}", fontsize="medium")
            axes.set_yticks(PI_TICKS, PI_LABELS)
        axes_of_row[0].set_ylabel("angle (radians)")
    for axes in grid[1, :2]:
        axes.set_xlabel(TIME)
    _draw_histograms(grid[0, 2], result)
    grid[1, 2].plot(potential, angles, color="black")
    grid[1, 2].set(xlabel="potential V", title="of the block")
    for axes in grid[:, 2]:
        axes.grid(alpha=0.3)
    return figure


def _draw_histograms(axes: Axes, result: Paths) -> None:
    """The angles at the end, with the block and, as an outline, without it."""
    edges = np.linspace(-np.pi, np.pi, BINS + 1)
    for path, colour, name, fill in (
        (result.with_block, WITH, TITLES[1], True),
        (result.without, WITHOUT, TITLES[0], False),
    ):
        counts = np.histogram(angles_of(path.positions[-1]), edges)[0]
        axes.stairs(counts, edges, orientation="horizontal", color=colour, fill=fill, label=name)
    axes.set(xlabel="particles", title="at the end")
    axes.legend(fontsize="x-small")


def _clusters(path: Path) -> str:
    number = int(path.labels.max()) + 1
    return f"{number} cluster{'s' if number > 1 else ''} at the end"


def _frames_of_the_circle(result: Paths, field: Field, block: Perceptron, title: str) -> Figure:
    count = len(result.times)
    figure = Figure(figsize=(3.4 * count, 8.4), layout="constrained")
    heading = f"{title}\nfilled: with the block; outlined: without it; inside: potential"
    figure.suptitle(wrapped(heading, 3.4 * count, 12))
    grid = figure.add_gridspec(3, count, height_ratios=(1.4, 1, 1))
    edges = np.linspace(-np.pi, np.pi, BINS + 1)
    potential = block.potential(on_circle(field.angles))
    fields = np.vstack([field.attention, field.attention + field.block, field.block])
    speed = 1.05 * float(np.abs(fields).max())
    for i, time in enumerate(result.times):
        ring: Any = figure.add_subplot(grid[0, i], projection="polar")
        flat: Any = figure.add_subplot(grid[1, i])
        moving: Any = figure.add_subplot(grid[2, i])
        filled, outlined = (
            np.histogram(angles_of(path.positions[i]), edges)[0]
            for path in (result.with_block, result.without)
        )
        top = max(filled.max(), outlined.max())
        _draw_ring(ring, block)
        for values, colour, fill in ((filled, WITH, True), (outlined, WITHOUT, False)):
            looks = {"color": colour} if fill else {"color": "none", "edgecolor": colour}
            heights = 0.5 * values / top
            ring.bar(edges[:-1], heights, np.diff(edges), bottom=1, align="edge", **looks)
            flat.stairs(values, edges, color=colour, fill=fill)
        ring.set_title(f"time {time:.3g}", fontsize="medium")
        flat.set(ylim=(0, 1.05 * top))
        moving.plot(field.angles, field.attention[i], color=WITHOUT, ls="--", label="attention")
        moving.plot(field.angles, field.block, color=WITH, ls="--", label="block")
        moving.plot(field.angles, field.attention[i] + field.block, color="black", label="both")
        moving.set(xlabel="angle (radians)", ylim=(-speed, speed))
        for axes in (flat, moving):
            values = np.repeat(potential[None], 2, axis=0)
            draw_potential(axes, field.angles, axes.get_ylim(), values)
            axes.set(xlim=(-np.pi, np.pi))
            axes.set_xticks(PI_TICKS, PI_LABELS)
        if i == 0:
            flat.set_ylabel("particles")
            moving.set_ylabel("angular velocity")
            moving.legend(fontsize="x-small")
    return figure


def _draw_ring(axes: Any, block: Perceptron) -> None:
    """The potential as a ring, and within it how many neurons look away, the darker the more."""
    angles = np.linspace(-np.pi, np.pi, 361)
    x = on_circle(angles)
    away = (x @ block.a.T < 0).mean(axis=1)
    potential = block.potential(x)
    axes.pcolormesh(
        angles, (0, 0.75), [away, away], cmap="Greys", vmin=0, vmax=2.5, shading="gouraud"
    )
    draw_potential(axes, angles, (0.78, 1), np.stack([potential, potential]))
    axes.plot(angles, np.ones_like(angles), color="black", lw=0.8)
    axes.set(ylim=(0, 1.55), yticks=[], xticks=[])
    axes.grid(False)
    axes.spines["polar"].set_visible(False)


# --- the sphere ----------------------------------------------------------------------------------


def _sphere() -> tuple[Floats, Floats, Floats]:
    """Longitudes and latitudes of a grid and its points: (120,), (60,) and (60, 120, 3)."""
    longitudes = np.linspace(-np.pi, np.pi, 120)
    latitudes = np.linspace(-np.pi / 2, np.pi / 2, 60)
    east, north = np.meshgrid(longitudes, latitudes)
    points = (np.cos(east) * np.cos(north), np.sin(east) * np.cos(north), np.sin(north))
    return longitudes, latitudes, np.stack(points, axis=-1)


def _paths_on_the_sphere(
    result: Paths, drawn: NDArray[np.int64], block: Perceptron, title: str
) -> Figure:
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.5, 1))
    longitudes, latitudes, points = _sphere()
    potential = block.potential(points)
    both = zip((result.without, result.with_block), (WITHOUT, WITH), TITLES, strict=True)
    for column, (path, colour, name) in enumerate(both):
        globe: Any = figure.add_subplot(grid[0, column], projection="3d")
        chart: Any = figure.add_subplot(grid[1, column], projection="mollweide")
        globe.set_title(f"{name}: {_clusters(path)}", fontsize="medium")
        if path is result.with_block:
            colours = POTENTIAL(Normalize()(potential))
            colours[..., 3] = 0.4
            globe.computed_zorder = False  # paths stand out, those behind too
            globe.plot_surface(
                *np.moveaxis(points, -1, 0), rcount=60, ccount=120, facecolors=colours, shade=False
            )
            image = draw_potential(chart, longitudes, latitudes, potential)
            _draw_boundaries(chart, block)
            figure.colorbar(image, ax=chart, label="potential V", shrink=0.6)
        else:
            globe.plot_wireframe(
                *np.moveaxis(points[::6, ::6], -1, 0), color="grey", lw=0.3, alpha=0.4
            )
        shown = path.positions[:, drawn]
        for one in np.moveaxis(shown, 1, 0):
            globe.plot(*one.T, color=colour, lw=0.6)
        globe.scatter(*path.positions[-1].T, s=25, color="black", depthshade=False)
        globe.set_box_aspect((1, 1, 1), zoom=1.5)
        globe.set_axis_off()
        for east, north in zip(*(x.T for x in _places(shown)), strict=True):
            chart.plot(*with_gaps(east, north), color=colour, lw=0.6)
        chart.plot(*_places(path.positions[-1]), "k.", ms=6)
        chart.set(xticks=[], yticks=[])
    return figure


def _frames_of_the_sphere(result: Paths, block: Perceptron, title: str) -> Figure:
    count = len(result.times)
    figure = Figure(figsize=(3 * count, 9.6), layout="constrained")
    heading = (
        f"{title}\ncolours: potential, green is high; lines: where a neuron switches; bars: "
        "particles in cells of one area"
    )
    figure.suptitle(wrapped(heading, 3 * count, 12))
    longitudes, latitudes, points = _sphere()
    potential = block.potential(points)
    for row, (path, colour) in enumerate(((result.without, WITHOUT), (result.with_block, WITH))):
        for column in range(count):
            chart: Any = figure.add_subplot(
                4, count, row * count + column + 1, projection="mollweide"
            )
            bars: Any = figure.add_subplot(
                4, count, (2 + row) * count + column + 1, projection="3d"
            )
            _draw_bars(bars, path.positions[column], colour)
            if path is result.with_block:
                draw_potential(chart, longitudes, latitudes, potential)
                _draw_boundaries(chart, block)
            else:
                chart.set_title(f"time {result.times[column]:.3g}", fontsize="medium")
            chart.plot(*_places(path.positions[column]), ".", color=colour, ms=4, mec="k", mew=0.3)
            chart.set(xticks=[], yticks=[])
            chart.grid(False)
            if column == 0:
                chart.set_ylabel(TITLES[row])
                bars.set_title(TITLES[row], fontsize="medium")
    return figure


def counts_of_cells(x: Floats) -> NDArray[np.int64]:
    """How many of the points (n, 3) are in each of the `CELLS`: (longitudes, heights)."""
    limits = ((-np.pi, np.pi), (-1, 1))
    found = np.histogram2d(angles_of(x[:, :2]), x[:, 2], CELLS, limits)[0]
    return found.astype(np.int64)


def _draw_bars(axes: Any, x: Floats, colour: str) -> None:
    """A bar for each cell that holds particles, over longitude and height."""
    counts = counts_of_cells(x)
    width, depth = 2 * np.pi / CELLS[0], 2 / CELLS[1]
    east, up = counts.nonzero()
    axes.bar3d(
        -np.pi + width * east,
        -1 + depth * up,
        np.zeros(len(east)),
        width,
        depth,
        counts[east, up],
        color=colour,
        edgecolor="black",
        linewidth=0.2,
    )
    axes.set(xlim=(-np.pi, np.pi), ylim=(-1, 1), zlim=(0, counts.max()))
    axes.set_xticks(PI_TICKS[::2], PI_LABELS[::2], fontsize=6)
    axes.set_yticks([-1, 0, 1])
    axes.tick_params(labelsize=6, pad=-3)
    axes.set_xlabel("longitude", fontsize=6, labelpad=-8)
    axes.set_ylabel("height", fontsize=6, labelpad=-8)


def _draw_boundaries(axes: Axes, block: Perceptron) -> None:
    """The great circle a . x = 0 of each neuron."""
    for a in block.a:
        first, second = np.linalg.svd(a[None])[2][1:]
        angles = np.linspace(-np.pi, np.pi, 361)
        east, north = _places(np.cos(angles)[:, None] * first + np.sin(angles)[:, None] * second)
        axes.plot(*with_gaps(east, north), color="grey", lw=0.8)


def _places(x: Floats) -> tuple[Floats, Floats]:
    """Longitudes and latitudes of points (..., 3)."""
    return angles_of(x[..., :2]), np.arcsin(np.clip(x[..., 2], -1, 1))
