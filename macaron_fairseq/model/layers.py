"""One encoder layer and one decoder layer that integrate any splitting scheme.

Both are fairseq's layers with another `forward`. fairseq builds the networks of the *last* operator
of each kind under its own names (`self_attn`, `fc1`, ...), so that `lie-trotter` has exactly the
parameters of fairseq's `transformer`; those of other operators are in `earlier.<place>`, the place
in the scheme where they are first applied.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial, reduce
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

from macaron_fairseq.fast import caches, plain, residual
from macaron_fairseq.fast.activation import activated
from macaron_fairseq.fast.attention import Attention
from macaron_fairseq.fast.caches import Batch, IncrementalState
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import (
    CROSS_ATTENTION,
    FFN,
    SELF_ATTENTION,
    Operator,
    Step,
    Steps,
)

# What an operator of that kind and network gives for a state that is normalised where it is to be.
Evaluate = Callable[[str, Any, Tensor], Tensor]


class FeedForward(nn.Module):
    """The two linear maps of one FFN; activation and dropout belong to the layer."""

    def __init__(self, fc1: nn.Module, fc2: nn.Module) -> None:
        super().__init__()
        self.fc1 = fc1
        self.fc2 = fc2


class Sublayer(nn.Module):
    """The weights of one operator: its network and its LayerNorm."""

    def __init__(self, network: nn.Module, layer_norm: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.layer_norm = layer_norm


class SplittingLayer:
    """What the two layers share: the weights and the steps of a scheme.

    A step of size h is

        x <- x + h k                                    pre-norm
        x <- LayerNorm(x + h network(x))                post-norm

    with k the sub-step's slope of f(x), the sum of network(LayerNorm(x)) over the step's operators.
    Dropout is on each network's result, before the step scales it (Lu et al. 2019, eq. 13-15), and
    is drawn anew for each evaluation of f.
    """

    steps: Steps

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

    def build_rest(self, steps: Steps, cfg: TransformerConfig, side: str) -> None:
        """Build what fairseq's layer of that side lacks."""
        self.steps = steps
        self.substep = substeps.get(cfg.macaron_substep)
        applied = splitting.operators(steps)
        held = {operator.kind: operator for operator in applied}  # by fairseq's layer: the last
        self.places: dict[Operator, str] = {}
        self.earlier = nn.ModuleDict()
        kinds: set[str] = set()
        widths = getattr(cfg, side)
        for place, operator in enumerate(applied):
            if operator not in self.places and operator != held[operator.kind]:
                is_first = operator.kind not in kinds
                width = (is_first and widths.first_ffn_embed_dim) or widths.ffn_embed_dim
                self.places[operator] = str(place)
                self.earlier[str(place)] = Sublayer(
                    self.build_network(operator.kind, cfg, width),
                    LayerNorm(self.embed_dim, export=cfg.export),
                )
            kinds.add(operator.kind)
        self.gates = nn.ModuleDict()
        if self.substep.is_gated:
            for place, x in enumerate(steps):
                if self.gate_place(x) == str(place):
                    self.gates[str(place)] = substeps.new_gate(self.embed_dim)

    def build_network(self, kind: str, cfg: TransformerConfig, width: int) -> nn.Module:
        """A new network of that kind; `width` is the inner width of an FFN."""
        if kind == SELF_ATTENTION:
            return self.build_self_attention(self.embed_dim, cfg)
        if kind == CROSS_ATTENTION:
            return self.build_encoder_attention(self.embed_dim, cfg)
        noise = self.quant_noise, self.quant_noise_block_size
        return FeedForward(
            self.build_fc1(self.embed_dim, width, *noise),
            self.build_fc2(width, self.embed_dim, *noise),
        )

    def weights(self, operator: Operator) -> tuple[Any, Any]:
        """The network and the LayerNorm of an operator."""
        if operator in self.places:
            earlier: Any = self.earlier[self.places[operator]]
            return earlier.network, earlier.layer_norm
        if operator.kind == SELF_ATTENTION:
            return self.self_attn, self.self_attn_layer_norm
        if operator.kind == CROSS_ATTENTION:
            return self.encoder_attn, self.encoder_attn_layer_norm
        return self, self.final_layer_norm  # fairseq's layer holds its FFN itself

    def gate_place(self, step: Step) -> str:
        """Where the gate of a step is: steps of the same operators have one."""
        first = next(i for i, x in enumerate(self.steps) if x.operators == step.operators)
        return str(first)

    def gate(self, step: Step) -> Any:
        """The gate of a step, or None where the sub-step has none."""
        return self.gates[self.gate_place(step)] if self.substep.is_gated else None

    def advance(self, x: Tensor, evaluate: Evaluate, skipped: str | None = None) -> Tensor:
        """The state x after all steps, without the operators of the kind `skipped`."""
        if self.normalize_before:
            x = x.contiguous()  # as fairseq transposes it, each LayerNorm would copy it
        for step in self.steps:
            operators = [operator for operator in step.operators if operator.kind != skipped]
            if not operators:
                continue
            operator, *others = operators
            if not others and self.substep.slope is substeps.euler:
                k = self.result(operator, evaluate, x)
                x = residual.add(x, k, step.size, self.dropout_module, self.owns_result(operator))
            else:
                field = partial(self.field, operators, evaluate)
                k = self.substep.slope(field, x, step.size, self.gate(step))
                x = torch.add(x, k, alpha=step.size)
            if not self.normalize_before:  # schemes whose steps have one operator each
                _, layer_norm = self.weights(operator)
                x = layer_norm(x)
        return x

    def field(self, operators: Sequence[Operator], evaluate: Evaluate, x: Tensor) -> Tensor:
        """f(x): what the operators give for the state x, in sum."""
        results = []
        for operator in operators:
            y = self.dropout_module(self.result(operator, evaluate, x))
            results.append(residual.to_add(y, x))
        return reduce(torch.add, results)

    def result(self, operator: Operator, evaluate: Evaluate, x: Tensor) -> Tensor:
        """What an operator's network gives for the state x."""
        network, layer_norm = self.weights(operator)
        return evaluate(operator.kind, network, layer_norm(x) if self.normalize_before else x)

    def owns_result(self, operator: Operator) -> bool:
        """Whether what the network gives comes from a linear map, and nobody else gets it."""
        network, _ = self.weights(operator)
        if operator.kind == FFN:
            return plain.is_linear(network.fc2) and not getattr(self, "return_fc", False)
        return (
            isinstance(network, Attention)
            and not network._forward_hooks
            and plain.is_linear(network.out_proj)
        )

    def feed_forward(self, network: Any, x: Tensor, batch: Batch | None = None) -> Tensor:
        """FFN(x) with the `fc1` and `fc2` of `network`; x is (time, batch, channel).

        In decoding without gradients `batch` is what is kept between two steps.
        """
        if batch is not None:
            y = self.activation_fn(batch.linear(network.fc1)(x))
            return batch.linear(network.fc2)(self.activation_dropout_module(y))
        return network.fc2(
            activated(x, network.fc1, self.activation_fn, self.activation_dropout_module)
        )


