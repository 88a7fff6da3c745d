"""How much the last token of a sentence attends to each, in the layers of a model.

fairseq's layers do not tell the weights of self-attention. What an attention reads is kept during a
pass; the weights of one query are little to compute afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from macaron_fairseq.distillation.layers import SIDES, layers_of


class Attended:
    """What the self-attentions of each side read in one pass; the last evaluation counts."""

    def __init__(self) -> None:
        self.found: dict[str, dict[int, tuple[Any, Tensor]]] = {side: {} for side in SIDES}

    def weights(self, side: str, number: int, mask: Tensor) -> Tensor:
        """How much the last token attends to each in a layer, counted from 1; without gradient.

        Args:
            side: of the model.
            number: of the layer.
            mask: true for tokens, false for padding, (batch, length).

        Returns:
            (batch, length), of which a sentence's sum to 1, and 0 at padding.

        Raises:
            KeyError: if the layer did not run; `layers.refuse_layer_dropout` refuses what lets it.
        """
        network, states = self.found[side][number]
        return of_last_token(network, states.transpose(0, 1), mask)


def of_last_token(network: Any, states: Tensor, mask: Tensor) -> Tensor:
    """The mean over heads of the last token's attention, without dropout and gradient.

    Args:
        network: fairseq's multi-head attention.
        states: what it reads as queries and keys, (batch, length, dim).
        mask: true for tokens, false for padding on either side, (batch, length).

    Returns:
        (batch, length), of which a sentence's sum to 1.
    """
    with torch.no_grad():
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
def attended(model: nn.Module) -> Iterator[Attended]:
    """Keep what the self-attentions of a model's passes read; the last pass counts."""
    kept = Attended()

    def keep(side: str, number: int, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        query = kwargs["query"] if "query" in kwargs else args[0]
        kept.found[side][number] = module, query.detach()

    hooks = [
        layer.self_attn.register_forward_pre_hook(partial(keep, side, number), with_kwargs=True)
        for side, layers in layers_of(model).items()
        for number, layer in enumerate(layers, 1)
    ]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
