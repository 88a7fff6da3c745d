"""The model with this room's layers."""

from typing import Any

import torch
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from macaron_fairseq.fast import caches
from macaron_fairseq.fast.dropout import Dropout
from macaron_fairseq.fast.layers import FusedDecoderLayer, FusedEncoderLayer
from macaron_fairseq.fast.task import MacaronTranslationTask
from macaron_fairseq.model.incremental import IncrementalState, states_of_evaluations
from macaron_fairseq.model.transformer import (
    MacaronTransformerDecoder,
    MacaronTransformerEncoder,
    MacaronTransformerModel,
)


class FusedTransformerEncoder(MacaronTransformerEncoder):
    """The encoder, whose output says how hypotheses and sentences belong together."""

    layer_class = FusedEncoderLayer
    dropout_module: FairseqDropout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dropout_module = Dropout.of(self.dropout_module, MacaronTransformerEncoder.__name__)

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


class FusedTransformerDecoder(MacaronTransformerDecoder):
    """The decoder, which keeps the caches of `caches.py`."""

    layer_class = FusedDecoderLayer
    dropout_module: FairseqDropout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dropout_module = Dropout.of(self.dropout_module, MacaronTransformerDecoder.__name__)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's features and attention weights."""
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
        # With activation checkpoints a second computation gets a copy of the mask. The same kernel
        # must do it, to draw the same dropout.
        mask.hides_future = not self.cfg.checkpoint_activations
        return mask

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the caches, as beam search asks for."""
        caches.batch(incremental_state).reorder(new_order)
        # fairseq visits all modules, which is needed only where its own attention kept something.
        states = states_of_evaluations(incremental_state)
        if any(name not in caches.OWN for state in states for name in state):
            super().reorder_incremental_state_scripting(incremental_state, new_order)


class FusedTransformerModel(MacaronTransformerModel):
    """`macaron_transformer` with `--macaron-kernels fused`."""

    encoder_class = FusedTransformerEncoder
    decoder_class = FusedTransformerDecoder

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> GeneratorHubInterface:
        """Load trained models as the parent class does, with the faster beam search."""
        hub = super().from_pretrained(*args, **kwargs)
        if type(hub.task) is TranslationTask:  # which finds the same, slower
            dictionaries = hub.task.source_dictionary, hub.task.target_dictionary
            hub.task = MacaronTranslationTask(hub.task.cfg, *dictionaries)
        return hub
