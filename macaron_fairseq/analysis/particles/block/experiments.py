"""Particles with a perceptron block and without it, from the same start: the numbers.

The figures are those of arXiv 2601.21366; the `systems` have its equations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import growth, simulation
from macaron_fairseq.analysis.particles.block import localization, settling
from macaron_fairseq.analysis.particles.block.settling import Labels
from macaron_fairseq.analysis.particles.systems import SYSTEMS, System
from macaron_fairseq.common.progress import bar, following

Integers = NDArray[np.int64]

# Of the time, how early the first look is and how many there are until the end, of each kind.
EARLIEST, LOOKS = 1e-3, 100


def times_of_both_scales(time: float) -> Floats:
    """Times from 0 on that look even on a linear axis or on a logarithmic one: (t,)."""
    return np.union1d(np.linspace(0, time, LOOKS), np.geomspace(EARLIEST * time, time, LOOKS))


def without_block(system: System) -> System:
    """The same system with attention alone."""
    return replace(system, perceptron=None)


def _refuse_fast(systems: Sequence[System], time: float) -> None:
    """Before the first of them begins; without their block they are no faster."""
    for system in systems:
        simulation.refuse_fast(system, time)


@dataclass(frozen=True)
class Path:
    """Particles over time."""

    positions: Floats  # (t, n, d)
    labels: Labels  # the cluster of each particle at the end, (n,)


@dataclass(frozen=True)
class Paths:
    """The same particles with the block and without it."""

    times: Floats  # (t,)
    threshold: float  # radians, see `settling.threshold`
    without: Path
    with_block: Path


def paths(system: System, start: Floats, times: Floats, scale: float) -> Paths:
    """Follow particles from `start`, (n, d), twice; `scale` is that of `settling.threshold`."""
    _refuse_fast([system], times[-1])
    angle = settling.threshold(scale, system.beta, start.shape[1])
    found = []
    for one, what in ((without_block(system), "without the block"), (system, "with the block")):
        with bar(what, total=float(times[-1]), leave=False) as shown:
            x = simulation.integrate(one, start, times, shown.update)
        found.append(Path(x, settling.cluster_labels(x[-1], angle)))
    return Paths(times, angle, *found)


@dataclass(frozen=True)
class Field:
    """How fast a particle anywhere on the circle would move, in radians per time."""

    angles: Floats  # from -pi to pi, (m,)
    attention: Floats  # because of the other particles, at each of the times, (t, m)
    block: Floats  # because of the block, (m,)


def field(system: System, positions: Floats, angles: Floats) -> Field:
    """The field of the particles at `positions`, (t, n, 2), at these angles, (m,)."""
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    tangents = np.stack([-np.sin(angles), np.cos(angles)], axis=1)
    pull = SYSTEMS[system.name](points, positions, system.beta)
    pull = np.broadcast_to(pull, (len(positions), *points.shape))
    drift = system.perceptron.drift(points) if system.perceptron else np.zeros_like(points)
    sign = -1 if system.descends else 1
    return Field(
        angles, sign * (pull * tangents).sum(axis=2), sign * (drift * tangents).sum(axis=1)
    )


@dataclass(frozen=True)
class Frames:
    """Particles at a few times and, on the circle, what moves those with the block."""

    paths: Paths
    field: Field | None


def frames(system: System, start: Floats, times: Floats, scale: float) -> Frames:
    """Follow particles as `paths` does."""
    found = paths(system, start, times, scale)
    if start.shape[1] > 2:
        return Frames(found, None)
    angles = np.linspace(-np.pi, np.pi, 361)
    return Frames(found, field(system, found.with_block.positions, angles))


@dataclass(frozen=True)
class Ends:
    """What particles have become when they rest, at s settings, from each of r starts."""

    clusters: Integers  # (s, r)
    modes: Integers  # (s, r)
    heavy: Integers  # clusters with at least the share of the particles that is asked for, (s, r)
    masses: list[
        list[list[float]]
    ]  # the share in each cluster, the largest first, (s, r, clusters)
    time: Floats  # when they came to rest, or were given up, (s, r)
    converged: NDArray[np.bool_]  # (s, r)
    angles: Floats | None  # of the particles on the circle, in radians; None elsewhere, (s, r, n)


@dataclass(frozen=True)
class Criteria:
    """When particles rest, and what counts as a cluster."""

    scale: float  # see `settling.threshold`
    drift: float  # see `settling.settle`
    time: float  # after which to give up
    mass: float  # the share of the particles that a heavy cluster has at least


def _ends(
    systems: Sequence[System], starts: Sequence[Floats], criteria: Criteria, what: str
) -> Ends:
    """Settle each system from each of its starts: one array (r, n, d) for each system."""
    trials = len(starts[0])
    found = []
    work = list(product(zip(systems, starts, strict=True), range(trials)))
    for (system, of_system), trial in following(work, what):
        start = of_system[trial]
        angle = settling.threshold(criteria.scale, system.beta, start.shape[1])
        end = settling.settle(system, start, angle, criteria.time, criteria.drift)
        mass = settling.masses(end.labels)
        heavy = int((mass >= criteria.mass).sum())
        modes = settling.modes(end.positions, angle)
        angles = np.arctan2(end.positions[:, 1], end.positions[:, 0])
        found.append((len(mass), modes, heavy, mass.tolist(), end.time, end.converged, angles))
    clusters, modes_, heavies, masses, times, converged, angles_ = zip(*found, strict=True)
    shape = (len(systems), trials)
    return Ends(
        clusters=np.reshape(clusters, shape),
        modes=np.reshape(modes_, shape),
        heavy=np.reshape(heavies, shape),
        masses=[list(masses[i * trials : (i + 1) * trials]) for i in range(len(systems))],
        time=np.reshape(times, shape),
        converged=np.reshape(converged, shape),
        angles=np.reshape(angles_, (*shape, -1)) if starts[0].shape[2] == 2 else None,
    )


@dataclass(frozen=True)
class Counts:
    """Clusters, modes and masses over beta."""

    betas: Floats  # (b,)
    # See `growth.predicted_mode`; on the circle alone, where attention climbs, (b,).
    predicted_mode: Integers | None
    # The bounds of `localization.heaviest_mass_bound`, where they hold: of USA in descent, with the
    # block, (b,); and of both USAs in descent, without one.
    bound: Floats | None
    bound_without: float | None
    without: Ends  # of b settings
    with_block: Ends  # of b settings


def counts(system: System, starts: Floats, betas: Floats, criteria: Criteria) -> Counts:
    """Let particles from each of `starts`, (r, n, d), come to rest at each of `betas`, (b,)."""
    systems = [replace(system, beta=float(beta)) for beta in betas]
    _refuse_fast(systems, criteria.time)
    alone = [without_block(one) for one in systems]
    constant = localization.block_constant(system.perceptron)
    grows = starts.shape[2] == 2 and system.name != "none" and not system.descends
    modes = [growth.predicted_mode(one.beta) for one in systems]
    bound = localization.heaviest_mass_bound
    is_usa_descent = system.descends and system.name in ("usa", "usa-scaled")
    has_bound = is_usa_descent and system.name == "usa"
    repeated = [starts] * len(systems)
    return Counts(
        betas=betas,
        predicted_mode=np.array(modes) if grows else None,
        bound=np.array([bound(one.beta, constant) for one in systems]) if has_bound else None,
        bound_without=bound(0, 0) if is_usa_descent else None,
        without=_ends(alone, repeated, criteria, "without the block"),
        with_block=_ends(systems, repeated, criteria, "with the block"),
    )


@dataclass(frozen=True)
class Energies:
    """`System.energy` over time, at each beta."""

    times: Floats  # (t,)
    betas: Floats  # (b,)
    without: Floats  # (b, t)
    with_block: Floats  # (b, t)


def energies(system: System, start: Floats, times: Floats, betas: Floats) -> Energies:
    """Follow the energy of particles from `start`, (n, d)."""
    systems = [replace(system, beta=float(beta)) for beta in betas]
    _refuse_fast(systems, times[-1])
    both = [[without_block(one) for one in systems], systems]
    work = [(one, side) for side in (0, 1) for one in both[side]]
    found = [
        [one.energy(x) for x in simulation.integrate(one, start, times)]
        for one, _ in following(work, "energy")
    ]
    alone, together = np.reshape(found, (2, len(betas), len(times)))
    return Energies(times, betas, alone, together)


@dataclass(frozen=True)
class Sweep:
    """What particles become as the block grows stronger, or the dimensions more."""

    over: str  # strength or dim
    values: Floats  # (v,)
    systems: list[str]
    without: list[Ends]  # for each system, of v settings; of 1 over strength
    with_block: list[Ends]  # for each system, of v settings


def sweep(
    over: str,
    values: Floats,
    names: Sequence[str],
    system_of: Callable[[str, float], System],
    starts_of: Callable[[float], Floats],
    criteria: Criteria,
) -> Sweep:
    """Let particles come to rest at each of the values.

    Args:
        over: what the values are, `strength` or `dim`.
        values: (v,).
        names: of `systems.SYSTEMS`.
        system_of: makes the system of that name, with the block, for a value.
        starts_of: the particles' starts for a value, (r, n, d).
        criteria: when they rest.
    """
    without, with_block = [], []
    with_name = {name: [system_of(name, value) for value in values] for name in names}
    for systems in with_name.values():
        _refuse_fast(systems, criteria.time)
    starts = [starts_of(value) for value in values]
    for name, systems in with_name.items():
        alone = [without_block(one) for one in systems]
        first = 1 if over == "strength" else len(values)  # of which each has another null
        without.append(_ends(alone[:first], starts[:first], criteria, f"{name} without the block"))
        with_block.append(_ends(systems, starts, criteria, f"{name} with the block"))
    return Sweep(over, values, list(names), without, with_block)
