"""Figures of one square matrix: a layer's Jacobian, or the product of several.

A matrix is normal if it commutes with its transpose: its eigenvectors are orthogonal, and its
eigenvalues tell all that it does to lengths. Each figure is unchanged if the matrix is rotated,
A -> Q A Q^T, except `growth`, whose direction is to be rotated with it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from macaron_fairseq.analysis import jacobians, measures
from macaron_fairseq.analysis.measures import Floats

# Of the largest modulus. In fp64 only rounding is below it; a real eigenvalue comes out real.
NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class Spectra:
    """What was found of a matrix d x d."""

    figures: dict[str, float]
    eigenvalues: NDArray[np.complex128]  # (d,)
    singular_values: Floats  # largest first, (d,)


def of_matrix(matrix: Floats, direction: Floats | None = None) -> Spectra:
    """All figures of a square matrix A.

    Args:
        matrix: (d, d), in fp64; that of a layer takes a state to the state after it, A = I + J.
        direction: for `growth`, (d,), of any length but zero.

    Returns:
        The spectra; among their figures are

        - complex: the share of the eigenvalues, but for negligible ones, that are not real.
        - rotation: the mean of |arg lambda| over the same eigenvalues, in degrees. The sign of a
          negligible one is chance; a post-norm LayerNorm makes such.
        - henrici, asymmetry: see `jacobians.block_figures`.
        - added, added_henrici, added_asymmetry: see `of_added`.
        - numerical_abscissa: the largest eigenvalue of (A + A^T) / 2; less 1, it is how fast a
          length can begin to grow under x' = (A - I) x.
        - spectral_radius: the largest modulus of an eigenvalue.
        - norm: the largest singular value.
        - condition: log10 of the condition number of the eigenvectors, each of length 1; 0 for a
          normal matrix.
        - effective_rank, stable_rank: see there.
        - mean_growth: the Frobenius norm over sqrt(d), the root mean square of the growth over all
          directions.
        - growth: by which factor A stretches the `direction`, where there is one.

    Raises:
        ValueError: if the matrix is of less than fp64. Rounding makes eigenvalues of zeros there.
    """
    if matrix.dtype in (np.float16, np.float32):
        raise ValueError(
            f"the matrix is of {matrix.dtype}: compute it in float64, as models.in_double does"
        )
    values, vectors = np.linalg.eig(matrix)
    kept = values[np.abs(values) > NEGLIGIBLE * np.abs(values).max()]
    singular: Floats = np.linalg.svd(matrix, compute_uv=False).astype(np.float64)
    common = jacobians.block_figures(
        torch.from_numpy(matrix), torch.from_numpy(values.astype(np.complex128)), NEGLIGIBLE
    )
    figures = {
        "complex": common["complex"],
        "rotation": float(np.degrees(np.abs(np.angle(kept))).mean()) if len(kept) else float("nan"),
        "henrici": common["henrici"],
        "asymmetry": common["asymmetry"],
        **of_added(matrix, values),
        "numerical_abscissa": numerical_abscissa(matrix),
        "spectral_radius": float(np.abs(values).max()),
        "norm": float(singular[0]),
        "condition": float(np.log10(np.linalg.cond(vectors))),
        "effective_rank": effective_rank(singular),
        "stable_rank": stable_rank(singular),
        "mean_growth": float(np.sqrt((singular**2).mean())),
    }
    if direction is not None and direction.any():
        length = np.linalg.norm(direction)
        figures["growth"] = float(np.linalg.norm(matrix @ direction) / length)
    return Spectra(figures, values.astype(np.complex128), singular)


def of_added(matrix: Floats, eigenvalues: NDArray[np.complex128]) -> dict[str, float]:
    """Figures of what a residual layer adds to the identity, A - I, whose shift moves eigenvalues.

    Returns:
        added: |A - I|_F / sqrt(d), how large it is.
        added_henrici, added_asymmetry: of A - I, see `jacobians.block_figures`. Those of A fall as
            the layer adds less; these do not. NaN if it adds nothing.
    """
    a = matrix - np.eye(len(matrix))
    shifted = torch.from_numpy((eigenvalues - 1).astype(np.complex128))
    found = jacobians.block_figures(torch.from_numpy(a), shifted, NEGLIGIBLE)
    return {
        "added": float(np.linalg.norm(a) / np.sqrt(len(a))),
        "added_henrici": found["henrici"],
        "added_asymmetry": found["asymmetry"],
    }


def numerical_abscissa(matrix: Floats) -> float:
    """The largest eigenvalue of the symmetric part, the rightmost point of the numerical range."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1])


def effective_rank(singular_values: Floats) -> float:
    """exp(-sum p ln p) over the shares p = sigma / sum sigma, from 1 to d; NaN for all zero.

    Source: Roy and Vetterli, "The effective rank", 2007.
    """
    total = singular_values.sum()
    if not total:
        return float("nan")
    return measures.exp_entropy(singular_values / total)


def stable_rank(singular_values: Floats) -> float:
    """sum sigma^2 / max sigma^2, from 1 to d; NaN for all zero."""
    largest = singular_values.max()
    return float(((singular_values / largest) ** 2).sum()) if largest else float("nan")


def lyapunov(blocks: Floats) -> Floats:
    """How each of d directions grows at each layer, ln |x| after it minus ln |x| before it.

    The QR iteration along depth, J_l Q_(l-1) = Q_l R_l: the logarithms of the diagonal of each R_l,
    (layers, d). Their mean over the layers are the Lyapunov exponents, per layer. Q_0 is the right
    singular basis of the whole product, largest first. So the sum over the layers is the
    logarithm of its singular values, whatever the number of layers. Those that are 1e-15 of the
    largest, or smaller, are rounding. In a long product of random matrices any other Q_0 gives the
    same in the limit.

    Source: Benettin et al. 1980 for the iteration.

    Args:
        blocks: J_1 first, (layers, d, d).
    """
    q = right_basis(blocks)
    grown = []
    for block in blocks:
        q, r = np.linalg.qr(block @ q)
        with np.errstate(divide="ignore"):  # minus infinity for a direction that is lost
            grown.append(np.log(np.abs(np.diag(r))))
    return np.stack(grown)


def right_basis(blocks: Floats) -> Floats:
    """The right singular vectors of J_L ... J_1 as columns, largest singular value first."""
    product = np.eye(blocks.shape[-1])
    for block in blocks:
        product = block @ product
        product = product / (np.abs(product).max() or 1.0)  # in range, however many layers
    return np.linalg.svd(product)[2].T


def lyapunov_figures(blocks: Floats) -> dict[str, float]:
    """What the exponents of a product say, per layer.

    Returns:
        lyapunov_largest, lyapunov_least: of all d. The largest is ln sigma_1 of the product over
            its number of layers. It can fall from layer to layer while sigma_1 rises.
        lyapunov_mean: ln |det| per layer and dimension; below 0 volumes shrink.
        growing: the share of exponents above 0.
    """
    exponents = lyapunov(blocks).mean(axis=0)
    return {
        "lyapunov_largest": float(exponents.max()),
        "lyapunov_mean": float(exponents.mean()),
        "lyapunov_least": float(exponents.min()),
        "growing": float((exponents > 0).mean()),
    }
