"""Measures of a cloud of points: of the ideal particles, and of a trained model's states.

Points are the rows of an array (n, d), n of at least 2. Every measure looks at their directions
x/|x| alone. `gram` and `cosines` return a number for each pair (n = 4000: 128 MB); all others look
at the pairs in blocks of rows and need memory for the points alone.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import betainc, entr

from macaron_fairseq.analysis import blocks

Floats = NDArray[np.float64]


def directions(points: ArrayLike) -> Floats:
    """The points on the unit sphere, x/|x|, in fp64: (n, d).

    Raises:
        ValueError: if they are not n >= 2 rows, or one of them is zero or not finite.
    """
    x = np.asarray(points, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"expected two or more rows, an array (n, d), not one of {x.shape}")
    # The largest entry first, since the squares of large or small numbers leave the range.
    largest = np.abs(x).max(axis=1, keepdims=True, initial=0)
    if not (np.isfinite(largest) & (largest > 0)).all():
        raise ValueError("a point is zero or not finite and has no direction")
    x = x / largest
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def gram(points: ArrayLike) -> Floats:
    """The matrix of all cosines <x_i/|x_i|, x_j/|x_j|>: (n, n), within [-1, 1]."""
    x = directions(points)
    return np.clip(x @ x.T, -1, 1)


def cosines(points: ArrayLike) -> Floats:
    """The cosine of each pair i < j, row by row: (n (n - 1) / 2,)."""
    matrix = gram(points)
    return matrix[np.triu(np.ones(matrix.shape, dtype=bool), k=1)]


def mean_cosine(points: ArrayLike) -> float:
    """The mean of the cosines of all pairs, by |sum_i x_i|^2 = n + sum_{i != j} <x_i, x_j>."""
    x = directions(points)
    n = len(x)
    return float(((x.sum(axis=0) ** 2).sum() - n) / (n * (n - 1)))


def histogram(points: ArrayLike, bins: int) -> NDArray[np.int64]:
    """How many pairs have a cosine in each of so many equal bins from -1 to 1: (bins,)."""
    x = directions(points)

    def count(rows: slice) -> NDArray[np.int64]:
        return np.histogram(_later(x, rows), bins, (-1, 1))[0]

    return sum(blocks.over_rows(len(x), count), np.zeros(bins, np.int64))


def pairs_above(points: ArrayLike, threshold: float) -> int:
    """How many of the n (n - 1) / 2 pairs have a cosine above the threshold."""
    x = directions(points)

    def count(rows: slice) -> int:
        return int(np.count_nonzero(_later(x, rows) > threshold))

    return sum(blocks.over_rows(len(x), count))


def share_above(points: ArrayLike, threshold: float) -> float:
    """The share of all pairs whose cosine is above the threshold, from 0 to 1."""
    n = np.shape(points)[0]
    return pairs_above(points, threshold) / (n * (n - 1) / 2)


def share_of_cap(cosine: float, dim: int) -> float:
    """The share of the unit sphere in so many dimensions that is within a cosine of a point."""
    share = float(betainc((dim - 1) / 2, 0.5, 1 - cosine**2)) / 2
    return share if cosine > 0 else 1 - share


def cluster_labels(points: ArrayLike, threshold: float) -> NDArray[np.int32]:
    """For each point the number of its cluster, from 0: (n,).

    A cluster is a connected component of the graph that joins two points whose cosine is above the
    threshold (single linkage): within one, points far apart can be linked by others between them.
    """
    x = directions(points)
    n = len(x)
    labels = np.arange(n, dtype=np.int32)
    for rows in blocks.rows(n):
        edges = _later(x, rows) > threshold
        # Only what is not joined yet: of many points in one place, the first block joins all.
        edges &= labels[rows, None] != labels[None, rows.start :]
        i, j = edges.nonzero()
        ends = labels[rows][i], labels[rows.start :][j]
        graph = csr_array((np.ones(len(i), dtype=bool), ends), (n, n))
        labels = connected_components(graph, directed=False)[1][labels]
    # The numbers are in the order of the clusters' first points, but some are no one's.
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def clusters(points: ArrayLike, threshold: float) -> int:
    """How many clusters there are, from 1 to n; see `cluster_labels`."""
    return int(cluster_labels(points, threshold).max()) + 1


def spectrum(points: ArrayLike) -> Floats:
    """The eigenvalues of the Gram matrix divided by their sum, largest first: (min(n, d),).

    They are the squared singular values of the directions, so that none of the others is above 0;
    the mean is not taken away.
    """
    x = directions(points)
    smaller = x.T @ x if x.shape[1] < len(x) else x @ x.T
    values = np.clip(np.linalg.eigvalsh(smaller)[::-1], 0, None)
    return values / values.sum()


def effective_rank(points: ArrayLike) -> float:
    """exp(-sum p ln p) over the `spectrum` p, from 1 to min(n, d).

    Source: Roy and Vetterli, "The effective rank", 2007, here of the Gram matrix.
    """
    return exp_entropy(spectrum(points))


def exp_entropy(shares: Floats) -> float:
    """exp(-sum p ln p) of shares that sum to 1: as many equal shares are spread as evenly."""
    return float(np.exp(entr(shares).sum()))


def participation_ratio(points: ArrayLike) -> float:
    """1 / sum p^2 over the `spectrum` p, from 1 to min(n, d)."""
    return float(1 / (spectrum(points) ** 2).sum())


def energy(points: ArrayLike, beta: float) -> float:
    """The interaction energy E_beta = sum_ij exp(beta (<x_i, x_j> - 1)) / (2 beta n^2).

    The sum goes over all i and j, i = j included. It is largest, 1 / (2 beta), where all points are
    one. At beta = 0 it is the limit of what is left without that constant, the mean of
    (<x_i, x_j> - 1) / 2.

    Source: Geshkovski, Letrouit, Polyanskiy and Rigollet, arXiv 2312.10794, section 3, with the
    factor exp(-beta), so that no beta overflows.

    Raises:
        ValueError: if beta is negative or not finite.
    """
    if not 0 <= beta < np.inf:
        raise ValueError(f"beta is {beta}: it must be finite and not negative")
    x = directions(points)
    n = len(x)
    if beta == 0:
        return float(((x.sum(axis=0) ** 2).sum() / n**2 - 1) / 2)

    def add(rows: slice) -> float:
        return float(np.exp(beta * (_later(x, rows) - 1)).sum())

    return (n + 2 * sum(blocks.over_rows(n, add))) / (2 * beta * n**2)


def separation(points: ArrayLike, threshold: float) -> float:
    """The smallest angle between two points of different clusters, in radians; NaN for one cluster.

    See `cluster_labels`.
    """
    x = directions(points)
    labels = cluster_labels(x, threshold)
    if not labels.any():
        return float("nan")

    def largest(rows: slice) -> float:
        between = labels[rows, None] != labels[None, rows.start :]
        return float(np.where(between, _later(x, rows), -1).max())

    return float(np.arccos(max(blocks.over_rows(len(x), largest))))


def _later(x: Floats, rows: slice) -> Floats:
    """The cosines of some of the directions x, (n, d), with those from the first of them on.

    Of each pair i < j there is the cosine, in [-1, 1], and -inf in all other places: so nothing is
    counted twice. (rows, n - rows.start).
    """
    found = np.clip(x[rows] @ x[rows.start :].T, -1, 1)
    found[:, : len(found)][np.tri(len(found), dtype=bool)] = -np.inf
    return found
