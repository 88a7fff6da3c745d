"""What several choices of `macaron-fairseq particles` make of the same parameters."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.particles import systems
from macaron_fairseq.analysis.particles.choices import NEURONS, STRENGTH
from macaron_fairseq.analysis.particles.systems import System
from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up

MOST_NUMBERS = 1 << 25  # in one array: 256 MiB


def times(args: Namespace) -> Floats:
    """--frames times from 0 to --time: (frames,)."""
    return np.linspace(0, args.time, args.frames)


def betas(args: Namespace) -> Floats:
    """--betas inverse temperatures from --beta-min to --beta-max: (betas,).

    Raises:
        UserError: if there is nothing between these two.
    """
    if args.beta_min >= args.beta_max:
        raise UserError(f"--beta-min {args.beta_min:g} is not below --beta-max {args.beta_max:g}")
    return np.linspace(args.beta_min, args.beta_max, args.betas)


def system(args: Namespace, beta: float) -> System:
    """The system that --system and the options of a perceptron say, at that beta.

    Raises:
        UserError: if they name none, or do not go together.
    """
    look_up(systems.SYSTEMS, args.system, "system", "--system")
    if args.perceptron is not None:
        look_up(systems.ACTIVATIONS, args.perceptron, "activation", "--perceptron")
    block = None
    own = [option for option in ("neurons", "strength", "weights") if getattr(args, option)]
    if args.perceptron is None:
        if own:
            raise UserError(f"--{own[0]} is of a perceptron: add --perceptron relu, gelu or tanh")
    elif args.weights is None:
        neurons, strength = args.neurons or NEURONS, args.strength or STRENGTH
        refuse_large(
            neurons * max(args.dim, args.particles), f"{neurons:,} neurons", "lower --neurons"
        )
        block = systems.random_perceptron(args.perceptron, neurons, args.dim, strength, args.seed)
    elif len(own) > 1:
        raise UserError(f"--weights holds all neurons and their strengths: leave out --{own[0]}")
    else:
        block = systems.read_perceptron(Path(args.weights), args.perceptron, args.dim)
    return System(args.system, float(beta), block)


def keep_parts(args: Namespace, **drawn: Any) -> None:
    """Begin to keep parts, or go on with those of the same settings.

    Args:
        args: the parameters, with `kept`, a `KeptParts`.
        drawn: what else the parts depend on, such as weights.

    Raises:
        UserError: see `KeptParts.begin`.
    """
    settings = {name: value for name, value in vars(args).items() if name != "kept"}
    args.kept.begin({**settings, **drawn, **environment.versions()})


def refuse_many(particles: int, dim: int, looks: int, hint: str) -> None:
    """Raise a `UserError` if so many particles at so many times need too much memory.

    Args:
        particles: how many there are.
        dim: in how many dimensions.
        looks: how many times, or starts, are in memory at once.
        hint: what to change, as the end of a sentence.
    """
    what = f"{particles:,} particles in {dim:,} dimensions, {looks:,} times,"
    refuse_large(particles * dim * looks, what, hint)


def refuse_large_phase(args: Namespace) -> None:
    """Raise a `UserError` if a phase diagram, or a cloud of it, needs too much memory."""
    refuse_many(args.particles, args.dim, args.trials, "lower --trials")
    refuse_many(args.particles, args.dim, args.frames, "lower --frames")
    points = f"{args.betas:,} betas at {args.frames:,} times"
    refuse_large(args.betas * args.frames, points, "lower --betas or --frames")


def refuse_large(numbers: int, what: str, hint: str) -> None:
    """Raise a `UserError` if an array would have too many numbers.

    Args:
        numbers: how many.
        what: they are, as the beginning of a sentence.
        hint: what to change, as its end.
    """
    if numbers > MOST_NUMBERS:
        raise UserError(
            f"{what} are {numbers:,} numbers: {hint}, until there are {MOST_NUMBERS:,} at most"
        )
