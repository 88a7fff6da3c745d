"""What several choices of `macaron-fairseq particles` make of the same parameters."""

from argparse import Namespace
from typing import Any

import numpy as np

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError

MOST_NUMBERS = 1 << 25  # that are kept of one cloud: 256 MiB


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
    numbers = particles * dim * looks
    if numbers > MOST_NUMBERS:
        raise UserError(
            f"{particles:,} particles in {dim:,} dimensions, {looks:,} times, are "
            f"{numbers:,} numbers: {hint}, until there are {MOST_NUMBERS:,} at most"
        )
