"""Decoding token by token: where attention keeps the keys and values of earlier tokens.

fairseq's attention knows one evaluation in a layer. Schemes and sub-steps evaluate self-attention
several times, and each evaluation needs its own keys and values.
"""

from typing import Any

import torch
from torch import Tensor

IncrementalState = dict[str, Any]  # what fairseq keeps of a batch between two tokens

EVALUATIONS = "evaluations"


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
