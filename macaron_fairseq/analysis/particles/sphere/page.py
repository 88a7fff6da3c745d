"""The interactive page of particles that move."""

from collections.abc import Iterable

import numpy as np

from macaron_fairseq.analysis import figures, interactive_page
from macaron_fairseq.analysis.interactive_page import Scene
from macaron_fairseq.analysis.measures import cluster_labels
from macaron_fairseq.analysis.particles.sphere.experiments import Trajectories
from macaron_fairseq.analysis.particles.sphere.figures import plane_of

MOST_SHOWN = 2000  # particles; more make the page slow
# Neither dark nor light, so that both kinds of page show them.
COLOURS = ("#3b86c8", "#d97b3c", "#4aa86b", "#a172c4", "#c9504f", "#8c7a5a", "#c06aa8", "#7f8c8d")


def trajectories(
    result: Trajectories, title: str, cosine: float, facts: Iterable[tuple[str, str]] = ()
) -> str:
    """The page of one cloud of particles.

    Args:
        result: the particles; of more than `MOST_SHOWN` every second, third ... is shown.
        title: text.
        cosine: the threshold of the clusters.
        facts: see `interactive_page.page`.
    """
    x = result.positions
    _, n, dim = x.shape
    shown = np.arange(0, n, -(-n // MOST_SHOWN))
    labels = np.array([cluster_labels(points, cosine)[shown] for points in x])
    axes = ["x<sub>1</sub>", "x<sub>2</sub>", "x<sub>3</sub>"][:dim]
    positions = x[:, shown]
    introduction = "Particles on the unit sphere. Each colour is a cluster at the end."
    if dim > 3:
        axes = [f"component {i}" for i in (1, 2, 3)]
        positions = positions @ plane_of(x, 3).T
        introduction += " Shown are the first three principal components of all times together."
    if len(shown) < n:
        introduction += f" {len(shown):,} of {n:,} particles are shown."
    count = int(labels[-1].max()) + 1
    of_clusters = COLOURS[:count] if count <= len(COLOURS) else figures.spread(count)
    # Between the times that are kept: a particle may be faster for a moment.
    speed = np.linalg.norm(np.gradient(x[:, shown], result.times, axis=0), axis=2)
    scene = Scene(
        "",
        title,
        [f"time {time:.3g}" for time in result.times],
        [f"particle {i + 1}" for i in shown],
        positions,
        axes,
        [of_clusters[label] for label in labels[-1]],
        {"cluster": labels + 1.0, "mean speed": speed},
        on_sphere=True,
    )
    return interactive_page.page(title, introduction, facts, [scene])
