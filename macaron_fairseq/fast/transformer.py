"""The models with this room's layers.

fairseq's encoder, decoder and layers have fixed arguments. What else is known of a batch goes with
it as attributes:

    attribute                   set by                               read by
    source.is_padded            the model, for one pass              the encoder
    previous.pads_at_end_alone  the model, for one pass              the decoder
    mask.hides_future           the decoder's buffered_future_mask   attention
    padding.added_to_scores     attention, in the first layer        attention, in the others

A copy of a mask has no attribute: attention then takes the mask itself, with the same result. So
nobody may change a padding mask in place.
"""

from typing import Any

import torch
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from macaron_fairseq.fast import caches
from macaron_fairseq.fast.dropout import Dropout
from macaron_fairseq.fast.layers import FusedDecoderLayer, FusedEncoderLayer
from macaron_fairseq.fast.replaceable import inherits
from macaron_fairseq.fast.task import MacaronTranslationTask
from macaron_fairseq.model.incremental import IncrementalState, states_of_evaluations
from macaron_fairseq.model.language_model import MacaronLanguageModel
from macaron_fairseq.model.masked_language_model import MacaronRobertaEncoder, MacaronRobertaModel
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
        self.dropout_module = Dropout.of(self.dropout_module)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, Any]:
        """fairseq's encoder, which asks once whether there is padding, not once for each layer."""
        padding = src_tokens.eq(self.padding_idx)
        known = getattr(src_tokens, "is_padded", None)  # where the model has asked already
        is_padded = bool(padding.any()) if known is None else known
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if is_padded:
            x = x * (1 - padding.unsqueeze(-1).type_as(x))
        x = x.transpose(0, 1)
        states, ffn_results = [x] * return_all_hiddens, []
        for layer in self.layers:
            y = layer(x, encoder_padding_mask=padding if is_padded else None)
            x, ffn_result = y if isinstance(y, tuple) else (y, None)
            if return_all_hiddens:
                states.append(x)
                ffn_results.append(ffn_result)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        lengths = src_tokens.ne(self.padding_idx).sum(1, dtype=torch.int32)[:, None]
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": ffn_results,
            "src_tokens": [],
            "src_lengths": [lengths],
        }

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
        self.dropout_module = Dropout.of(self.dropout_module)

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
            rows = (encoder_out or {}).get("sentences", [None])[0]
            drops_layers = self.training and self.decoder_layerdrop > 0
            caches.begin(incremental_state, rows, takes_all=not drops_layers)
        elif (
            getattr(prev_output_tokens, "pads_at_end_alone", False)
            and not full_context_alignment
            and not self.cross_self_attention
            and inherits(self, MacaronTransformerDecoder, "extract_features_scriptable")
        ):
            return self.extract_causally(
                prev_output_tokens, encoder_out, alignment_layer, alignment_heads
            )
        return super().extract_features(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            full_context_alignment,
            alignment_layer,
            alignment_heads,
        )

    def extract_causally(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None,
        alignment_layer: int | None,
        alignment_heads: int | None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The features of fairseq's decoder for whole sentences with padding on their right only.

        The future hides this padding from all words. So attention needs no other mask, and nobody
        need ask whether there is padding. Features of padding itself are others than fairseq's.
        """
        source = source_padding = attention = None
        if encoder_out is not None and encoder_out["encoder_out"]:
            source = encoder_out["encoder_out"][0]
        if encoder_out is not None and encoder_out["encoder_padding_mask"]:
            source_padding = encoder_out["encoder_padding_mask"][0]
        x = self.embed_scale * self.embed_tokens(prev_output_tokens)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.embed_positions is not None:
            x = x + self.embed_positions(prev_output_tokens)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)
        states = [x]
        future = self.buffered_future_mask(x)
        aligned = self.num_layers - 1 if alignment_layer is None else alignment_layer
        for number, layer in enumerate(self.layers):
            x, weights, _ = layer(
                x,
                source,
                source_padding,
                self_attn_mask=future,
                need_attn=number == aligned,
                need_head_weights=number == aligned,
            )
            states.append(x)
            if number == aligned and weights is not None:
                attention = weights[:alignment_heads].float().to(x).mean(0)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attention], "inner_states": states}

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


def pads_before_words(tokens: Tensor, padding: int) -> Tensor:
    """Where padding stands just before a word, as on the left or within, (batch, length - 1)."""
    is_padding = tokens.eq(padding)
    return is_padding[:, :-1] > is_padding[:, 1:]


class FusedTransformerModel(MacaronTransformerModel):
    """`macaron_transformer` with `--macaron-kernels fused`."""

    encoder_class = FusedTransformerEncoder
    decoder_class = FusedTransformerDecoder

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None,
        prev_output_tokens: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """fairseq's output; a GPU is waited for once, to learn where a batch has padding.

        fairseq waits for it in each layer.
        """
        inputs = src_tokens, src_lengths, prev_output_tokens
        if src_tokens.device.type == "cpu":
            return super().forward(*inputs, *args, **kwargs)
        source: Any = src_tokens
        previous: Any = prev_output_tokens
        before = pads_before_words(previous, self.decoder.padding_idx)
        asked = source.eq(self.encoder.padding_idx).any(), before.any()
        source.is_padded, is_before = torch.stack(asked).tolist()
        previous.pads_at_end_alone = not is_before
        try:
            return super().forward(*inputs, *args, **kwargs)
        finally:  # somebody may change these tensors
            del source.is_padded, previous.pads_at_end_alone

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> GeneratorHubInterface:
        """Load trained models as the parent class does, with the faster beam search."""
        hub = super().from_pretrained(*args, **kwargs)
        if type(hub.task) is TranslationTask:  # which finds the same, slower
            dictionaries = hub.task.source_dictionary, hub.task.target_dictionary
            hub.task = MacaronTranslationTask(hub.task.cfg, *dictionaries)
        return hub


class FusedRobertaEncoder(MacaronRobertaEncoder):
    """The masked language model's encoder, with its head."""

    encoder_class = FusedTransformerEncoder


class FusedRobertaModel(MacaronRobertaModel):
    """`macaron_roberta` with `--macaron-kernels fused`."""

    encoder_class = FusedRobertaEncoder


class FusedLanguageModel(MacaronLanguageModel):
    """`macaron_transformer_lm` with `--macaron-kernels fused`."""

    decoder_class = FusedTransformerDecoder
