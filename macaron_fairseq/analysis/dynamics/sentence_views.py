"""Single sentences as models see them: which tokens come close, and which attend to which.

A `View` is of one model on one sentence. Nothing is averaged, unlike in `measurement`.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary

from macaron_fairseq.analysis import measures, sampling, trajectories
from macaron_fairseq.analysis.anatomy import ENCODER
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.sentences import Data, Sentence
from macaron_fairseq.analysis.trajectories import Layer
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN
from macaron_fairseq.text.marks import remove_bpe

READABLE = 32  # tokens on the axes of a picture
LETTERS = 80  # of a sentence in a list
LARGEST = 128  # tokens: the attentions of more would make a page of many megabytes


@dataclass(frozen=True)
class Attention:
    """One attention of one layer."""

    kind: str  # SELF_ATTENTION or CROSS_ATTENTION
    layer: int  # from 1
    occurrence: int  # of its kind in the layer, from 1
    keys: list[str]  # the tokens that are attended to
    weights: Floats  # (heads, tokens, keys); each row sums to one


@dataclass(frozen=True)
class SideView:
    """A sentence in the encoder or the decoder."""

    side: str
    tokens: list[str]
    cosines: Floats  # (layers + 1, tokens, tokens): before the first layer, and after each
    attentions: list[Attention]  # in the order in which they are applied


@dataclass(frozen=True)
class View:
    """A sentence in one model."""

    number: int  # in its file, from 1
    sides: list[SideView]


@torch.no_grad()
def look(model: Any, sentence: Sentence, data: Data) -> View:
    """How a model sees a sentence.

    Args:
        model: in evaluation mode.
        sentence: see `sentences.read`.
        data: whose dictionaries name the tokens.

    Raises:
        UserError: see `trajectories.run`.
    """
    layers = trajectories.run(model, sentence.source, sentence.target)
    source = words(data.source, sentence.source)
    sides = []
    for name, of_side in trajectories.by_side(layers).items():
        tokens = tokens_of(name, sentence, data)
        states = [*(layer.state for layer in of_side), of_side[-1].advance(of_side[-1].state)]
        cosines = np.stack([all_cosines(x[:, 0].double().cpu().numpy()) for x in states])
        attentions = [x for layer in of_side for x in attentions_of(layer, tokens, source)]
        sides.append(SideView(name, tokens, cosines, attentions))
    return View(sentence.number, sides)


def tokens_of(side: str, sentence: Sentence, data: Data) -> list[str]:
    """The tokens of a sentence in the encoder or the decoder."""
    if side != ENCODER and sentence.target is not None and data.target is not None:
        return words(data.target, sentence.target)
    return words(data.source, sentence.source)


def words(dictionary: Dictionary, tokens: Any) -> list[str]:
    """The tokens as the dictionary names them, fairseq's own symbols included."""
    return [dictionary[token] for token in tokens.tolist()]


def title(tokens: Sequence[str]) -> str:
    """The words of a sentence, or its beginning; its end is left out."""
    (text,) = remove_bpe([" ".join(token for token in tokens if token != "</s>")])
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def all_cosines(x: Floats) -> Floats:
    """The cosines of all tokens with all, (tokens, tokens), for states (tokens, channel)."""
    return measures.gram(x) if len(x) > 1 else np.ones((1, 1))


def attentions_of(
    layer: Layer, tokens: Sequence[str], source: Sequence[str]
) -> Iterator[Attention]:
    """The attentions of a layer, in order.

    With sub-steps that evaluate an attention several times, it is the first time: in the state
    before the step.
    """
    x = layer.state
    seen: Counter[str] = Counter()
    for sublayer in layer.sublayers:
        for operator in sublayer.operators:
            if operator.kind == FFN:
                continue
            seen[operator.kind] += 1
            weights = layer.attention(operator, x).double().cpu().numpy()
            keys = [*tokens]
            if operator.kind == CROSS_ATTENTION:
                keys = [*source]
            elif weights.shape[-1] > len(tokens):  # --cross-self-attention
                keys = [*source, *tokens]
            yield Attention(operator.kind, layer.number, seen[operator.kind], keys, weights)
        x = sublayer.advance(x)


def readable(found: Sequence[Sequence[Sentence]], wanted: int, most: float = math.inf) -> list[int]:
    """Which sentences to show: evenly spread over those that a picture can hold.

    Those have at most `READABLE` tokens on each side. Where there is none, the shortest are shown,
    but none of more than `most` tokens.

    Args:
        found: the sentences as each model reads them; targets may be its own translations.
        wanted: how many to show.
        most: see above.
    """
    lengths = [max(x.length for x in of_models) for of_models in zip(*found, strict=True)]
    order = [i for i, length in enumerate(lengths) if length <= READABLE]
    if not order:
        shortest = sorted(range(len(lengths)), key=lengths.__getitem__)[:wanted]
        order = sorted(i for i in shortest if lengths[i] <= most)
    return [order[i] for i in sampling.evenly(len(order), wanted)]
