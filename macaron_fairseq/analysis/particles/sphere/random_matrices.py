"""Phase diagrams of attention with random query, key and value matrices.

    x_i' = P_i( sum_j p_ij V^T x_j ),    p_ij = softmax over j of beta x_i^T B x_j

with B = Q^T K and P_i the projection to the tangent space at x_i. V and B may be drawn for each
trial, for all trials or for all inverse temperatures, and drawn anew after each period.

Source: Geshkovski, Letrouit, Polyanskiy and Rigollet, arXiv 2312.10794, sections 8 and 9.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import simulation
from macaron_fairseq.analysis.particles.kept_parts import PartOf, keep_nothing
from macaron_fairseq.analysis.particles.simulation import TooManyStepsError
from macaron_fairseq.analysis.particles.sphere import equal_cosines
from macaron_fairseq.common.progress import following

# A Gram eigenvalue above it counts; n particles have n eigenvalues whose sum is n.
SMALLEST_EIGENVALUE = 1e-3

MOST_PERIODS = 10_000

Generator = np.random.Generator


def _identity(generator: Generator, count: int, dim: int) -> Floats:
    return np.broadcast_to(np.eye(dim), (count, dim, dim))


def _gaussian(generator: Generator, count: int, dim: int) -> Floats:
    left, right = generator.normal(size=(2, count, dim, dim))
    return left @ right / np.sqrt(dim)


def _goe(generator: Generator, count: int, dim: int) -> Floats:
    entries = generator.normal(size=(count, dim, dim))
    return (entries + entries.swapaxes(1, 2)) / np.sqrt(2)


class KeyMatrices(NamedTuple):
    """How B is drawn, (count, d, d), and how large it is: V is B or -B over that."""

    draw: Callable[[Generator, int, int], Floats]
    size: Callable[[int], float]


KEYS = {
    "identity": KeyMatrices(_identity, lambda dim: 1.0),
    # G H / sqrt(d), entries of variance 1
    "gaussian": KeyMatrices(_gaussian, lambda dim: dim**0.5),
    # The diagonal's variance is 2, that of the others 1. The authors' script also has a choice
    # "Wigner" whose diagonal has variance 1, and calls it wrong: it is left out here.
    "goe": KeyMatrices(_goe, lambda dim: (dim + 1) ** 0.5),
}
VALUES = ("identity", "gram", "keys", "minus-keys")
SHARED = ("no", "trials", "all")


@dataclass(frozen=True)
class Matrices:
    """How V and B are drawn."""

    values: str = "identity"  # of `VALUES`: I, G G^T / sqrt(d), B over its size, and minus that
    keys: str = "identity"  # of `KEYS`
    shared: str = "no"  # of `SHARED`: what has the same matrices
    period: float | None = None  # after it they are drawn anew; None for never

    def draw(
        self, generator: Generator, trials: int, dim: int, some: slice = slice(None)
    ) -> list[Floats]:
        """V and B of some of the trials, drawn with those of all: each (some or 1, dim, dim)."""
        found = self.draw_all(generator, trials, dim)
        return [x if len(x) == 1 else x[some] for x in found]

    def draw_all(self, generator: Generator, trials: int, dim: int) -> tuple[Floats, Floats]:
        """V and B of all trials, each (trials or 1, dim, dim)."""
        count = trials if self.shared == "no" else 1
        draw, size = KEYS[self.keys]
        keys = draw(generator, count, dim)
        if self.values == "gram":
            entries = generator.normal(size=(count, dim, dim))
            return entries @ entries.swapaxes(1, 2) / np.sqrt(dim), keys
        if self.values == "identity":
            return _identity(generator, count, dim), keys
        return keys / (size(dim) if self.values == "keys" else -size(dim)), keys


@dataclass(frozen=True)
class RandomPhase:
    """Over time and beta, how far particles have come, on average over trials."""

    times: Floats  # (t,)
    betas: Floats  # (b,)
    pairs: Floats  # the share of all pairs that are above the cosine, (b, t)
    eigenvalues: Floats  # how many of the Gram matrix are above `SMALLEST_EIGENVALUE`, (b, t)
    clusters: Floats  # how many there are at the cosine, (b, t)
    largest: Floats  # the share of all particles that the largest of them holds, (b, t)
    sizes: Floats  # clusters of 1, ..., n particles in a trial at the last time, (b, n)
    boundary: Floats  # when orthogonal particles arrive with V = B = I, (b,)


def velocity(x: Floats, beta: float, values: Floats, keys: Floats) -> Floats:
    """x' at unit vectors x, (..., n, d), with matrices of (..., d, d)."""
    logits = beta * (x @ keys @ x.swapaxes(-1, -2))
    logits -= logits.max(axis=-1, keepdims=True)  # no beta overflows
    weights = np.exp(logits)
    drift = weights @ x @ values / weights.sum(axis=-1, keepdims=True)
    return drift - (drift * x).sum(axis=-1, keepdims=True) * x


