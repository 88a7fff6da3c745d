"""How much the last token of a sentence attends to each, in the layers of a model.

fairseq's layers do not tell the weights of self-attention. Those of one query are little to compute
from what an attention reads.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from macaron_fairseq.distillation.layers import Place, layers_of
from macaron_fairseq.distillation.teachers import undisturbed


def of_last_token(network: Any, states: Tensor, mask: Tensor) -> Tensor:
    """The mean over heads of the last token's attention, without dropout and gradient.

    Args:
        network: fairseq's multi-head attention.
        states: what it reads as queries and keys, (batch, length, dim).
        mask: true for tokens, false for padding on either side, (batch, length).

    Returns:
        (batch, length), of which a sentence's sum to 1, and 0 at padding.
    """
    with undisturbed(states.device):
        places = torch.arange(mask.shape[1], device=mask.device)
        last = (mask * places).amax(1)
        dtype = torch.promote_types(states.dtype, torch.float32)
        # Under autocast the stream's precision need not be that of the weights.
        states = states.to(network.q_proj.weight.dtype)
        query = states[torch.arange(len(states), device=states.device), last]
        heads = network.num_heads, -1
        q = (network.q_proj(query) * network.scaling).unflatten(-1, heads)
        k = network.k_proj(states).unflatten(-1, heads)
        scores = torch.einsum("bhd,blhd->bhl", q, k).to(dtype)
        hidden = ~mask.bool().unsqueeze(1)
        scores = scores.masked_fill(hidden, torch.finfo(dtype).min)
        return scores.softmax(2).mean(1) * mask


@contextmanager
def attended(
    model: nn.Module, places: Collection[Place], masks: Mapping[str, Tensor]
) -> Iterator[dict[Place, Tensor]]:
    """Keep `of_last_token` in some layers of a model's passes; the last evaluation counts.

    Args:
        model: with self-attention in these layers.
        places: the layers.
        masks: of what each side reads, see `of_last_token`.
    """
    kept: dict[Place, Tensor] = {}

    def keep(place: Place, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        query = kwargs["query"] if "query" in kwargs else args[0]
        kept[place] = of_last_token(module, query.transpose(0, 1), masks[place[0]])

    sides = layers_of(model)
    hooks = [
        sides[side][number - 1].self_attn.register_forward_pre_hook(
            partial(keep, (side, number)), with_kwargs=True
        )
        for side, number in places
    ]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
