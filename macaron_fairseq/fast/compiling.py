"""`--macaron-compile`: in training PyTorch compiles a layer's steps, forward and backward.

What stands between two matrix products, as dropout, the residual sum and LayerNorm, then becomes
one kernel. Lengths and the number of sentences are variables of the compiled code. So it is
compiled for each kind of batch, not for each shape. Kinds are: with padding in the source or
without, several sentences or one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

BACKEND: Any = "inductor"


@cache
def compiled(forward: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    """A layer's `forward`, compiled at its first calls; layers of one class share the code."""
    return torch.compile(forward, dynamic=True, backend=backend)
