"""Attention without a sphere, rescaled: how the value matrix V shapes the clusters.

Tokens follow x_i' = sum_j p_ij V x_j, with p_ij the softmax over j of <x_i, x_j>, and grow without
bound. The rescaled ones z_i(t) = e^{-tV} x_i(t) do not, with

    z_i' = sum_j p_ij V (z_j - z_i),    p_ij = softmax over j of <e^{tV} z_i, e^{tV} z_j>

What they gather at depends on V: the corners of a polytope if V = I, up to three parallel
hyperplanes if its leading eigenvalue is simple and positive, fewer dimensions in general.

Source: Geshkovski, Letrouit, Polyanskiy and Rigollet, arXiv 2305.05465, with query and key matrices
the identity.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import ConvexHull, QhullError
from scipy.spatial.distance import cdist

from macaron_fairseq.analysis.measures import Floats, exp_entropy
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import following
from macaron_fairseq.schemes import substeps

# The classic Runge-Kutta method is stable up to this product of step and rate.
STABLE = 2.7
LARGEST_EXPONENT = 300  # of |e^{tV} z| and |z|, whose squares fp64 still holds
# z grows by e^{-at} along the eigenvector of the least eigenvalue a, and e^{tV} takes that back.
# Where others grow by e^{bt}, rounding leaves 1e-16 e^{(b - a) t} of it.
LARGEST_SPREAD = 30
# Of the cube where tokens start. In many dimensions its corners are so far away that each token of
# a larger one would attend to itself alone.
HALF_SIDE, HALF_SIDE_OF_MANY = 5.0, 1.0
DRAWN = 3  # dimensions at most
SAME = 0.1  # coordinates nearer than that share of their range are taken for one


# --- value matrices ------------------------------------------------------------------------------


# The sets that tokens gather at.
GEOMETRIES = ("polytope", "hyperplanes", "codimension", "product")


def value_matrix(geometry: str, dim: int, positive: int, seed: int) -> Floats:
    """V of one of the `GEOMETRIES`, (dim, dim).

    Args:
        geometry: what the tokens gather at.
        dim: d.
        positive: how many eigenvalues are positive, of codimension and product.
        seed: of what is drawn.
    """
    generator = np.random.default_rng([seed, 3])
    is_positive = np.arange(dim) < positive
    if geometry == "polytope":
        return np.eye(dim)
    if geometry == "hyperplanes":  # positive entries, so that Perron and Frobenius hold
        return generator.uniform(size=(dim, dim))
    if geometry == "codimension":  # symmetric
        turn = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
        values = generator.uniform(0.3, 1, size=dim) * np.where(is_positive, 1, -1)
        return np.asarray((turn * values) @ turn.T)
    return np.diag(np.where(is_positive, 1.0, -0.5))  # a polytope times a hyperplane


def gram_matrix(dim: int, seed: int) -> Floats:
    """V = G G^T with entries of G uniform in (-1, 1), over its largest eigenvalue: (dim, dim)."""
    entries = np.random.default_rng([seed, 3]).uniform(-1, 1, size=(dim, dim))
    gram = entries @ entries.T
    return np.asarray(gram / np.linalg.eigvalsh(gram)[-1])


# --- the system ----------------------------------------------------------------------------------


def attention(z: Floats, growth: Floats) -> Floats:
    """p_ij for tokens z, (n, d), and growth e^{tV}, (d, d): rows sum to one, (n, n)."""
    x = z @ growth.T
    logits = x @ x.T
    logits -= logits.max(axis=1, keepdims=True)
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def velocity(z: Floats, values: Floats, growth: Floats) -> Floats:
    """z' at tokens z, (n, d)."""
    return np.asarray((attention(z, growth) @ z - z) @ values.T)


def is_diagonal(values: Floats) -> bool:
    """Whether V mixes no coordinates."""
    return not np.any(values - np.diag(np.diag(values)))


