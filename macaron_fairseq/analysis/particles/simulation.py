"""Where particles start, and how they move on."""

import math
from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles.systems import System
from macaron_fairseq.common.errors import UserError

# An explicit method takes about as many steps as the fastest rate times the time; beyond it, hours.
MOST_STEPS = 1e5
# Of the adaptive steps, for the root mean square over the whole state.
RELATIVE, ABSOLUTE = 1e-8, 1e-10
MOST_COSINES, MOST_POSITIONS = 1 << 22, 1 << 25  # in memory at once


class TooManyStepsError(UserError):
    """No reasonable number of time steps is enough."""


def random_start(n: int, dim: int, seed: int, trials: int | None = None) -> Floats:
    """Particles that are independent and uniform on the sphere: ([trials,] n, dim)."""
    shape = (n, dim) if trials is None else (trials, n, dim)
    x: Floats = np.random.default_rng(seed).normal(size=shape)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return x


def refuse_fast(system: System, duration: float) -> None:
    """Raise `TooManyStepsError` if no reasonable number of steps is enough for that time."""
    other = " or weaken the perceptron" if system.perceptron else ""
    if system.name == "usa":
        other += ", or lower beta, since the rate of usa is e^beta"
    refuse_fast_rate(system.rate, duration, other)


def refuse_fast_rate(rate: float, duration: float, other: str) -> None:
    """The same of any rate; `other` says what to change but for --time."""
    if rate * duration > MOST_STEPS:
        raise TooManyStepsError(
            f"a rate of {rate:.3g} over a time of {duration:g} needs too many steps: lower "
            f"--time{other}, until rate times time is below {MOST_STEPS:,.0f}"
        )


def flow(
    velocity: Callable[[Floats], Floats],
    start: Floats,
    times: Floats,
    passed: Callable[[float], object] = lambda time: None,
    stiff: bool = False,
) -> Floats:
    """The solution of x' = velocity(x) at each of the ascending times, by adaptive steps.

    Args:
        velocity: of a state, (n,).
        start: the state at the first time, (n,).
        times: (t,).
        passed: called with how much time has passed since it was called last.
        stiff: whether the fastest rate is far above what moves the state.

    Returns:
        The states, (t, n).

    Raises:
        UserError: if SciPy gives up.
    """
    reached = times[0]

    def field(time: float, x: Floats) -> Floats:
        nonlocal reached
        if time > reached:
            passed(time - reached)
            reached = time
        return velocity(x)

    # SciPy rather than torchdiffeq: nothing here needs gradients or a GPU.
    solved = solve_ivp(
        field,
        (times[0], times[-1]),
        start,
        method="LSODA" if stiff else "DOP853",
        t_eval=times,
        rtol=RELATIVE,
        atol=ABSOLUTE,
    )
    if not solved.success:
        end = solved.t[-1] if len(solved.t) else times[0]
        raise UserError(f"the integration stopped at time {end:g}: {solved.message}")
    return solved.y.T


def split(starts: Floats, looks: int) -> list[Floats]:
    """Clouds, (trials, n, d), in parts whose cosines and positions, at each look, fit in memory."""
    trials, n, dim = starts.shape
    needed = max(trials * n * n / MOST_COSINES, trials * n * dim * looks / MOST_POSITIONS)
    return np.array_split(starts, min(trials, math.ceil(needed)))


def integrate(
    system: System,
    start: Floats,
    times: Floats,
    passed: Callable[[float], object] = lambda time: None,
) -> Floats:
    """The particles at each of the ascending times, the first of which is that of the start.

    Args:
        system: what moves them.
        start: unit vectors, (n, d), or independent clouds of them, (trials, n, d). The clouds share
            their time steps.
        times: (t,).
        passed: see `flow`.

    Returns:
        Unit vectors, (t, ...start's shape).

    Raises:
        UserError: see `refuse_fast`.
    """
    refuse_fast(system, times[-1] - times[0])

    def velocity(flat: Floats) -> Floats:
        x = flat.reshape(start.shape)
        return system.velocity(x / np.linalg.norm(x, axis=-1, keepdims=True)).ravel()

    # An explicit method: only USA is stiff, see MOST_STEPS.
    x = flow(velocity, start.ravel(), times, passed).reshape(len(times), *start.shape)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return x
