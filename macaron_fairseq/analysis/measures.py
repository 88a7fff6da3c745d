"""Measures of a cloud of points: of the ideal particles, and of a trained model's states.

Points are the rows of an array (n, d), n of at least 2. Every measure looks at their directions
x/|x| alone and needs memory for one matrix n x n at most (n = 4000: 128 MB).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

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


def share_above(points: ArrayLike, threshold: float = 0.999) -> float:
    """The share of all pairs whose cosine is above the threshold, from 0 to 1."""
    return float((cosines(points) > threshold).mean())


def cluster_labels(points: ArrayLike, threshold: float = 0.999) -> NDArray[np.int32]:
    """For each point the number of its cluster, from 0: (n,).

    A cluster is a connected component of the graph that joins two points whose cosine is above the
    threshold (single linkage): within one, points far apart can be linked by others between them.
    """
    return connected_components(csr_array(gram(points) > threshold), directed=False)[1]


def clusters(points: ArrayLike, threshold: float = 0.999) -> int:
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
    p = spectrum(points)
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


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
    below_one = gram(points) - 1
    if beta == 0:
        return float(below_one.mean() / 2)
    return float(np.exp(beta * below_one).mean() / (2 * beta))


def separation(points: ArrayLike, threshold: float = 0.999) -> float:
    """The smallest angle between two points of different clusters, in radians; NaN for one cluster.

    See `cluster_labels`.
    """
    labels = cluster_labels(points, threshold)
    between = gram(points)[labels[:, None] != labels]
    return float(np.arccos(between.max())) if between.size else float("nan")
