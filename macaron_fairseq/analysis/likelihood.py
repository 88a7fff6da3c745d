"""How well a model of any kind predicts a sample: bits per token."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from macaron_fairseq.analysis.sentences import Data, Sentence
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model.released_bert import MASK

COPIES = 32  # of a sentence, with one token masked in each, in one batch


def bits_per_token(model: Any, sentences: Iterable[Sentence], data: Data) -> float:
    """The mean of -log2 p of the tokens to predict, each sentence's end among them.

    A translation model and a causal language model predict each token from those before it. A
    masked one predicts each from all others, one masked at a time, without <s> and </s>: the
    pseudo-likelihood of Salazar et al. 2020.

    Args:
        model: in evaluation mode.
        sentences: see `sentences.read`; those of a translation model have targets.
        data: of the model.

    Raises:
        UserError: if a masked language model's dictionary has no mask.
    """
    with torch.no_grad():
        found = [log_likelihood(model, sentence, data) for sentence in sentences]
    return -torch.cat(found).double().mean().item() / math.log(2)


def log_likelihood(model: Any, sentence: Sentence, data: Data) -> Tensor:
    """ln p of each token to predict, (tokens,)."""
    if data.target is not None:
        return translated(model, sentence)
    return (causal if data.is_causal else masked)(model, sentence.source, data)


def translated(model: Any, sentence: Sentence) -> Tensor:
    """ln p of each token that an encoder-decoder's decoder is to predict, and of the end."""
    assert sentence.target is not None
    device = next(model.parameters()).device
    source, target = sentence.source.to(device), sentence.target.to(device)
    output = model(source[None], torch.tensor([len(source)], device=device), target[None])
    return of_next(model, output, target)


def causal(model: Any, source: Tensor, data: Data) -> Tensor:
    """ln p of each token after the first, then of the end."""
    source = source.to(next(model.parameters()).device)
    return of_next(model, model(source[None]), source)


def of_next(model: Any, output: Any, read: Tensor) -> Tensor:
    """ln p of what follows each token that a decoder has read; the end stands at the beginning.

    Args:
        model: with a decoder.
        output: what it gives for these tokens.
        read: the tokens, (time,).
    """
    if getattr(model.decoder, "adaptive_softmax", None):  # what comes out are features
        log_p = model.get_normalized_probs(output, log_probs=True)
    else:
        log_p = output[0].double().log_softmax(-1)  # fairseq's own rounds to fp32
    return log_p[0].gather(1, read.roll(-1)[:, None])[:, 0]


def masked(model: Any, source: Tensor, data: Data) -> Tensor:
    """ln p of each token but the first and the last, when it alone is masked."""
    if MASK not in data.source:
        raise UserError(f"the dictionary in {data.folder} has no {MASK}, which the loss needs")
    source = source.to(next(model.parameters()).device)
    found = []
    for places in torch.arange(1, len(source) - 1, device=source.device).split(COPIES):
        rows = torch.arange(len(places), device=source.device)
        batch = source.repeat(len(places), 1)
        batch[rows, places] = data.source.index(MASK)
        is_hidden = torch.zeros_like(batch, dtype=torch.bool)
        is_hidden[rows, places] = True
        # Of these alone, in the order of the rows: the output layer is the largest.
        log_p = model(batch, masked_tokens=is_hidden)[0].double().log_softmax(-1)
        found.append(log_p[rows, source[places]])
    return torch.cat(found)
