"""The decoder: fairseq's with layers that integrate a scheme."""

from typing import Any

from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor, nn

from macaron_fairseq.fast import caches
from macaron_fairseq.fast.caches import IncrementalState
from macaron_fairseq.model.layers import MacaronDecoderLayer, wrap_layer

NO_LAYER = -1


class MacaronTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with Macaron layers."""

    trains_without_weights = False  # of attention, which fairseq returns but few criteria read

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """One layer, wrapped as fairseq wraps its own."""
        return wrap_layer(MacaronDecoderLayer(cfg, no_encoder_attn), cfg)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's features and attention weights, these where they are wanted."""
        if self.training and self.trains_without_weights and alignment_layer is None:
            alignment_layer = NO_LAYER
        if incremental_state is not None:
            caches.begin(incremental_state, (encoder_out or {}).get("sentences", [None])[0])
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
        # With activation checkpoints the second computation gets a copy of the mask, and must be by
        # the same kernel as the first, to draw the same dropout.
        mask.hides_future = not self.cfg.checkpoint_activations
        return mask

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the caches, as beam search asks for."""
        caches.batch(incremental_state).reorder(new_order)
        for state in caches.of_evaluations(incremental_state):
            if any(name != caches.KEY for name in state):  # fairseq visits all modules
                super().reorder_incremental_state_scripting(state, new_order)
