"""Movies of particles, as GIF or MP4: matplotlib draws, Pillow or ffmpeg writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.animation import FFMpegWriter, PillowWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from macaron_fairseq.analysis import output
from macaron_fairseq.analysis.measures import Floats, cluster_labels
from macaron_fairseq.analysis.particles import circle
from macaron_fairseq.analysis.particles.experiments import Histograms, Trajectories
from macaron_fairseq.analysis.particles.figures import COSINE, TIME, plane_of
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import following

WRITERS: dict[str, Any] = {".gif": PillowWriter, ".mp4": FFMpegWriter}
FRAMES_PER_SECOND = 15
DPI = 90
TURN = 60  # degrees that the sphere turns from the first frame to the last
MOST_TAILS = 500  # beyond them a picture takes seconds
TAIL = 12  # frames that a particle's tail is long


@dataclass(frozen=True)
class Movie:
    """A figure that changes from frame to frame."""

    figure: Figure
    draw: Callable[[int], None]  # make the figure that of a frame, from 0
    frames: int


def refuse_unwritable(path: Path) -> None:
    """Raise a `UserError` now, not after the simulation, if no such movie can be written."""
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise UserError(f"--animate takes a name that ends in .gif or .mp4, not {path}")
    if not writer.isAvailable():
        raise UserError(f"{path} needs ffmpeg, which is not installed: install it, or take a .gif")
    if path.is_dir():
        raise UserError(f"{path} is a folder: give --animate the name of a file in it")
    output.refuse_unwritable(path.parent)


def write(movie: Movie, path: Path) -> None:
    """Write a movie as its name says, whole or not at all.

    Raises:
        UserError: see `refuse_unwritable`.
    """
    refuse_unwritable(path)
    FigureCanvasAgg(movie.figure)
    writer = WRITERS[path.suffix.lower()](FRAMES_PER_SECOND)
    with TemporaryDirectory() as folder:
        made = Path(folder) / f"movie{path.suffix.lower()}"
        with writer.saving(movie.figure, made, DPI):
            for frame in following(range(movie.frames), "movie", movie.frames):
                movie.draw(frame)
                writer.grab_frame()
        files.write(path, made.read_bytes())


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
    colours = [f"C{i % 10}" for i in cluster_labels(x[-1], cosine)]
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
    axes.plot(*circle.on_circle(np.linspace(0, 2 * np.pi, 200)).T, color="grey", lw=0.6)
    axes.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    points = axes.scatter(*x[0].T, c=colours, s=18, zorder=3)
    tails = [axes.plot([], [], color=c, lw=0.8)[0] for c in colours[:MOST_TAILS]]

    def move(frame: int) -> None:
        points.set_offsets(x[frame])
        for tail, path in zip(tails, _tails(x, frame), strict=False):
            tail.set_data(*path.T)

    return move


def _sphere(axes: Any, x: Floats, colours: Sequence[str]) -> Callable[[int], None]:
    circle.draw_wire_sphere(axes)
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
