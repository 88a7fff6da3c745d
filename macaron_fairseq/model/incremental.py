"""Decoding token by token: where attention keeps the keys and values of earlier tokens.

fairseq's attention knows one evaluation in a layer. Schemes and sub-steps evaluate self-attention
several times, and each evaluation needs its own keys and values.
"""

from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

IncrementalState = dict[str, Any]  # what fairseq keeps of a batch between two tokens

EVALUATIONS = "evaluations"


class Evaluations(nn.Module):
    """What reorders a layer's keys and values, but those of first evaluations, which are fairseq's.

    fairseq's decoder asks each module that can do so. The layer itself cannot: a wrapper would hand
    on its method, and both would do it. This module has no parameters.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = (layer,)  # in a tuple it is no child of this one

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Make row i what row `new_order[i]` was."""
        for state in incremental_state.get(EVALUATIONS, {}).values():
            for module in self.layer[0].modules():
                if isinstance(module, MultiheadAttention):
                    module.reorder_incremental_state(state, new_order)


def states_of_evaluations(incremental_state: IncrementalState) -> list[IncrementalState]:
    """The states of all evaluations so far."""
    return [incremental_state, *incremental_state.get(EVALUATIONS, {}).values()]


def has_cache(attention: Any, incremental_state: IncrementalState | None) -> bool:
    """Whether fairseq's attention has kept keys and values of earlier tokens in that state."""
    if incremental_state is None:
        return False
    return "prev_key" in (attention._get_input_buffer(incremental_state) or {})


def prepend_source(
    y: Tensor,
    encoder_out: Any,
    encoder_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    padding_mask: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The keys and masks of `--cross-self-attention`: the source, seen by all, then the target."""
    source_len, batch, _ = encoder_out.shape
    if attn_mask is not None:
        attn_mask = torch.cat((attn_mask.new_zeros(len(y), source_len), attn_mask), dim=1)
    if padding_mask is not None:
        if encoder_padding_mask is None:
            encoder_padding_mask = padding_mask.new_zeros(batch, source_len)
        padding_mask = torch.cat((encoder_padding_mask, padding_mask), dim=1)
    return torch.cat((encoder_out, y), dim=0), attn_mask, padding_mask
