"""What pictures of particles share: names, axes, circle and sphere."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from numpy.typing import NDArray

from macaron_fairseq.analysis.measures import Floats

SYSTEM_NAMES = {"sa": "SA", "usa": "USA", "usa-scaled": "scaled USA", "none": "no attention"}
TIME = "time"
CYCLE = tuple(f"C{i}" for i in range(10))  # matplotlib's colours
COSINE = "cosine of a pair"
MOST_PATHS = 1000  # more hide each other, and take seconds
PI_TICKS = np.pi * np.array([-1, -0.5, 0, 0.5, 1])
PI_LABELS = ["-π", "-π/2", "0", "π/2", "π"]


def colours(n: int) -> list[Any]:
    """As many colours, each once: matplotlib's, or of a map from blue to red."""
    return [*CYCLE[:n]] if n <= len(CYCLE) else [*colormaps["turbo"](np.linspace(0, 1, n))]


def angles_of(x: Floats) -> Floats:
    """From -pi to pi, of points (..., 2): (...)."""
    return np.arctan2(x[..., 1], x[..., 0])


def on_circle(angles: Floats) -> Floats:
    """The points at these angles, (..., 2)."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def with_gaps(angles: Floats, along: Floats) -> tuple[Floats, Floats]:
    """Angles of one path, (t,), and what goes along with them, with NaN where it goes over an edge.

    A line would cross the whole picture there, from pi to -pi.
    """
    places = np.flatnonzero(np.abs(np.diff(angles)) > np.pi) + 1
    return np.insert(angles, places, np.nan), np.insert(along, places, np.nan)


def draw_angles(axes: Axes, times: Floats, angles: Floats, **style: Any) -> None:
    """Draw paths over time: angles (t, n) in a style of matplotlib's lines."""
    for path in angles.T:
        path, when = with_gaps(path, times)
        axes.plot(when, path, **style)


def draw_wire_sphere(axes: Any) -> None:
    """Draw the unit sphere as a net of grey lines."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 25), np.linspace(0, np.pi, 13))
    axes.plot_wireframe(
        np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v), color="grey", lw=0.3, alpha=0.4
    )


def drawn_of(n: int) -> NDArray[np.int64]:
    """The particles whose paths are drawn: every second, third ... of more than `MOST_PATHS`."""
    return np.arange(0, n, -(-n // MOST_PATHS))


def cell_edges(centres: Floats) -> Floats:
    """The boundaries of cells around evenly spaced centres."""
    half = (centres[1] - centres[0]) / 2 if len(centres) > 1 else 0.5
    return np.append(centres - half, centres[-1] + half)
