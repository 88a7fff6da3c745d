"""Dynamic metastability: the energy of few particles on the circle rises in steps.

Angles follow scaled USA with beta that may be thousands,

    theta_i' = - sum_j w_j e^{beta (cos(theta_i - theta_j) - 1)} sin(theta_i - theta_j)

with w_j = 1/n; SA divides by the sum of the weights. Two particles at an angle of delta need about
e^{beta (1 - cos delta)} to meet. So mergers come one after the other, at times that differ by
orders of magnitude, and between them nothing moves. Each merger is a step of the energy

    E = sum_ij w_i w_j e^{beta (cos(theta_i - theta_j) - 1)}

to the sum of the squared masses of the clusters.

Source: Geshkovski, Koubbi, Polyanskiy and Rigollet, arXiv 2410.06833.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar
from macaron_fairseq.schemes import substeps

# Particles so near, as a share of 1/sqrt(beta), are one from then on. That changes E by less than
# 1e-6 of what the pair gives.
MERGED = 1e-3
# No pair's exponent, and no gap's logarithm, changes by more in a step.
CHANGE = 0.1
MOST_STEPS = 200_000


@dataclass(frozen=True)
class Staircase:
    """The energy of the same gaps, for each beta. Times are logarithms: e^(2 beta) overflows."""

    betas: Floats  # (b,)
    log_times: list[Floats]  # the natural logarithm of time, ascending, (steps,) for each beta
    lengths: list[Floats]  # of the path until then, in the space of all angles, (steps,)
    energies: list[Floats]  # E, (steps,)
    clusters: list[NDArray[np.int64]]  # (steps,)
    mergers: list[Floats]  # ln t of each merger, (n - 1,)


def start(gaps: Floats, beta: float) -> Floats:
    """Angles of particles with these gaps, in units of ln(beta) / (2 sqrt(beta)): (n,).

    In that unit a gap g takes a time of about beta^(g^2 ln(beta) / 8).

    Raises:
        UserError: if they do not fit on a half circle, where all end in one point.
    """
    angles = np.append(0, np.cumsum(gaps)) * np.log(beta) / (2 * np.sqrt(beta))
    if angles[-1] >= np.pi:
        raise UserError(
            f"at beta {beta:g} the gaps span {angles[-1]:.3g} radians, more than half the circle: "
            "give smaller --gaps or a larger --beta"
        )
    return angles


def staircase(gaps: Floats, betas: Floats, name: str) -> Staircase:
    """Follow particles with these gaps until all are one, at each beta.

    Args:
        gaps: between neighbours, see `start`, (n - 1,).
        betas: above 1, (b,).
        name: "sa" or "usa-scaled".
    """
    with bar("staircase", total=len(betas) * len(gaps), leave=False) as shown:
        found = [climb(start(gaps, float(beta)), float(beta), name, shown.update) for beta in betas]
    log_times, lengths, energies, clusters, mergers = zip(*found, strict=True)
    return Staircase(
        betas, list(log_times), list(lengths), list(energies), list(clusters), list(mergers)
    )


def climb(
    angles: Floats, beta: float, name: str, merged: Callable[[int], object] = lambda count: None
) -> tuple[Floats, Floats, Floats, NDArray[np.int64], Floats]:
    """Follow particles at ascending angles within a half circle until all are one.

    The clusters' angles move along their path with unit speed, whatever the true speed, which is
    kept as a logarithm. So no step is lost where nothing moves, and nothing overflows.

    Args:
        angles: (n,).
        beta: above 0.
        name: "sa" or "usa-scaled".
        merged: called with how many particles have just been merged.

    Returns:
        After each step ln t, the length of all angles' path, the energy and the number of clusters;
        and ln t of each merger.

    Raises:
        UserError: if that takes more than `MOST_STEPS`.
    """
    theta, masses = angles, np.full(len(angles), 1 / len(angles))
    log_time, length = -np.inf, 0.0
    steps: list[tuple[float, float, float, int]] = []
    mergers: list[float] = []

    def field(x: Floats) -> Floats:
        return _direction(x, masses, beta, name)[0]

    while len(theta) > 1:
        if len(steps) == MOST_STEPS:
            raise UserError(
                f"beta {beta:g} needs more than {MOST_STEPS:,} steps until all particles are one: "
                "lower --beta or the --gaps"
            )
        # The pull of the nearest pair is all but all of it.
        gap = float(np.diff(theta).min())
        h = CHANGE * min(gap, 1 / (beta * np.sin(min(gap, np.pi / 2)) + np.sqrt(beta)))
        _, before = _direction(theta, masses, beta, name)
        moved = h * substeps.rk4(field, theta, h)
        theta = theta + moved
        _, after = _direction(theta, masses, beta, name)
        log_time = float(np.logaddexp(log_time, np.log(h) - (before + after) / 2))
        length += float(np.sqrt(len(angles) * (masses @ moved**2)))  # each particle's angle counts
        theta, masses, count = _merge(theta, masses, MERGED / np.sqrt(beta))
        if count:
            mergers += [log_time] * count
            merged(count)
        steps.append((log_time, length, energy(theta, masses, beta), len(theta)))
    log_times, lengths, energies, clusters = zip(*steps, strict=True)
    return (
        np.array(log_times),
        np.array(lengths),
        np.array(energies),
        np.array(clusters),
        np.array(mergers),
    )


def energy(theta: Floats, masses: Floats, beta: float) -> float:
    """E, from 0 to 1: 2 beta times E_beta of `measures.energy`."""
    below = np.cos(theta[:, None] - theta) - 1
    return float(masses @ np.exp(beta * below) @ masses)


def _direction(theta: Floats, masses: Floats, beta: float, name: str) -> tuple[Floats, float]:
    """The velocity of all angles over its norm, (n,), and the norm's logarithm."""
    apart = theta[:, None] - theta
    exponents = beta * (np.cos(apart) - 1)
    if name == "sa":
        exponents = exponents - np.log(np.exp(exponents) @ masses)[:, None]
    largest = exponents[~np.eye(len(theta), dtype=bool)].max()
    # A particle does not pull itself: there the sine is 0.
    pull = -(np.exp(np.minimum(exponents - largest, 0)) * np.sin(apart)) @ masses
    norm = float(np.linalg.norm(pull))
    return pull / norm, largest + float(np.log(norm))


def _merge(theta: Floats, masses: Floats, nearest: float) -> tuple[Floats, Floats, int]:
    """Neighbours no further apart than that become one, in their centre of mass."""
    count = 0
    while len(theta) > 1 and (gap := np.diff(theta)).min() <= nearest:
        i = int(gap.argmin())
        pair = masses[i : i + 2]
        theta = np.concatenate([theta[:i], [pair @ theta[i : i + 2] / pair.sum()], theta[i + 2 :]])
        masses = np.concatenate([masses[:i], [pair.sum()], masses[i + 2 :]])
        count += 1
    return theta, masses, count