class MacaronEncoderLayer(SplittingLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer, integrating the encoder's scheme of `cfg`."""

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        self.build_rest(splitting.of_side(cfg, "encoder"), cfg, "encoder")

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        attn_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
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
        ffn_result = None

        def evaluate(kind: str, network: Any, y: Tensor) -> Tensor:
            nonlocal ffn_result
            if kind == FFN:
                ffn_result = self.feed_forward(network, y)
                return ffn_result
            y, _ = network(
                query=y,
                key=y,
                value=y,
                key_padding_mask=encoder_padding_mask,
                need_weights=False,
                attn_mask=attn_mask,
            )
            return y

        x = self.advance(x, evaluate)
        return (x, ffn_result) if self.return_fc else x


class MacaronDecoderLayer(SplittingLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer, integrating the decoder's scheme of `cfg`."""

    def __init__(
        self,
        cfg: TransformerConfig,
        no_encoder_attn: bool = False,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> None:
        super().__init__(cfg, no_encoder_attn, add_bias_kv, add_zero_attn)
        steps = splitting.of_side(cfg, "decoder")
        if no_encoder_attn:
            steps = splitting.without(steps, CROSS_ATTENTION)
        self.build_rest(steps, cfg, "decoder")

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
            incremental_state: the caches of keys and values, one for each evaluation of a
                self-attention and one for each cross-attention.
            prev_self_attn_state: not supported (ONNX tracing); nor is `prev_attn_state`.
            prev_attn_state: see `prev_self_attn_state`.
            self_attn_mask: added to the scores of self-attention, (time, time).
            self_attn_padding_mask: True at target padding, (batch, time).
            need_attn: also return the weights of the last evaluation of a cross-attention.
            need_head_weights: the same for each head, (heads, batch, time, source time).

        Returns:
            The new state, the attention weights or None, and None.

        Raises:
            NotImplementedError: if a previous attention state is given.
        """
        if prev_self_attn_state is not None or prev_attn_state is not None:
            raise NotImplementedError("previous attention states (ONNX tracing)")
        need_weights = need_attn or need_head_weights or (self.need_attn and not self.training)
        batch = None
        is_fused = isinstance(self.self_attn, Attention)
        if is_fused and incremental_state is not None and not torch.is_grad_enabled():
            batch = caches.batch(incremental_state)
        attn = None
        evaluations: Counter[Any] = Counter()  # of each self-attention so far

        def evaluate(kind: str, network: Any, y: Tensor) -> Tensor:
            nonlocal attn
            if kind == FFN:
                return self.feed_forward(network, y, batch)
            if kind == CROSS_ATTENTION:
                # The source is the same in all evaluations, and so are its keys and values.
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
                return y
            evaluation = evaluations[network]
            evaluations[network] += 1
            keys, attn_mask, padding_mask = y, self_attn_mask, self_attn_padding_mask
            with_source = self.cross_self_attention and encoder_out is not None
            if with_source and not has_cache(network, incremental_state, evaluation):
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
                **({"evaluation": evaluation} if evaluation else {}),  # fairseq's knows only one
            )
            return y

        skipped = CROSS_ATTENTION if encoder_out is None else None
        return self.advance(x, evaluate, skipped), attn, None


def has_cache(attention: Any, incremental_state: IncrementalState | None, evaluation: int) -> bool:
    """Whether keys and values of earlier tokens are in the incremental state."""
    if incremental_state is None:
        return False
    state = caches.of_evaluation(incremental_state, evaluation)
    return "prev_key" in (attention._get_input_buffer(state) or {})


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
