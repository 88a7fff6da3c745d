"""The error of one step, by step halving, and the exponent with which it falls.

The weights are frozen: with the step h times as long, a sub-layer is x + h a(x), a layer its
sub-layers in order, each so. The error that a step makes against the flow falls like h^(p+1) for a
method of order p. The difference of a whole step and two halves falls likewise. For short steps it
is 1 - 2^-p of the error: half of it for order 1, 3/4 for order 2, 15/16 for order 4.
"""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

# Errors relative to the state that are more than rounding.
RESOLVED_IN_FP32, RESOLVED_IN_FP64 = 1e-6, 1e-14

FITTED = 3


def halved(longest: float, times: int) -> list[float]:
    """That step, and so many that are half of the one before."""
    return [longest / 2**i for i in range(times + 1)]


def by_halving(
    advance: Callable[[Tensor, float], Tensor], x: Tensor, steps: Sequence[float]
) -> list[Tensor]:
    """|Phi_h(x) - Phi_{h/2}(Phi_{h/2}(x))| / |x| of each token, for h in `steps`.

    Args:
        advance: Phi, from a state and h to a state; with h = 0 it changes nothing.
        x: the state, (time, 1, channel).
        steps: each half of the one before.

    Returns:
        One tensor (time,) for each h.
    """
    after = {h: advance(x, h) for h in (*steps, steps[-1] / 2)}
    differences = [after[h] - advance(after[h / 2], h / 2) for h in steps]
    return [(d.norm(dim=-1) / x.norm(dim=-1))[:, 0] for d in differences]


def slope(steps: Sequence[float], errors: Sequence[float], resolved: float) -> float | None:
    """p of a fit error = c h^p to the three shortest steps whose errors are above `resolved`.

    None where fewer than three are.
    """
    pairs = [(h, e) for h, e in zip(steps, errors, strict=True) if e > resolved][-FITTED:]
    if len(pairs) < FITTED:
        return None
    h, e = np.log(pairs).T
    return float(np.polyfit(h, e, 1)[0])
