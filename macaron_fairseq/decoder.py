"""The decoder: fairseq's with layers that integrate a scheme, and with lasting buffers."""

from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor, nn

from macaron_fairseq import decoding
from macaron_fairseq.decoding import IncrementalState
from macaron_fairseq.layers import MacaronDecoderLayer, wrap_layer

NO_LAYER = -1
TYPES_CPU = 1024  # that are projected at a time: what a core's cache holds at 512 channels


class MacaronTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with Macaron layers."""

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """One layer, wrapped as fairseq wraps its own."""
        return wrap_layer(MacaronDecoderLayer(cfg, no_encoder_attn), cfg)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None = None,
        incremental_state: IncrementalState | None = None,
        features_only: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's output; in decoding, logits that last until the next step overwrites them."""
        args = prev_output_tokens, encoder_out, incremental_state
        if incremental_state is None or features_only or not self.is_plain():
            return super().forward(*args, features_only=features_only, **kwargs)
        features, extra = super().forward(*args, features_only=True, **kwargs)
        buffers = decoding.batch(incremental_state).buffers
        weight = self.output_projection.weight
        logits = buffers.get("logits", features, len(features), len(weight))
        block = TYPES_CPU if features.device.type == "cpu" else len(weight)
        for part, of_part in zip(weight.split(block), logits.split(block, 1), strict=True):
            torch.mm(features[:, -1], part.t(), out=of_part)
        extra["log_probs"] = buffers.get("log_probs", features, len(features), len(weight))
        return logits.unsqueeze(1), extra

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: dict[str, Tensor] | None
    ) -> Tensor:
        """fairseq's probabilities or their logarithms, (batch, time, types)."""
        logits, extra = net_output[0], net_output[1] if len(net_output) > 1 else None
        if log_probs and isinstance(extra, dict) and "log_probs" in extra:
            out = extra["log_probs"].unsqueeze(1)
            return torch.log_softmax(logits, -1, out=out)
        return super().get_normalized_probs(net_output, log_probs, sample)

    def is_plain(self) -> bool:
        """Whether decoding can project into a buffer of fp32."""
        projection = self.output_projection
        return (
            not self.training
            and not torch.is_grad_enabled()
            and self.adaptive_softmax is None
            and type(projection) is nn.Linear
            and projection.bias is None
            and projection.weight.dtype == torch.float32
            and not projection._forward_pre_hooks
            and not projection._forward_hooks
            and not torch.is_autocast_enabled(projection.weight.device.type)
        )

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's features; in training attention weights only where a layer is named."""
        if self.training and alignment_layer is None:
            alignment_layer = NO_LAYER
        if incremental_state is not None:
            decoding.begin(incremental_state, (encoder_out or {}).get("sentences", [None])[0])
        return super().extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
        )

    def buffered_future_mask(self, tensor: Tensor) -> Tensor:
        """fairseq's mask, which says what it is, so that a kernel may do without it."""
        mask = super().buffered_future_mask(tensor)
        mask.hides_future = True
        return mask

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the caches, as beam search asks for."""
        decoding.batch(incremental_state).reorder(new_order)
        for state in decoding.of_evaluations(incremental_state):
            if any(name != decoding.KEY for name in state):  # fairseq visits all modules
                super().reorder_incremental_state_scripting(state, new_order)