def eigenbasis(values: Floats) -> tuple[Floats, Floats]:
    """V's eigenvectors as columns, and V in their basis, where e^{tV} mixes no coordinates.

    A V that is diagonal or not symmetric stays as it is: (d, d) each.
    """
    if is_diagonal(values) or not np.allclose(values, values.T, rtol=0, atol=1e-12):
        return np.eye(len(values)), values
    found, vectors = np.linalg.eigh((values + values.T) / 2)
    return vectors, np.diag(found)


def follow(values: Floats, start: Floats, times: Floats, step: float) -> Floats:
    """The rescaled tokens at evenly spaced times from 0, by the classic Runge-Kutta method.

    Where V is symmetric, give all in its `eigenbasis`: else much is lost to rounding.

    Args:
        values: V, (d, d).
        start: (n, d).
        times: (t,).
        step: the longest time step; shorter ones fit between two times.

    Returns:
        z, (t, n, d).

    Raises:
        UserError: if the step is too long for V, e^{tV} leaves fp64, or rounding would be all.
    """
    rate = float(np.linalg.norm(values, ord=2))
    if rate * step > STABLE:
        raise UserError(
            f"--step {step:g} is too long for V of norm {rate:.3g}: choose one below "
            f"{STABLE / rate:.3g}"
        )
    _refuse_growth(values, times[-1])
    parts = max(1, int(np.ceil((times[1] - times[0]) / step - 1e-9)))
    h = (times[1] - times[0]) / parts
    z, found = start, [start]
    # e^{tV} at a step's beginning, middle and end. The field depends on time through it alone.
    half = expm(h / 2 * values)
    growth = np.eye(len(values))
    stages: Iterator[Floats] = iter(())

    def field(y: Floats) -> Floats:
        return velocity(y, values, next(stages))

    for _ in following(times[1:], "rescaled tokens"):
        for _ in range(parts):
            stages = iter((growth, growth @ half, growth @ half, growth @ half @ half))
            z = z + h * substeps.rk4(field, z, h)
            growth = growth @ half @ half
        found.append(z)
    return np.array(found)


def _refuse_growth(values: Floats, duration: float) -> None:
    rates = np.linalg.eigvals(values).real
    fastest, spread = float(np.abs(rates).max()), float(np.ptp(rates))
    if fastest * duration > LARGEST_EXPONENT:
        raise UserError(
            f"e^(tV) leaves the range of numbers at time {LARGEST_EXPONENT / fastest:.3g}: lower "
            f"--time {duration:g}"
        )
    if spread * duration > LARGEST_SPREAD and not is_diagonal(values):
        raise UserError(
            f"from time {LARGEST_SPREAD / spread:.3g} on rounding would be most of the result: "
            f"lower --time {duration:g}"
        )


# --- what is measured ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Rescaled:
    """Rescaled tokens over time, and where they gather."""

    times: Floats  # (t,)
    positions: Floats  # z, (t, n, d)
    values: Floats  # V, (d, d)
    eigenvalues: (
        Floats  # of V, as real and imaginary parts, those of largest real part first, (d, 2)
    )
    coordinates: Floats  # of z along the growing eigenvectors of V, (t, n, k)
    shrinking: Floats  # along those that shrink, the fastest last, (t, n, s)
    groups: NDArray[np.int64]  # how many values each of these takes, see `count_values`, (t, k)
    places: NDArray[np.int64]  # where tokens are, nearer ones taken together, see `places`, (t,)
    corners: NDArray[np.int64]  # tokens on the boundary of their convex hull, (t,)
    volume: Floats  # of the hull, (t,); NaN above three dimensions

    def real(self, sign: int) -> Floats:
        """The real eigenvalues of that sign, to which the coordinates belong, largest first."""
        found = self.eigenvalues[:, 0] + 1j * self.eigenvalues[:, 1]
        return np.asarray(found[_of_sign(found, sign)].real)


