"""The exponent with which errors fall as steps get shorter."""

from collections.abc import Sequence

import numpy as np

ROUNDING = 1e-14  # of errors relative to the state, in fp64
FITTED = 3


def slope(steps: Sequence[float], errors: Sequence[float]) -> float | None:
    """p of a fit error = c h^p to the three shortest steps whose errors are more than rounding.

    None where fewer than three are.
    """
    pairs = [(h, e) for h, e in zip(steps, errors, strict=True) if e > ROUNDING][-FITTED:]
    if len(pairs) < FITTED:
        return None
    h, e = np.log(pairs).T
    return round(float(np.polyfit(h, e, 1)[0]), 4)
