"""Where a sentence's tokens are and how far each sub-layer moves them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from macaron_fairseq.analysis.dynamics.operators import Layer, Sublayer

RADIAN = 180 / torch.pi


@dataclass(frozen=True)
class Move:
    """One sub-layer, or one layer, at work on a sentence: all are (tokens, channel)."""

    before: Tensor
    added: Tensor  # in post-norm before the LayerNorm
    after: Tensor


def moves(layer: Layer) -> Iterator[tuple[Sublayer, Move]]:
    """What each sub-layer of the layer does, in order."""
    x = layer.state
    for sublayer in layer.sublayers:
        added = sublayer.increment(x)
        after = sublayer.advance(x)
        yield sublayer, Move(x[:, 0], added[:, 0], after[:, 0])
        x = after


def step_figures(move: Move) -> dict[str, Tensor]:
    """How far a sub-layer moves each token; each is (tokens,).

    Returns:
        step: |a| / |x|, what is added relative to the state.
        step_cosine: the cosine of a and x: 1 lengthens, 0 turns, -1 shortens.
        velocity: |P a| / |x|, with P the projection to the tangent space at x: the speed of x/|x|
            on the unit sphere, in radians per sub-layer.
        turn: the angle between the states before and after, in degrees, post-norm LayerNorms
            included.
    """
    x, a = move.before.double(), move.added.double()
    length = x.norm(dim=-1)
    direction = x / length[:, None]
    tangential = a - (a * direction).sum(-1, keepdim=True) * direction
    # The arc sine of half the chord is exact where the arc cosine is not, at small angles.
    after = move.after.double()
    chord = (after / after.norm(dim=-1, keepdim=True) - direction).norm(dim=-1)
    return {
        "step": a.norm(dim=-1) / length,
        "step_cosine": cosine_similarity(a, x, dim=-1),
        "velocity": tangential.norm(dim=-1) / length,
        "turn": 2 * RADIAN * torch.asin((chord / 2).clamp(max=1)),
    }
