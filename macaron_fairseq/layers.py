"""One encoder layer and one decoder layer that integrate any splitting scheme.

Both are fairseq's layers with another `forward`. fairseq builds the networks of the *last*
application of each operator under its own names (`self_attn`, `fc1`, ...), so that `lie-trotter`
has exactly the parameters of fairseq's `transformer`; those of earlier applications are in
`earlier.<place in the scheme>`.
"""

from collections.abc import Callable
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LayerNorm
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from macaron_fairseq import schemes
from macaron_fairseq.schemes import CROSS_ATTENTION, FFN, SELF_ATTENTION, Steps

IncrementalState = dict[str, dict[str, Tensor | None]]


class FeedForward(nn.Module):
    """The two linear maps of one FFN; activation and dropout belong to the layer."""

    def __init__(self, fc1: nn.Module, fc2: nn.Module) -> None:
        super().__init__()
        self.fc1 = fc1
        self.fc2 = fc2


class Sublayer(nn.Module):
    """The weights of one application of an operator: its network and its LayerNorm."""

    def __init__(self, network: nn.Module, layer_norm: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.layer_norm = layer_norm


class SplittingLayer:
    """What the two layers share: the weights and the steps of a scheme.

    One (operator, step) pair of `sequence` is the sub-layer

        x <- x + step * operator(LayerNorm(x))          pre-norm
        x <- LayerNorm(x + step * operator(x))          post-norm

    with dropout on the operator's result, before the step scales it (Lu et al. 2019, eq. 13-15).
    """

    sequence: Steps

    # What fairseq's layers bring along.
    embed_dim: int
    quant_noise: float
    quant_noise_block_size: int
    normalize_before: bool
    activation_fn: Callable[[Tensor], Tensor]
    activation_dropout_module: nn.Module
    dropout_module: nn.Module
    final_layer_norm: nn.Module
    self_attn: nn.Module
    self_attn_layer_norm: nn.Module
    encoder_attn: nn.Module
    encoder_attn_layer_norm: nn.Module
    build_fc1: Callable[..., nn.Module]
    build_fc2: Callable[..., nn.Module]
    build_self_attention: Callable[..., nn.Module]
    build_encoder_attention: Callable[..., nn.Module]

    def build_earlier(self, sequence: Steps, cfg: TransformerConfig, side: str) -> None:
        """Build the sub-layers that fairseq's layer of that side lacks."""
        self.sequence = sequence
        self.earlier = nn.ModuleDict()
        operators = [operator for operator, _ in sequence]
        widths = getattr(cfg, side)
        for place, operator in enumerate(operators):
            if operator in operators[place + 1 :]:
                is_first = operator not in operators[:place]
                width = (is_first and widths.first_ffn_embed_dim) or widths.ffn_embed_dim
                self.earlier[str(place)] = Sublayer(
                    self.build_network(operator, cfg, width),
                    LayerNorm(self.embed_dim, export=cfg.export),
                )

    def build_network(self, operator: str, cfg: TransformerConfig, width: int) -> nn.Module:
        """A new network of that operator; `width` is the inner width of an FFN."""
        if operator == SELF_ATTENTION:
            return self.build_self_attention(self.embed_dim, cfg)
        if operator == CROSS_ATTENTION:
            return self.build_encoder_attention(self.embed_dim, cfg)
        noise = self.quant_noise, self.quant_noise_block_size
        return FeedForward(
            self.build_fc1(self.embed_dim, width, *noise),
            self.build_fc2(width, self.embed_dim, *noise),
        )

    def sublayer(self, place: int) -> tuple[Any, Any]:
        """The network and the LayerNorm of the step at `place` of the sequence."""
        if str(place) in self.earlier:
            earlier: Any = self.earlier[str(place)]
            return earlier.network, earlier.layer_norm
        operator, _ = self.sequence[place]
        if operator == SELF_ATTENTION:
            return self.self_attn, self.self_attn_layer_norm
        if operator == CROSS_ATTENTION:
            return self.encoder_attn, self.encoder_attn_layer_norm
        return self, self.final_layer_norm  # fairseq's layer holds its FFN itself

    def feed_forward(self, network: Any, x: Tensor) -> Tensor:
        """FFN(x) with the `fc1` and `fc2` of `network`; x is (time, batch, channel)."""
        return network.fc2(self.activation_dropout_module(self.activation_fn(network.fc1(x))))

    def before(self, layer_norm: nn.Module, x: Tensor) -> Tensor:
        """What an operator sees of the state x."""
        return layer_norm(x) if self.normalize_before else x

    def after(self, layer_norm: nn.Module, x: Tensor, change: Tensor, step: float) -> Tensor:
        """The state after the operator's `change`."""
        x = torch.add(x, self.dropout_module(change), alpha=step)
        return x if self.normalize_before else layer_norm(x)


class MacaronEncoderLayer(SplittingLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer, integrating `cfg.macaron_scheme`."""

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        self.build_earlier(schemes.get(cfg.macaron_scheme).encoder, cfg, "encoder")

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        attn_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Advance the state by one layer; arguments and result are those of fairseq's layer.

        Args:
            x: the state, (time, batch, channel).
            encoder_padding_mask: True at padding, (batch, time), or None where there is none.
            attn_mask: non-zero where a query (row) must not see a key (column), (time, time).

        Returns:
            The new state; with `return_fc` also what the last FFN gave.
        """
        if attn_mask is not None:
            # Finite, so that a row with nothing to see gives no NaN (as fairseq does).
            low = -1e8 if x.dtype == torch.float32 else -1e4
            attn_mask = attn_mask.masked_fill(attn_mask.to(torch.bool), low)
        for place, (operator, step) in enumerate(self.sequence):
            network, layer_norm = self.sublayer(place)
            y = self.before(layer_norm, x)
            if operator == FFN:
                y = ffn_result = self.feed_forward(network, y)
            else:
                y, _ = network(
                    query=y,
                    key=y,
                    value=y,
                    key_padding_mask=encoder_padding_mask,
                    need_weights=False,
                    attn_mask=attn_mask,
                )
            x = self.after(layer_norm, x, y, step)
        return (x, ffn_result) if self.return_fc else x


class MacaronDecoderLayer(SplittingLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer, integrating `cfg.macaron_scheme`."""

    def __init__(
        self,
        cfg: TransformerConfig,
        no_encoder_attn: bool = False,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> None:
        super().__init__(cfg, no_encoder_attn, add_bias_kv, add_zero_attn)
        sequence = schemes.get(cfg.macaron_scheme).decoder
        if no_encoder_attn:
            sequence = tuple(pair for pair in sequence if pair[0] != CROSS_ATTENTION)
        self.build_earlier(sequence, cfg, "decoder")

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        prev_self_attn_state: list[Tensor] | None = None,
        prev_attn_state: list[Tensor] | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Advance the state by one layer; arguments and result are those of fairseq's layer.

        Args:
            x: the state, (time, batch, channel); with `incremental_state`, of the last token only.
            encoder_out: the encoder's state, (source time, batch, encoder channel).
            encoder_padding_mask: True at source padding, (batch, source time).
            incremental_state: the caches of keys and values, one for each attention network.
            prev_self_attn_state: not supported (ONNX tracing); nor is `prev_attn_state`.
            prev_attn_state: see `prev_self_attn_state`.
            self_attn_mask: added to the scores of self-attention, (time, time).
            self_attn_padding_mask: True at target padding, (batch, time).
            need_attn: also return the weights of the last cross-attention.
            need_head_weights: the same for each head, (heads, batch, time, source time).

        Returns:
            The new state, the attention weights or None, and None.

        Raises:
            NotImplementedError: if a previous attention state is given.
        """
        if prev_self_attn_state is not None or prev_attn_state is not None:
            raise NotImplementedError("previous attention states (ONNX tracing)")
        need_weights = need_attn or need_head_weights or (self.need_attn and not self.training)
        attn = None
        for place, (operator, step) in enumerate(self.sequence):
            if operator == CROSS_ATTENTION and encoder_out is None:
                continue
            network, layer_norm = self.sublayer(place)
            y = self.before(layer_norm, x)
            if operator == FFN:
                y = self.feed_forward(network, y)
            elif operator == CROSS_ATTENTION:
                y, attn = network(
                    query=y,
                    key=encoder_out,
                    value=encoder_out,
                    key_padding_mask=encoder_padding_mask,
                    incremental_state=incremental_state,
                    static_kv=True,
                    need_weights=need_weights,
                    need_head_weights=need_head_weights,
                )
            else:
                keys, attn_mask, padding_mask = y, self_attn_mask, self_attn_padding_mask
                with_source = self.cross_self_attention and encoder_out is not None
                if with_source and not has_cache(network, incremental_state):
                    keys, attn_mask, padding_mask = prepend_source(
                        y, encoder_out, encoder_padding_mask, attn_mask, padding_mask
                    )
                y, _ = network(
                    query=y,
                    key=keys,
                    value=keys,
                    key_padding_mask=padding_mask,
                    incremental_state=incremental_state,
                    need_weights=False,
                    attn_mask=attn_mask,
                )
            x = self.after(layer_norm, x, y, step)
        return x, attn, None


def has_cache(attention: Any, incremental_state: IncrementalState | None) -> bool:
    """Whether keys and values of earlier tokens are in the incremental state."""
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


def wrap_layer(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Apply activation checkpointing and full sharding, where asked for."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(layer, min_num_params=0)  # a checkpointed layer is a unit of its own
    return fsdp_wrap(layer, min_num_params=cfg.min_params_to_wrap)
