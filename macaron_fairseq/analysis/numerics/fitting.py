"""Errors, and the exponent with which they fall as steps get shorter."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDING = 1e-14  # of errors relative to the state, in fp64
FITTED = 3


@dataclass(frozen=True)
class Result:
    """The errors of one scheme and sub-step on one side."""

    side: str
    scheme: str
    substep: str
    errors: list[float]  # one for each step size, the longest first
    slope: float | None
    layer: int | None = None  # from 1; None for all layers together, and for toy systems


def result(
    side: str,
    scheme: str,
    substep: str,
    steps: Sequence[float],
    errors: list[float],
    layer: int | None = None,
) -> Result:
    """A result with its slope."""
    return Result(side, scheme, substep, errors, slope(steps, errors), layer)


def slope(steps: Sequence[float], errors: Sequence[float]) -> float | None:
    """p of a fit error = c h^p to the three shortest steps whose errors are more than rounding.

    None where fewer than three are.
    """
    pairs = [(h, e) for h, e in zip(steps, errors, strict=True) if e > ROUNDING][-FITTED:]
    if len(pairs) < FITTED:
        return None
    h, e = np.log(pairs).T
    return round(float(np.polyfit(h, e, 1)[0]), 4)