def rescaled(values: Floats, start: Floats, times: Floats, step: float) -> Rescaled:
    """Follow tokens with that V; see `follow`."""
    basis, in_basis = eigenbasis(values)
    z = follow(in_basis, start @ basis, times, step)
    found, left = np.linalg.eig(in_basis.T)
    order = np.argsort(-found.real)
    found, left = found[order], left[:, order]
    growing, shrinking = (_of_sign(found, sign) for sign in (1, -1))
    coordinates = z @ left[:, growing].real
    hulls = [hull(points) for points in z]
    return Rescaled(
        times=times,
        positions=z @ basis.T,
        values=values,
        eigenvalues=np.stack([found.real, found.imag], axis=1),
        coordinates=coordinates,
        shrinking=z @ left[:, shrinking].real,
        groups=np.array([[count_values(x) for x in at.T] for at in coordinates], dtype=np.int64),
        places=np.array([places(points) for points in z]),
        corners=np.array([len(corners) for corners, _ in hulls]),
        volume=np.array([volume for _, volume in hulls]),
    )


def _of_sign(eigenvalues: NDArray[np.complex128], sign: int) -> NDArray[np.bool_]:
    """Which are real and of that sign, 1 or -1."""
    return (np.abs(eigenvalues.imag) < 1e-12) & (sign * eigenvalues.real > 0)


def count_values(coordinates: Floats) -> int:
    """How many groups the numbers form that are parted by more than `SAME` of their range."""
    ordered = np.sort(coordinates)
    reach = ordered[-1] - ordered[0]
    return 1 + int((np.diff(ordered) > SAME * reach).sum()) if reach > 0 else 1


def places(points: Floats) -> int:
    """How many groups the points form if those nearer than `SAME` / 5 of the largest distance join.

    Linked by others, points further apart are of one group, too.
    """
    distances = cdist(points, points)
    near = csr_array(distances <= SAME / 5 * distances.max())
    return int(connected_components(near, directed=False)[0])


def hull(points: Floats) -> tuple[NDArray[np.int64], float]:
    """The corners of the convex hull, as indices, and its area or volume; for 2 or 3 dimensions.

    Where points lie in a line or plane, or have more dimensions: no corners, and 0 or NaN.
    """
    nothing = np.array([], dtype=np.int64)
    if points.shape[1] > DRAWN:
        return nothing, float("nan")
    try:
        found = ConvexHull(points)
    except QhullError:
        return nothing, 0.0
    return found.vertices.astype(np.int64), float(found.volume)


@dataclass(frozen=True)
class Leaders:
    """The attention matrix over time: its rank, and to whom it points."""

    times: Floats  # (t,)
    positions: Floats  # z, (t, n, d)
    values: Floats  # V, (d, d)
    rank: NDArray[np.int64]  # of the attention matrix, to rounding, (t,)
    effective_rank: Floats  # exp of the entropy of its singular values, (t,)
    leaders: NDArray[np.int64]  # tokens that get more than half of somebody's attention, (t,)
    shown: Floats  # the times of the matrices below, (s,)
    matrices: Floats  # (s, n, n)


def leaders(values: Floats, start: Floats, times: Floats, step: float, shown: int) -> Leaders:
    """Follow tokens with that V and look at their attention; that many matrices are kept."""
    basis, in_basis = eigenbasis(values)
    z = follow(in_basis, start @ basis, times, step)
    matrices = np.array([attention(x, expm(t * in_basis)) for x, t in zip(z, times, strict=True)])
    singular = np.linalg.svd(matrices, compute_uv=False)
    share = singular / singular.sum(axis=1, keepdims=True)
    frames = np.unique(np.linspace(0, len(times) - 1, shown).round().astype(int))
    return Leaders(
        times=times,
        positions=z @ basis.T,
        values=values,
        rank=np.linalg.matrix_rank(matrices),
        effective_rank=np.array([exp_entropy(row) for row in share]),
        leaders=(matrices > 0.5).any(axis=1).sum(axis=1),
        shown=times[frames],
        matrices=matrices[frames],
    )


def cube_start(n: int, dim: int, half_side: float, seed: int) -> Floats:
    """n tokens, uniform in a cube around 0: (n, dim)."""
    return np.random.default_rng(seed).uniform(-half_side, half_side, size=(n, dim))
