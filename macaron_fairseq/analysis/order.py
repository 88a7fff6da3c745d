"""The order of schemes and sub-steps, from the errors of single steps (`macaron-fairseq order`).

Here of toy systems, whose flow is known; of a trained model's layers see `trained_order`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from macaron_fairseq.analysis import local_error, toy_systems
from macaron_fairseq.analysis.progress import following
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up

Pair = tuple[str, str]  # names of a scheme and a sub-step


@dataclass(frozen=True)
class Result:
    """The errors of one scheme and sub-step on one side."""

    side: str
    scheme: str
    substep: str
    errors: list[float]  # one for each step size, the longest first
    slope: float | None
    layer: int | None = None  # from 1; None for all layers together, and for toy systems


@dataclass(frozen=True)
class Measured:
    """What was measured on what."""

    title: str
    about: dict[str, Any]  # for the JSON file
    steps: list[float]  # the longest first
    results: list[Result]

    def __post_init__(self) -> None:
        """Refuse errors that are not finite."""
        if not all(math.isfinite(error) for x in self.results for error in x.errors):
            raise UserError(
                f"the errors of steps of {self.steps[0]:g} are not finite: give a smaller --step"
            )

    @property
    def together(self) -> list[Result]:
        """Those of all layers of a side together."""
        return [x for x in self.results if x.layer is None]


def result(
    side: str, pair: Pair, steps: Sequence[float], errors: list[float], layer: int | None = None
) -> Result:
    """A result with its slope."""
    slope = local_error.slope(steps, errors, local_error.RESOLVED_IN_FP64)
    return Result(side, *pair, errors, None if slope is None else round(slope, 4), layer)


def of_toy_systems(
    scheme_names: Sequence[str] | None = None,
    substep_names: Sequence[str] | None = None,
    longest: float = 0.01,
    seed: int = 1,
) -> Measured:
    """The errors of these schemes with these sub-steps, of all where None is given.

    Args:
        scheme_names: of `toy_systems.methods`.
        substep_names: of `toy_systems.SUBSTEPS`.
        longest: the longest step; two more are each half of the one before.
        seed: of the systems' weights.

    Raises:
        UserError: if there is none of a name, or the errors are not finite.
    """
    known = toy_systems.methods("encoder")
    refuse_unknown(scheme_names, substep_names, known, toy_systems.SUBSTEPS)
    steps = local_error.halved(longest, times=2)
    wanted = list(product(scheme_names or known, substep_names or toy_systems.SUBSTEPS))
    results = [
        result(side, pair, steps, toy_systems.errors(side, *pair, steps, seed))
        for pair in following(wanted, "methods", len(wanted))
        for side in ("encoder", "decoder")
    ]
    return Measured("Local error on toy systems", {"seed": seed}, steps, results)


def refuse_unknown(
    scheme_names: Sequence[str] | None,
    substep_names: Sequence[str] | None,
    schemes: Mapping[str, Any],
    methods: Mapping[str, Any],
) -> None:
    """Raise a `UserError` if there is no scheme or no sub-step of a name."""
    for name in scheme_names or ():
        look_up(schemes, name, "splitting scheme", "--scheme")
    for name in substep_names or ():
        look_up(methods, name, "sub-step", "--substep")
