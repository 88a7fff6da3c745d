"""The choices of `macaron-fairseq particles`: from its arguments to its files."""

from argparse import Namespace
from typing import Any

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import (
    experiments,
    perceptron,
    pictures,
    simulation,
    systems,
    writing,
)
from macaron_fairseq.analysis.particles.systems import System
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up


def trajectories(args: Namespace) -> None:
    """Follow one cloud of particles."""
    system = _system(args, args.beta)
    start = simulation.random_start(args.particles, args.dim, args.seed)
    result = experiments.trajectories(system, start, _times(args), args.cosine)
    picture = pictures.trajectories(result, _title(args, args.dim, args.beta), args.cosine)
    _write(args, result, picture, system)
    print(f"clusters at time 0 and {args.time:g}: {result.clusters[0]} and {result.clusters[-1]}")


def histograms(args: Namespace) -> None:
    """Count cosines over time."""
    shown = args.shown or [args.time * part for part in (0, 1 / 8, 1 / 4, 1 / 2, 1)]
    if max(shown) > args.time:
        raise UserError(f"--shown {max(shown):g} is after the end: raise --time {args.time:g}")
    system = _system(args, args.beta)
    start = simulation.random_start(args.particles, args.dim, args.seed)
    result = experiments.histograms(system, start, _times(args), args.cosine)
    picture = pictures.histograms(result, _title(args, args.dim, args.beta), shown)
    _write(args, result, picture, system)
    print(f"clusters at time 0 and {args.time:g}: {result.clusters[0]} and {result.clusters[-1]}")


def phase(args: Namespace) -> None:
    """Draw the phase diagram."""
    betas = _betas(args)
    system = _system(args, betas[-1])
    starts = simulation.random_start(args.particles, args.dim, args.seed, args.trials)
    result = experiments.phase(system, starts, _times(args), betas, args.cosine)
    title = _title(args, args.dim, trials=args.trials)
    _write(args, result, pictures.phase(result, title, args.cosine), system)
    for row in (0, -1):
        share = result.all_pairs[row, -1]
        print(f"beta {betas[row]:g}: {share:.0%} of the trials in a point at time {args.time:g}")


def equiangular(args: Namespace) -> None:
    """Set particles of equal cosines beside the equation of the cosine."""
    look_up(systems.SYSTEMS, args.system, "system", "--system")
    if args.system == "none":
        raise UserError("without attention the cosines stay as they are: take --system sa or usa")
    lowest = -1 / (args.particles - 1)
    if not lowest < args.rho < 1:
        raise UserError(
            f"{args.particles} particles cannot all have the cosine --rho {args.rho:g}: choose one "
            f"above {lowest:.4g} and below 1"
        )
    result = experiments.equiangular(args.system, args.particles, args.rho, _times(args), args.beta)
    _write(args, result, pictures.equiangular(result, _title(args, args.particles)))
    for beta, difference in zip(args.beta, result.difference, strict=True):
        print(f"beta {beta:g}: particles and equation differ by {difference:.1e} at most")


def landscape(args: Namespace) -> None:
    """Let particles on the circle go, at each beta."""
    betas = _betas(args)
    system = _system(args, betas[-1])
    if system.perceptron is None or system.perceptron.s is None:
        raise UserError('a landscape needs weights in gradient form, "a" and "s": see --help')
    start = simulation.random_start(args.particles, args.dim, args.seed)
    result = experiments.landscape(system, start, args.time, betas, args.cosine)
    _write(args, result, pictures.landscape(result, _title(args, args.dim)), system)
    for row in (0, -1):
        print(f"beta {betas[row]:g}: clusters at time {args.time:g}: {result.clusters[row]}")


def _system(args: Namespace, beta: float) -> System:
    look_up(systems.SYSTEMS, args.system, "system", "--system")
    if args.perceptron is not None:
        look_up(perceptron.ACTIVATIONS, args.perceptron, "activation", "--perceptron")
    block = None
    own = [option for option in ("neurons", "strength", "weights") if getattr(args, option)]
    if args.perceptron is None:
        if own:
            raise UserError(f"--{own[0]} is of a perceptron: add --perceptron relu, gelu or tanh")
    elif args.weights is None:
        neurons, strength = args.neurons or 4, args.strength or 1.0
        block = perceptron.random(args.perceptron, neurons, args.dim, strength, args.seed)
    elif len(own) > 1:
        raise UserError(f"--weights holds all neurons and their strengths: leave out --{own[0]}")
    else:
        block = perceptron.read(args.weights, args.perceptron, args.dim)
    return System(args.system, float(beta), block)


def _times(args: Namespace) -> Floats:
    return np.linspace(0, args.time, args.frames)


def _betas(args: Namespace) -> Floats:
    if args.beta_min >= args.beta_max:
        raise UserError(f"--beta-min {args.beta_min:g} is not below --beta-max {args.beta_max:g}")
    return np.linspace(args.beta_min, args.beta_max, args.betas)


def _title(args: Namespace, dim: int, beta: float | None = None, trials: int = 1) -> str:
    names = {"sa": "SA", "usa": "USA", "none": "no attention"}
    parts = [names[args.system], f"{args.particles} particles", f"d = {dim}"]
    if beta is not None and args.system != "none":
        parts.append(f"β = {beta:g}")
    if getattr(args, "perceptron", None):
        parts.append(f"{args.perceptron} perceptron")
    if trials > 1:
        parts.append(f"{trials} trials")
    return ", ".join(parts)


def _write(args: Namespace, result: Any, picture: bytes, system: System | None = None) -> None:
    parameters = {k: v for k, v in vars(args).items() if k not in ("run", "choice", "output")}
    block = system.perceptron if system else None
    writing.write(args.output, args.choice, parameters, block, result, picture)
    print(f"wrote {args.output / args.choice}.json and {args.choice}.png")