def phase(
    matrices: Matrices,
    starts: Floats,
    times: Floats,
    betas: Floats,
    cosine: float,
    seed: int,
    part_of: PartOf = keep_nothing,
) -> RandomPhase:
    """The phase diagram for such matrices.

    Args:
        matrices: how they are drawn.
        starts: (trials, n, d), the same for each beta.
        times: ascending from 0, (t,).
        betas: (b,).
        cosine: what a pair's cosine must exceed, and the threshold of clusters.
        seed: of the matrices.
        part_of: gives the part of a name, see `KeptParts.part`.

    Raises:
        TooManyStepsError: if no reasonable number of them is enough.
    """
    trials, n, dim = starts.shape
    _refuse_short(matrices.period, times)
    parts = simulation.split(starts, len(times))

    def counted(row: int) -> list[list[int]]:
        """At one beta: pairs, eigenvalues, clusters, the largest's particles, and sizes."""
        counts = np.zeros((4, len(times)), dtype=int)
        sizes = np.zeros(n, dtype=int)
        seeds = [seed, 2] if matrices.shared == "all" else [seed, 2, row]
        begin = 0
        for part in parts:
            # Those of all trials are drawn anew, so that results do not depend on the parts.
            generator = np.random.default_rng(seeds)
            some = slice(begin, begin + len(part))
            begin += len(part)
            draw = partial(matrices.draw, generator, trials, dim, some)
            x = _follow(draw, matrices.period or np.inf, part, times, float(betas[row]))
            for column, clouds in enumerate(x):
                gram = clouds @ clouds.swapaxes(1, 2)
                above = gram > cosine
                of_size, heaviest = cluster_sizes(above)
                counts[:, column] += (
                    above.sum() - np.trace(above, axis1=1, axis2=2).sum(),
                    (np.linalg.eigvalsh(gram) > SMALLEST_EIGENVALUE).sum(),
                    of_size.sum(),
                    heaviest.sum(),
                )
            sizes += of_size
        return [*counts.tolist(), sizes.tolist()]

    rows = [
        part_of(f"beta-{row + 1}", partial(counted, row))
        for row in following(range(len(betas)), "phase diagram")
    ]
    pairs, eigenvalues, clusters, largest, sizes = map(np.array, zip(*rows, strict=True))
    arrivals = [equal_cosines.arrival_time(max(cosine, 0), float(beta), n) for beta in betas]
    return RandomPhase(
        times=times,
        betas=betas,
        pairs=pairs / (trials * n * (n - 1)),
        eigenvalues=eigenvalues / trials,
        clusters=clusters / trials,
        largest=largest / (trials * n),
        sizes=sizes / trials,
        boundary=np.where(np.array(arrivals) <= times[-1], arrivals, np.nan),
    )


def cluster_sizes(above: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The connected components of graphs of n particles, from their matrices (trials, n, n).

    Returns:
        How many of them have 1, ..., n particles, (n,), and for each trial how many particles the
        largest has, (trials,).
    """
    trials, n, _ = above.shape
    trial, i, j = np.nonzero(above | np.eye(n, dtype=bool))
    graph = csr_array((np.ones(len(i)), (trial * n + i, trial * n + j)), shape=(trials * n,) * 2)
    labels = connected_components(graph, directed=False)[1]
    sizes = np.bincount(labels)
    heaviest = sizes[labels].reshape(trials, n).max(axis=1)
    return np.bincount(sizes, minlength=n + 1)[1:], heaviest


def _follow(
    draw: Callable[[], Sequence[Floats]],
    period: float,
    starts: Floats,
    times: Floats,
    beta: float,
) -> Floats:
    """The particles at these times, (t, trials, n, d), with V and B drawn anew in each period."""
    found, x, now = [starts], starts, float(times[0])
    for number in range(1, int((times[-1] - times[0]) // period) + 2):
        end = min(times[0] + number * period, times[-1])
        values, keys = draw()
        _refuse_fast(values, keys, beta, times[-1] - times[0])

        def field(flat: Floats, values: Floats = values, keys: Floats = keys) -> Floats:
            points = flat.reshape(starts.shape)
            points = points / np.linalg.norm(points, axis=-1, keepdims=True)
            return velocity(points, beta, values, keys).ravel()

        within = times[(times > now) & (times <= end)]
        marks = np.unique(np.concatenate([[now], within, [end]]))
        if len(marks) < 2:
            break
        path = simulation.flow(field, x.ravel(), marks).reshape(len(marks), *starts.shape)
        path /= np.linalg.norm(path, axis=-1, keepdims=True)
        found += [path[i] for i in range(1, len(marks)) if marks[i] in within]
        x, now = path[-1], end
    return np.array(found)


def _refuse_short(period: float | None, times: Floats) -> None:
    if period and (times[-1] - times[0]) / period > MOST_PERIODS:
        raise TooManyStepsError(
            f"--regenerate {period:g} draws matrices more than {MOST_PERIODS:,} times until time "
            f"{times[-1]:g}: give a longer period"
        )


def _refuse_fast(values: Floats, keys: Floats, beta: float, duration: float) -> None:
    """Raise `TooManyStepsError` if no reasonable number of steps is enough for that time."""
    pull, bend = (float(np.linalg.norm(x, ord=2, axis=(1, 2)).max()) for x in (values, keys))
    rate = pull * (1 + beta * bend)
    simulation.refuse_fast_rate(rate, duration, " or --beta-max")
