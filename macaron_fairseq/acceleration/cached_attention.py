"""Attention of each hypothesis' last token to the keys that a batch keeps."""

import torch
from torch import Tensor, nn

from macaron_fairseq.acceleration import compiled
from macaron_fairseq.acceleration.caches import Batch, Cache

# Scores of a head, in all sentences, up to which one thread takes less time than products by two.
FEW_SCORES = 2**13


def attend(
    projected: Tensor, batch: Batch, cache: Cache, scaling: float, dropout: nn.Module
) -> tuple[Tensor, Tensor]:
    """Attend to what the cache holds.

    Args:
        projected: the queries first, (sentence, beam, head, part, channel).
        batch: whose hypotheses these are.
        cache: the keys and values.
        scaling: of the queries.
        dropout: of the weights.

    Returns:
        The values' means, (sentence, beam, head, channel), and the weights, (sentence, beam, head,
        key), of which those of a target are in no promised order.
    """
    draws = bool(dropout.p) and (dropout.training or dropout.apply_during_inference)
    if scaling == 1 and not draws and is_for_loops(projected, batch, cache):
        return by_loops(projected, batch, cache)
    return by_products(projected, batch, cache, scaling, dropout)


def is_for_loops(projected: Tensor, batch: Batch, cache: Cache) -> bool:
    """Whether compiled loops are to attend, rather than two matrix products."""
    sentences, beam = projected.shape[:2]
    return (
        sentences * beam * cache.length * torch.get_num_threads() <= 2 * FEW_SCORES
        and projected.dtype == torch.float32
        and projected.device.type == "cpu"
        and (cache.is_static or batch.padding is None)
        and compiled.loops("attention") is not None
    )


def by_loops(projected: Tensor, batch: Batch, cache: Cache) -> tuple[Tensor, Tensor]:
    """Attend one hypothesis and head after the other."""
    loops = compiled.loops("attention")
    sentences, beam, heads, _, channels = projected.shape
    y = projected.new_empty(sentences, beam, heads, channels)
    weights = projected.new_empty(sentences, beam, heads, cache.length)
    query, result = projected.contiguous().numpy(), (weights.numpy(), y.numpy())
    keys, values = (x.numpy() for x in batch.memory(cache))
    if cache.is_static:
        mask = weights.new_zeros(sentences, cache.length) if cache.mask is None else cache.mask
        mask = mask.view(sentences, -1)
        loops.attend_to_source(query, keys[:, :, :, 0], values[:, :, :, 0], mask.numpy(), *result)
    else:
        loops.attend_to_own(query, keys, values, batch.own_slots().numpy(), *result)
    return y, weights


def by_products(
    projected: Tensor, batch: Batch, cache: Cache, scaling: float, dropout: nn.Module
) -> tuple[Tensor, Tensor]:
    """Attend in two products, to all slots of a sentence."""
    sentences, length = len(projected), cache.length
    query = projected[..., 0, :].transpose(1, 2).flatten(0, 1)  # (sentence * head, beam, channel)
    keys, values = (x[:, :, :length].flatten(2, 3).flatten(0, 1) for x in batch.memory(cache))
    query = query if scaling == 1 else query * scaling
    # For so few queries two products are faster than the fused kernel.
    scores = torch.bmm(query, keys.transpose(1, 2)).unflatten(0, (sentences, -1))
    mask = batch.mask(cache)
    weights = (scores if mask is None else scores.add_(mask)).softmax(-1)
    y = torch.bmm(dropout(weights).flatten(0, 1), values).unflatten(0, (sentences, -1))
    return y.transpose(1, 2), weights.transpose(1, 2)
