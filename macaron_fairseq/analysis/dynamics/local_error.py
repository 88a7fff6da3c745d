"""Local error by step halving: how far one step is from two steps of half the length.

The weights are frozen: with the step h times as long, a sub-layer is x + h a(x), a layer its
sub-layers in order, each so. What two halves and a whole differ in is, up to a factor, the error
that the step makes against the flow, and falls like h^2 for a method of order 1.
"""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

STEPS = (1.0, 0.5, 0.25)

# Smaller errors are mostly those of fp32.
RESOLVED = 1e-6


def local_errors(
    advance: Callable[[Tensor, float], Tensor], x: Tensor, steps: Sequence[float] = STEPS
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


def slope(errors: Sequence[float]) -> float | None:
    """The exponent p of a fit error = c h^p over `STEPS`; None if an error is not resolved."""
    if not all(error > RESOLVED for error in errors):
        return None
    return float(np.polyfit(np.log(STEPS), np.log(errors), 1)[0])
