"""What theory says of clusters on the sphere: which mode grows first, how heavy one may become.

Source: Alvarez-Lopez, Geshkovski and Ruiz-Balet, arXiv 2601.21366, by the formulas of its code,
`antonioalvarezl/2026-MLP-Attention-Energy`; its text was not available.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import growth
from macaron_fairseq.analysis.particles.systems import Perceptron

# The largest slope of each activation. That of GELU is at the square root of 2, where its second
# derivative is 0; the authors' code has 1.085, which GELU exceeds.
SLOPES = {
    "relu": 1.0,
    "gelu": float(ndtr(np.sqrt(2)) + np.sqrt(2) * np.exp(-1) / np.sqrt(2 * np.pi)),
    "tanh": 1.0,
}


@dataclass(frozen=True)
class Modes:
    """How fast a wave on the circle grows, by its number of crests."""

    betas: Floats  # (b,)
    growth: list[Floats]  # e^-beta gamma_k for k = 0, 1, ..., for each beta
    predicted: NDArray[np.int64]  # the k of the largest, (b,)
    fine_betas: Floats  # (f,)
    fine_predicted: NDArray[np.int64]  # (f,)


def modes(betas: Floats) -> Modes:
    """The growth rates at each of `betas`, (b,), up to twice the mode that they predict."""
    predicted = np.array([growth.predicted_mode(float(beta)) for beta in betas])
    fine = np.linspace(0, np.sqrt(betas.max()), 400) ** 2
    return Modes(
        betas=betas,
        growth=[
            growth.rates(float(beta), max(8, 2 * int(k)))
            for beta, k in zip(betas, predicted, strict=True)
        ],
        predicted=predicted,
        fine_betas=fine,
        fine_predicted=np.array([growth.predicted_mode(float(beta)) for beta in fine]),
    )


def block_constant(block: Perceptron | None) -> float:
    """C = sum_m |w_m| (L |a_m|^2 + (|sigma(0)| + L |a_m|) |a_m|), and 0 without a block.

    L is the activation's steepest slope, of `SLOPES`, and sigma(0) = 0 for each of them.
    """
    if block is None:
        return 0.0
    a, w = (np.linalg.norm(weights, axis=1) for weights in (block.a, block.w))
    return float((w * 2 * SLOPES[block.activation] * a**2).sum())


def heaviest_mass_bound(beta: float, constant: float) -> float:
    """The most particles in one cluster: (4 + 2 e^(3/2) C e^-beta) / (4 + 3/4 e^(11/8)), a share.

    It tends to 0.5742 where beta is large. Above 1 it says nothing. It holds at rest after a
    descent of USA, not of scaled USA: only USA's attention carries the factor e^beta.
    """
    above = 4 + 2 * np.exp(1.5) * constant * np.exp(-beta)
    return float(above / (4 + 0.75 * np.exp(11 / 8)))
