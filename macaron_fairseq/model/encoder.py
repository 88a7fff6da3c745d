"""The encoder: fairseq's with layers that integrate a scheme."""

from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from macaron_fairseq.model.layers import MacaronEncoderLayer, wrap_layer


class MacaronTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder with Macaron layers."""

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """One layer, wrapped as fairseq wraps its own."""
        return wrap_layer(MacaronEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        """Select and repeat sentences; hypotheses that only change places cost nothing.

        The result says in "sentences" from which sentence each row came.
        """
        before = encoder_out.get("sentences")
        sentences = new_order if before is None else before[0][new_order]
        if before is not None and torch.equal(sentences, before[0]):
            return encoder_out
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        return {**reordered, "sentences": [sentences]}
