"""The movies of particles on the sphere."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from macaron_fairseq.analysis.measures import Floats, cluster_labels
from macaron_fairseq.analysis.particles import drawing
from macaron_fairseq.analysis.particles.drawing import COSINE, TIME
from macaron_fairseq.analysis.particles.movies import Movie
from macaron_fairseq.analysis.particles.sphere.experiments import Histograms, Trajectories
from macaron_fairseq.analysis.particles.sphere.figures import plane_of

TURN = 60  # degrees that the sphere turns from the first frame to the last
MOST_TAILS = 500  # beyond them a picture takes seconds
TAIL = 12  # frames that a particle's tail is long


def trajectories(result: Trajectories, title: str, cosine: float) -> Movie:
    """Particles with short tails, a colour for each cluster at the end; clusters and energy."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    x = result.positions
    on_sphere = x.shape[2] == 3
    panels: dict[str, Any] = figure.subplot_mosaic(
        [["points", "clusters"], ["points", "energy"]],
        width_ratios=(1.3, 1),
        per_subplot_kw={"points": {"projection": "3d"}} if on_sphere else {},
    )
    labels = cluster_labels(x[-1], cosine)
    of_clusters = drawing.colours(labels.max() + 1)
    colours = [of_clusters[i] for i in labels]
    cloud = _sphere if on_sphere else _circle
    move = cloud(panels["points"], x if x.shape[2] < 4 else x @ plane_of(x).T, colours)
    panels["clusters"].plot(result.times, result.clusters)
    panels["clusters"].set(ylabel=f"clusters (cosine > {cosine:g})")
    panels["clusters"].set_yscale("log", base=2)
    panels["clusters"].yaxis.set_major_formatter("{x:g}")
    panels["energy"].plot(result.times, result.energy)
    panels["energy"].set(ylabel="energy $E_β$", xlabel=TIME)
    markers = [panels[name].axvline(0, color="grey") for name in ("clusters", "energy")]

    def draw(frame: int) -> None:
        time = result.times[frame]
        for marker in markers:
            marker.set_xdata([time, time])
        figure.suptitle(f"{title}, time {time:.2f}")
        move(frame)

    return Movie(figure, draw, len(x))


def _circle(axes: Any, x: Floats, colours: Sequence[str]) -> Callable[[int], None]:
    axes.plot(*drawing.on_circle(np.linspace(0, 2 * np.pi, 200)).T, color="grey", lw=0.6)
    axes.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    points = axes.scatter(*x[0].T, c=colours, s=18, zorder=3)
    tails = [axes.plot([], [], color=c, lw=0.8)[0] for c in colours[:MOST_TAILS]]

    def move(frame: int) -> None:
        points.set_offsets(x[frame])
        for tail, path in zip(tails, _tails(x, frame), strict=False):
            tail.set_data(*path.T)

    return move


def _sphere(axes: Any, x: Floats, colours: Sequence[str]) -> Callable[[int], None]:
    drawing.draw_wire_sphere(axes)
    axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    axes.set_box_aspect((1, 1, 1), zoom=1.5)
    axes.set_axis_off()
    points = axes.scatter(*x[0].T, c=colours, s=18)
    tails = [axes.plot([], [], [], color=c, lw=0.8)[0] for c in colours[:MOST_TAILS]]

    def move(frame: int) -> None:
        points._offsets3d = tuple(x[frame].T)  # matplotlib has no public name for it
        for tail, path in zip(tails, _tails(x, frame), strict=False):
            tail.set_data_3d(*path.T)
        axes.view_init(elev=20, azim=-60 + TURN * frame / max(1, len(x) - 1))

    return move


def _tails(x: Floats, frame: int) -> Floats:
    """Where the particles have been of late: (n, frames, d)."""
    return np.moveaxis(x[max(0, frame - TAIL) : frame + 1], 1, 0)


def histograms(result: Histograms, title: str) -> Movie:
    """How many pairs have which cosine."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    share = result.counts / result.counts.sum(axis=1, keepdims=True)
    bars = axes.stairs(share[0], result.edges, fill=True)
    lowest = share[share > 0].min() / 2
    axes.set(xlabel=COSINE, ylabel="share of all pairs", yscale="log", ylim=(lowest, 1.5))
    axes.grid(alpha=0.3)

    def draw(frame: int) -> None:
        bars.set_data(share[frame])
        clusters = result.clusters[frame]
        axes.set_title(f"time {result.times[frame]:.2f}: clusters {clusters}", fontsize="medium")
        figure.suptitle(title)

    return Movie(figure, draw, len(share))
