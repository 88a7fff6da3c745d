"""What is measured of orders: the errors of single steps, and the slope with which they fall."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from macaron_fairseq.analysis import local_error
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


def refuse_bad_names(
    scheme_names: Sequence[str] | None,
    substep_names: Sequence[str] | None,
    schemes: Mapping[str, Any],
    methods: Mapping[str, Any],
) -> None:
    """Raise a `UserError` if there is no scheme or no sub-step of a name, or one is named twice."""
    for named, flag in ((scheme_names, "--scheme"), (substep_names, "--substep")):
        if len({*(named or ())}) < len(named or ()):
            raise UserError(f"{flag} names one twice: name each once")
    for name in scheme_names or ():
        look_up(schemes, name, "splitting scheme", "--scheme")
    for name in substep_names or ():
        look_up(methods, name, "sub-step", "--substep")
