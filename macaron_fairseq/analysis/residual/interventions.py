"""What a model loses if a part of a layer's Jacobian is removed.

A layer f is not linear, so that its Jacobian cannot be replaced. What is removed is linear: instead
of y = f(x) the layer gives

    y' = f(x) - N (x - x0)

for each token. M is the mean of the tokens' own Jacobians, N a part of M, and x0 the mean state
before the layer. Each token's Jacobian A becomes A - N, and the mean state stays where it is in
first order. Of a linear layer, exactly the part N is removed. All M and x0 are those of the model
before anything is removed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch
from scipy.linalg import schur
from torch import Tensor

from macaron_fairseq.analysis import anatomy
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import listed

Place = tuple[str, int]  # side, and layer from 1


@dataclass(frozen=True)
class Removal:
    """What a layer is to do without."""

    part: Floats  # N, (d, d)
    centre: Floats  # x0, (d,)


def non_normal(matrix: Floats) -> Floats:
    """The part N of a matrix M without which it is normal, with the same eigenvalues.

    With the real Schur form M = Q T Q^T, N is Q U Q^T. U holds what T has above its diagonal
    blocks. Of a block of 2 x 2, [[a, b], [c, a]], only [[a, w], [-w, a]] is left. The eigenvalues
    stay the same by w^2 = -b c.

    The Schur form, and with it N, depends on the order of the eigenvalues: here it is LAPACK's. The
    norm of what is above the blocks does not tell how much of it another order would show.
    """
    t, q = schur(matrix, output="real")
    kept = np.diag(np.diag(t))
    for i in np.flatnonzero(np.diag(t, -1)):
        b, c = t[i, i + 1], t[i + 1, i]
        w = np.sign(b) * np.sqrt(-b * c)
        kept[i, i + 1], kept[i + 1, i] = w, -w
    return q @ (t - kept) @ q.T


def antisymmetric(matrix: Floats) -> Floats:
    """(M - M^T) / 2: without it the matrix is its symmetric part."""
    return (matrix - matrix.T) / 2


def reach(part: Floats, states: Floats) -> float:
    """How far a part N moves states (tokens, d): |N (x - x0)| over all tokens together."""
    return float(np.linalg.norm((states - states.mean(axis=0)) @ part.T))


def control(part: Floats, states: Floats, seed: int | Sequence[int]) -> Floats:
    """N turned round at random, and made to move the states as far as N does.

    As large a map of random directions moves them less: they lie where the layer's own map acts.
    """
    turned = rotated(part, seed)
    far = reach(turned, states)
    return turned * (reach(part, states) / far if far else 0.0)


def equally_far(part: Floats, other: Floats, states: Floats) -> tuple[Floats, Floats]:
    """Both parts; the one that moves the states farther is made smaller until it does not."""
    far = reach(part, states), reach(other, states)
    shares = [min(far) / x if x else 0.0 for x in far]
    return part * shares[0], other * shares[1]


def rotated(part: Floats, seed: int | Sequence[int] = 1) -> Floats:
    """Q N Q^T with a random rotation Q."""
    draws = np.random.default_rng(seed).normal(size=part.shape)
    q, r = np.linalg.qr(draws)
    q = q * np.sign(np.diag(r))  # uniform: Mezzadri 2007
    return q @ part @ q.T


# By name, from the mean Jacobian M.
PARTS: dict[str, Callable[[Floats], Floats]] = {
    "non-normal": non_normal,
    "antisymmetric": antisymmetric,
}


@contextmanager
def removing(model: Any, removals: Mapping[Place, Removal]) -> Iterator[None]:
    """The model does without these parts as long as the context lasts.

    Args:
        model: in evaluation mode; its layers run in order, all of a side once in each pass.
        removals: by side and layer.
    """
    with ExitStack() as stack:
        for side, name in anatomy.stacks(model).items():
            of_side = {number: x for (where, number), x in removals.items() if where == side}
            if of_side:
                layers = list(model.get_submodule(name))
                hook = corrector(of_side, len(layers), next(model.parameters()))
                for layer in set(layers):  # one module can be several layers
                    handle = layer.register_forward_hook(hook, with_kwargs=True)
                    stack.callback(handle.remove)
        yield


def corrector(removals: Mapping[int, Removal], layers: int, like: Tensor) -> Callable[..., Any]:
    """A hook of all layers of a side that subtracts N (x - x0) from what those layers give."""
    numbers = cycle(range(1, layers + 1))
    on_device = {
        number: (torch.from_numpy(x.part).to(like), torch.from_numpy(x.centre).to(like))
        for number, x in removals.items()
    }

    def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        number = next(numbers)
        if number not in on_device:
            return output
        part, centre = on_device[number]
        x = args[0] if args else kwargs["x"]
        y, *others = output if isinstance(output, tuple) else (output,)
        y = y - (x - centre) @ part.T
        return (y, *others) if isinstance(output, tuple) else y

    return hook


def places(text: str, layers: Mapping[str, int]) -> tuple[Place, ...]:
    """Which layers a word names: a side, a layer as in encoder:2, or several with commas.

    Args:
        text: the word.
        layers: how many there are, by side.

    Raises:
        UserError: if there is no such layer.
    """
    found: list[Place] = []
    for word in text.split(","):
        side, colon, number = word.partition(":")
        if side not in layers:
            raise UserError(f"'{word}' names no layer: the models have {known(layers)}")
        if not colon:
            found += [(side, i) for i in range(1, layers[side] + 1)]
        elif number.isdecimal() and 1 <= int(number) <= layers[side]:
            found.append((side, int(number)))
        else:
            raise UserError(f"there is no layer '{word}': the models have {known(layers)}")
    return tuple(dict.fromkeys(found))


def known(layers: Mapping[str, int]) -> str:
    """The names of all layers."""
    return listed(f"{side}:1 to {side}:{n}" for side, n in layers.items())


def every(layers: Mapping[str, int]) -> list[tuple[Place, ...]]:
    """Each layer by itself, then all of each side."""
    alone = [((side, i),) for side, n in layers.items() for i in range(1, n + 1)]
    return [*alone, *(places(side, layers) for side, n in layers.items() if n > 1)]
