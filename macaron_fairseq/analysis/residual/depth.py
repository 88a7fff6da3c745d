"""Jacobians of whole layers and of their sub-layers at tokens, the identity included.

A layer turns the state x of a token into f(x), the LayerNorms of post-norm included. Its Jacobian
here is the token's own block: d f(x) / d x, d x d, with the other tokens held where they are. FFNs
and cross-attention have no other blocks. Under a causal mask a token cannot come back to itself
through others: the product of own blocks is the derivative of the whole stack. In an encoder it is
the part of that derivative which stays with the token.

All is computed in fp64, by a copy of the model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macaron_fairseq.analysis import jacobians, sampling, trajectories
from macaron_fairseq.analysis.by_layer import LAYER
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.residual.interventions import Place, Removal
from macaron_fairseq.analysis.sentences import Sentence
from macaron_fairseq.analysis.trajectories import Layer


@dataclass(frozen=True)
class AtToken:
    """A layer, or one of its sub-layers, at one token."""

    operator: str  # LAYER, or the sub-layer's
    title: str  # of a sub-layer with its step: "ffn 1/2"
    before: Tensor  # the token's state, (d,)
    after: Tensor
    jacobian: Tensor  # (d, d)


@dataclass(frozen=True)
class AtTokens:
    """A layer, or one of its sub-layers, at some tokens; arrays are fp64."""

    side: str  # ENCODER or DECODER
    layer: int  # from 1
    operator: str  # LAYER, or the sub-layer's
    title: str  # of a sub-layer with its step: "ffn 1/2"
    before: Floats  # the states of the tokens, (tokens, d)
    after: Floats  # the same, after it
    jacobians: Floats  # of each token's own block, identity included, (tokens, d, d)


@dataclass(frozen=True)
class Depth:
    """One layer at some tokens, and its sub-layers in order at the same tokens."""

    whole: AtTokens
    sublayers: tuple[AtTokens, ...]


Sides = Mapping[str, Sequence[Depth]]  # the layers of a model by side, from the first on


def along_depth(
    model: Any,
    sentences: Sequence[Sentence],
    tokens: int,
    seed: int,
    done: Callable[[], object] = lambda: None,
    removed: Mapping[Place, Removal] = MappingProxyType({}),
    has_sublayers: bool = True,
) -> dict[str, list[Depth]]:
    """All layers of a model at one token of each of some sentences, by side, from the first on.

    Nothing of the model enters the choice of tokens: all models have the same ones.

    Args:
        model: in fp64, see `models.in_double`.
        sentences: see `sentences.read`.
        tokens: at how many, in sentences evenly spread.
        seed: of which token of a sentence.
        done: called once for each token.
        removed: what the model is without as this runs, within `interventions.removing`.
        has_sublayers: whether those are wanted.

    Raises:
        UserError: if the model has layers that are not known, or the model has diverged.
    """
    at = sampling.evenly(len(sentences), tokens)
    found: dict[str, dict[int, list[list[AtToken]]]] = {}
    for i, places in zip(at, sampling.drawn_places(len(at), seed), strict=True):
        for layer in trajectories.run(model, sentences[i].source, sentences[i].target):
            token = int(places[layer.side] * len(layer.state))
            rows = at_token(layer, token, has_sublayers)
            if (layer.side, layer.number) in removed:
                rows[0] = without(rows[0], removed[layer.side, layer.number])
            found.setdefault(layer.side, {}).setdefault(layer.number, []).append(rows)
        done()
    return {
        side: [joined(side, number, rows) for number, rows in sorted(layers.items())]
        for side, layers in found.items()
    }


def joined(side: str, number: int, rows: Sequence[Sequence[AtToken]]) -> Depth:
    """A layer at several tokens from what it is at each."""
    whole, *sublayers = (
        AtTokens(
            side,
            number,
            of_tokens[0].operator,
            of_tokens[0].title,
            *(
                torch.stack([getattr(x, name) for x in of_tokens]).cpu().numpy()
                for name in ("before", "after", "jacobian")
            ),
        )
        for of_tokens in zip(*rows, strict=True)
    )
    return Depth(whole, tuple(sublayers))


def at_token(layer: Layer, token: int, has_sublayers: bool) -> list[AtToken]:
    """The layer at one token, then each sub-layer."""
    x = layer.state
    found = [
        AtToken(
            LAYER,
            LAYER,
            x[token, 0],
            layer.advance(x)[token, 0],
            jacobians.own_block(layer.advance, x, token),
        )
    ]
    for sublayer in layer.sublayers if has_sublayers else ():
        after = sublayer.advance(x)
        block = jacobians.own_block(sublayer.advance, x, token)
        title = sublayer.title
        found.append(AtToken(sublayer.operator, title, x[token, 0], after[token, 0], block))
        x = after
    return found


def without(whole: AtToken, removal: Removal) -> AtToken:
    """A layer at one token, without a part of it."""
    part = torch.from_numpy(removal.part).to(whole.before)
    away = part @ (whole.before - torch.from_numpy(removal.centre).to(whole.before))
    return replace(whole, after=whole.after - away, jacobian=whole.jacobian - part)


@torch.no_grad()
def states(model: Any, sentences: Sequence[Sentence]) -> dict[str, list[Floats]]:
    """The states of all tokens of all sentences, by side: before each layer, and after the last.

    That after the last is the one before the final LayerNorm of a pre-norm model.

    Args:
        model: in evaluation mode, in any precision.
        sentences: see `sentences.read`.

    Returns:
        For each side one array more than it has layers, each (all tokens, d), in fp64. Rows are in
        the order of the sentences, then of their tokens.
    """
    found: dict[str, list[list[Tensor]]] = {}
    for sentence in sentences:
        layers = trajectories.run(model, sentence.source, sentence.target)
        for side, of_side in trajectories.by_side(layers).items():
            last = of_side[-1]
            after = [*(layer.state for layer in of_side), last.advance(last.state)]
            rows = found.setdefault(side, [[] for _ in after])
            for row, state in zip(rows, after, strict=True):
                row.append(state[:, 0])
    return {
        side: [torch.cat(x).double().cpu().numpy() for x in rows] for side, rows in found.items()
    }


def cumulative(blocks: Floats) -> Floats:
    """The products J_l ... J_1 of Jacobians from the first layer to each.

    Args:
        blocks: J_1 first, (layers, ..., d, d).
    """
    found = [blocks[0]]
    for block in blocks[1:]:
        found.append(block @ found[-1])
    return np.stack(found)
