"""The mean-field equation on the circle: the density of infinitely many particles.

    u_t + d/dtheta(u v) = 0,    v = -K * u,    K(theta) = e^{beta cos theta} sin theta

as in `modes`. The circle is cut into cells, and what leaves one enters the next. So the
mass is kept to rounding, whatever the scheme.

Source: Bruno, Pasqualotto and Agazzi, arXiv 2410.23228.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import growth
from macaron_fairseq.analysis.particles.metastability import modes
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar

# Of a cell, how far the density may move in a step; the limited scheme is positive up to 1/2.
COURANT = 0.45
# And of the time in which the fastest mode grows by a factor e.
GROWTH = 0.05
# Steps of Lax and Friedrichs in a time as long as a cell is wide, as in the authors' notebook.
LAX_FRIEDRICHS = 50
MOST_STEPS = 200_000
CELLS = 16  # for each cluster, at least


def velocities(densities: Floats, beta: float) -> Floats:
    """v at the points where the density is given, evenly on the circle: (m,)."""
    m = len(densities)
    theta = 2 * np.pi / m * np.arange(m)
    kernel = np.exp(beta * np.cos(theta)) * np.sin(theta)
    spectrum = np.fft.rfft(kernel) * np.fft.rfft(densities)
    return np.asarray(-np.fft.irfft(spectrum, m) * 2 * np.pi / m)


def at_edges(centres: Floats) -> Floats:
    """Values half a cell further, by shifting the phases of all modes: (m,)."""
    m = len(centres)
    spectrum = np.fft.rfft(centres)
    spectrum *= np.exp(1j * np.pi / m * np.arange(len(spectrum)))
    if m % 2 == 0:
        spectrum[-1] = 0
    return np.asarray(np.fft.irfft(spectrum, m))


def limited_flux(u: Floats, v: Floats) -> Floats:
    """The flux through the right edge of each cell, upwind, with limited slopes inside: (m,).

    Args:
        u: means of the cells, (m,).
        v: the velocity at their right edges, (m,).
    """
    left, right = u - np.roll(u, 1), np.roll(u, -1) - u
    # The monotonised central limiter: second order, and no new extremes.
    slope = np.minimum(np.minimum(2 * np.abs(left), 2 * np.abs(right)), np.abs(left + right) / 2)
    slope = np.where(left * right > 0, np.sign(left) * slope, 0)
    return np.where(v > 0, v * (u + slope / 2), v * np.roll(u - slope / 2, -1))


def finite_volumes(u: Floats, beta: float, ratio: float) -> Floats:
    """The density after a step of `ratio` times a cell's width, by Heun's method: (m,)."""

    def change(u: Floats) -> Floats:
        flux = limited_flux(u, at_edges(velocities(u, beta)))
        return flux - np.roll(flux, 1)

    middle = u - ratio * change(u)
    return np.asarray((u + middle - ratio * change(middle)) / 2)


def lax_friedrichs(u: Floats, v: Floats, ratio: float) -> Floats:
    """The density after a step of Lax and Friedrichs, with the velocities at the same points: (m,).

    It adds the diffusion of dx^2 / (2 dt), so a shorter step does not mean a smaller error.
    """
    flux = u * v
    mean = (np.roll(u, 1) + np.roll(u, -1)) / 2
    return np.asarray(mean - ratio / 2 * (np.roll(flux, -1) - np.roll(flux, 1)))


def energy(u: Floats, beta: float) -> float:
    """The double integral of e^{beta (cos - 1)} u u / (2 beta): E_beta of infinitely many."""
    m = len(u)
    kernel = np.exp(beta * (np.cos(2 * np.pi / m * np.arange(m)) - 1))
    smooth = np.fft.irfft(np.fft.rfft(kernel) * np.fft.rfft(u), m)
    return float(u @ smooth * (2 * np.pi / m) ** 2 / (2 * beta))


@dataclass(frozen=True)
class MeanField:
    """The density over time."""

    times: Floats  # (t,)
    angles: Floats  # the middles of the cells, (m,)
    densities: Floats  # with integral 1, (t, m)
    mass: Floats  # their integrals, (t,)
    energy: Floats  # (t,)
    amplitudes: Floats  # |mu_k| for k = 1, ..., (t, k)
    fastest: int
    rates: Floats  # r of each mode, (k,)
    predicted: Floats  # where the clusters of the fastest are to be, (fastest,)
    found: Floats  # all maxima of the last density, ascending
    steps: int


def disturbed(cells: int, noise: float, seed: int) -> Floats:
    """The uniform density with normal noise in every cell, made positive, with mass 1: (cells,)."""
    u = 1 / (2 * np.pi) + noise * np.random.default_rng(seed).normal(size=cells)
    u = np.maximum(u, 0)
    return np.asarray(u / (u.sum() * 2 * np.pi / cells))


def mean_field(start: Floats, beta: float, times: Floats, scheme: str) -> MeanField:
    """Follow a density from (m,) at ascending times, (t,).

    Args:
        start: with integral 1.
        beta: above 0.
        times: ascending from 0, (t,).
        scheme: of `SCHEMES`.

    Raises:
        UserError: if there are too few cells, beta is too large for double precision, that needs
            too many steps, or the step is too long for the velocities.
    """
    modes.refuse_overflow(beta)
    width = 2 * np.pi / len(start)
    if len(start) < CELLS * growth.predicted_mode(beta):
        raise UserError(
            f"{len(start)} cells are too few for beta {beta:g}: give --cells of at least "
            f"{CELLS * growth.predicted_mode(beta)}"
        )
    _refuse_long(beta, float(times[-1]), width, scheme)
    found, steps = [start], 0
    with bar(f"beta {beta:g}", total=float(times[-1]), leave=False) as shown:
        for (u, taken), passed in zip(
            SCHEMES[scheme](start, beta, times, width), np.diff(times), strict=True
        ):
            steps += taken
            found.append(u)
            shown.update(float(passed))
    densities = np.array(found)
    spectrum = np.fft.rfft(densities, axis=1) * width
    # The middle of the first cell is half a cell from 0.
    spectrum *= np.exp(-1j * np.arange(spectrum.shape[1]) * width / 2)
    k = growth.predicted_mode(beta)
    of_modes = modes.shown_modes(beta)
    return MeanField(
        times=times,
        angles=np.array([width * (i + 0.5) for i in range(len(start))]),
        densities=densities,
        mass=densities.sum(axis=1) * width,
        energy=np.array([energy(u, beta) for u in densities]),
        amplitudes=np.abs(spectrum[:, of_modes]),
        fastest=k,
        rates=modes.growth_rates(beta, of_modes),
        predicted=modes.predicted_angles(complex(spectrum[0, k]), k),
        found=modes.maxima(densities[-1]),
        steps=steps,
    )


def _refuse_long(beta: float, duration: float, width: float, scheme: str) -> None:
    """Raise a `UserError` if too many steps would be needed once all the mass is in one cell."""
    theta = np.linspace(0, np.pi, 1000)
    fastest = float((np.exp(beta * np.cos(theta)) * np.sin(theta)).max())
    step = width / LAX_FRIEDRICHS if scheme == "lax-friedrichs" else COURANT * width / fastest
    if duration / step > MOST_STEPS:
        raise UserError(
            f"a time of {duration:.3g} needs more than {MOST_STEPS:,} steps: lower --time below "
            f"{MOST_STEPS * step:.2g}, or --cells"
        )


# At each time but the first: the density, and the steps since the one before.
Advanced = Iterator[tuple[Floats, int]]


def _adaptive(u: Floats, beta: float, times: Floats, width: float) -> Advanced:
    longest = GROWTH / modes.fastest_rate(beta)
    for begin, end in pairwise(times):
        left, steps = float(end - begin), 0
        while left > 0:
            fastest = float(np.abs(velocities(u, beta)).max())
            step = min(left, longest, COURANT * width / fastest if fastest else left)
            u = finite_volumes(u, beta, step / width)
            left, steps = left - step, steps + 1
        yield u, steps


def _fixed(u: Floats, beta: float, times: Floats, width: float) -> Advanced:
    """Steps of equal length to the last time; each density is that of the step nearest in time.

    So the diffusion, which goes by the step, does not depend on how often one looks.
    """
    duration = float(times[-1] - times[0])
    step = duration / max(1, round(duration / (width / LAX_FRIEDRICHS)))
    ends = np.round((times - times[0]) / step).astype(int)
    for steps in np.diff(ends):
        for _ in range(steps):
            v = velocities(u, beta)
            fastest = float(np.abs(v).max())
            if not fastest * step <= width:
                raise UserError(
                    f"Lax-Friedrichs' step of {step:.2g} is too long for a velocity of "
                    f"{fastest:.3g}: lower --time, or take --scheme finite-volumes"
                )
            u = lax_friedrichs(u, v, step / width)
        yield u, int(steps)


SCHEMES = {
    "finite-volumes": _adaptive,
    "lax-friedrichs": _fixed,
}
