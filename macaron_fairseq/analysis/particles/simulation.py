"""Where particles start, and how they move on."""

import numpy as np
from scipy.integrate import solve_ivp
from tqdm import tqdm

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles.systems import System, equiangular_rate
from macaron_fairseq.common.errors import UserError

# Of the adaptive steps, for each coordinate; it is of the order of 1.
RELATIVE, ABSOLUTE = 1e-8, 1e-10

# An explicit method takes about as many steps as the fastest rate times the time; beyond it, hours.
MOST_STEPS = 1e5


def random_start(n: int, dim: int, seed: int, trials: int | None = None) -> Floats:
    """Particles that are independent and uniform on the sphere: ([trials,] n, dim)."""
    shape = (n, dim) if trials is None else (trials, n, dim)
    x: Floats = np.random.default_rng(seed).normal(size=shape)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return x


def equiangular_start(n: int, rho: float) -> Floats:
    """n particles in n dimensions whose cosines all are rho, in (-1 / (n - 1), 1): (n, n).

    More dimensions would change nothing: particles stay in the span of their start.
    """
    return np.asarray(np.linalg.cholesky((1 - rho) * np.eye(n) + rho), dtype=np.float64)


def refuse_fast(system: System, duration: float) -> None:
    """Raise a `UserError` if no reasonable number of steps is enough for that time."""
    if system.rate * duration > MOST_STEPS:
        other = " or --strength" if system.perceptron else ""
        if system.name == "usa":
            other += ", or --beta (--beta-max), since the rate of usa is e^beta"
        raise UserError(
            f"a rate of {system.rate:.3g} over a time of {duration:g} needs too many steps: lower "
            f"--time{other}, until rate times time is below {MOST_STEPS:,.0f}"
        )


def integrate(system: System, start: Floats, times: Floats, bar: tqdm | None = None) -> Floats:
    """The particles at each of the ascending times, the first of which is that of the start.

    Args:
        system: what moves them.
        start: unit vectors, (n, d), or independent clouds of them, (trials, n, d). The clouds share
            their time steps.
        times: (t,).
        bar: is kept at the time that was reached.

    Returns:
        Unit vectors, (t, ...start's shape).

    Raises:
        UserError: see `refuse_fast`.
    """
    refuse_fast(system, times[-1] - times[0])

    def field(time: float, flat: Floats) -> Floats:
        if bar is not None and time > bar.n:
            bar.update(time - bar.n)
        x = flat.reshape(start.shape)
        return system.velocity(x / np.linalg.norm(x, axis=-1, keepdims=True)).ravel()

    # SciPy rather than torchdiffeq: nothing here needs gradients or a GPU, and SciPy is there for
    # the clusters anyway. An explicit method: only USA is stiff, see MOST_STEPS.
    solved = solve_ivp(
        field,
        (times[0], times[-1]),
        start.ravel(),
        method="DOP853",
        t_eval=times,
        rtol=RELATIVE,
        atol=ABSOLUTE,
    )
    if not solved.success:
        raise UserError(f"the integration stopped at time {solved.t[-1]:g}: {solved.message}")
    x = solved.y.T.reshape(len(times), *start.shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def equiangular_curve(rho: float, beta: float, n: int, name: str, times: Floats) -> Floats:
    """The common cosine of n particles by its own differential equation, from rho: (t,).

    Raises:
        UserError: if SciPy gives up.
    """
    solved = solve_ivp(
        lambda _, value: equiangular_rate(value, beta, n, name),
        (times[0], times[-1]),
        [rho],
        method="LSODA",  # stiff where USA has arrived
        t_eval=times,
        rtol=RELATIVE,
        atol=ABSOLUTE,
    )
    if not solved.success:
        raise UserError(f"the equation could not be solved: {solved.message}")
    return solved.y[0]
