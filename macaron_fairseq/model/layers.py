"""One encoder layer and one decoder layer that integrate any splitting scheme.

The layer of Lu et al. 2019, eq. 13-15, is the scheme `strang-marchuk` with the sub-step `euler`:

    x <- x + 1/2 FFN1(x),    x <- x + Attention(x),    x <- x + 1/2 FFN2(x)

`SplittingLayer.advance` takes these steps; `schemes/splitting.py` says which ones there are. Both
layers are fairseq's with another `forward`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from macaron_fairseq.model import arguments
from macaron_fairseq.model.incremental import (
    EVALUATIONS,
    Evaluations,
    IncrementalState,
    has_cache,
    prepend_source,
)
from macaron_fairseq.model.operators import OperatorWeights
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN, Operator

# Of an operator's kind, its network and a state, the network's result; (time, batch, channel) both.
Evaluate = Callable[[str, Any, Tensor], Tensor]


class SplittingLayer(OperatorWeights):
    """A layer as the time steps of a scheme.

    A step of size h is

        x <- x + h k                                    pre-norm
        x <- LayerNorm(x + h network(x))                post-norm

    with k the sub-step's slope of f(x), the sum of network(LayerNorm(x)) over the step's operators.
    Dropout is on each network's result, before the step scales it, and is drawn anew for each
    evaluation of f.
    """

    def advance(self, x: Tensor, evaluate: Evaluate, skipped: str | None = None) -> Tensor:
        """The state x after all steps, without the operators of the kind `skipped`."""
        for step in self.steps:
            operators = [operator for operator in step.operators if operator.kind != skipped]
            if not operators:
                continue
            field = partial(self.field, operators, evaluate)
            slope = self.substep.slope(field, x, step.size, self.gate(step))
            x = self.move(x, slope, step.size)
            if not self.normalize_before:  # schemes whose steps have one operator each
                _, layer_norm = self.weights(operators[0])
                x = layer_norm(x)
        return x

    def name_dropouts(self, name: str) -> None:
        """Name them as `--retain-dropout-modules` knows those of fairseq's transformer."""
        self.dropout_module.module_name = self.activation_dropout_module.module_name = name

    def move(self, x: Tensor, slope: Tensor, size: float) -> Tensor:
        """x + h k."""
        return torch.add(x, slope, alpha=size)

    def field(self, operators: Sequence[Operator], evaluate: Evaluate, x: Tensor) -> Tensor:
        """f(x), the sum of the operators' results for the state x; both (time, batch, channel)."""
        results = []
        for operator in operators:
            network, layer_norm = self.weights(operator)
            y = evaluate(operator.kind, network, layer_norm(x) if self.normalize_before else x)
            results.append(self.dropout_module(y))
        return reduce(torch.add, results)

    def feed_forward(self, network: Any, x: Tensor) -> Tensor:
        """FFN(x) with the `fc1` and `fc2` of `network`; x is (time, batch, channel)."""
        y = self.activation_dropout_module(self.activation_fn(network.fc1(x)))
        return network.fc2(y)


class MacaronEncoderLayer(SplittingLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer, integrating the encoder's scheme of `cfg`."""

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        arguments.refuse_senseless_steps(cfg, ["encoder"])
        self.name_dropouts(TransformerEncoderLayerBase.__name__)
        self.build_operators(arguments.steps_of(cfg, "encoder"), cfg, "encoder")

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        attn_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Advance the state x, (time, batch, channel), by one layer; arguments are fairseq's.

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
        arguments.refuse_senseless_steps(cfg, ["decoder"])
        steps = arguments.steps_of(cfg, "decoder")
        if no_encoder_attn:
            steps = splitting.without(steps, CROSS_ATTENTION)
        self.name_dropouts(TransformerDecoderLayerBase.__name__)
        self.build_operators(steps, cfg, "decoder")
        self.evaluations = Evaluations(self)

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
        """Advance the state x, (time, batch, channel), by one layer; arguments are fairseq's.

        In decoding, x is of the last token only. `incremental_state` then holds keys and values of
        each evaluation of a self-attention, and of each cross-attention.

        Returns:
            The new state; the weights of the last evaluation of a cross-attention, or None; None.

        Raises:
            NotImplementedError: if a previous attention state is given.
        """
        if prev_self_attn_state is not None or prev_attn_state is not None:
            raise NotImplementedError("previous attention states (ONNX tracing)")
        need_weights = need_attn or need_head_weights or (self.need_attn and not self.training)
        attn = None
        evaluations: Counter[Any] = Counter()  # of each self-attention so far

        def evaluate(kind: str, network: Any, y: Tensor) -> Tensor:
            nonlocal attn
            if kind == FFN:
                return self.feed_forward(network, y)
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
            state = self.state_of_evaluation(incremental_state, evaluations[network])
            evaluations[network] += 1
            keys, attn_mask, padding_mask = y, self_attn_mask, self_attn_padding_mask
            with_source = self.cross_self_attention and encoder_out is not None
            if with_source and not has_cache(network, state):
                keys, attn_mask, padding_mask = prepend_source(
                    y, encoder_out, encoder_padding_mask, attn_mask, padding_mask
                )
            y, _ = network(
                query=y,
                key=keys,
                value=keys,
                key_padding_mask=padding_mask,
                incremental_state=state,
                need_weights=False,
                attn_mask=attn_mask,
            )
            return y

        skipped = CROSS_ATTENTION if encoder_out is None else None
        return self.advance(x, evaluate, skipped), attn, None

    def state_of_evaluation(
        self, incremental_state: IncrementalState | None, evaluation: int
    ) -> IncrementalState | None:
        """Where a self-attention keeps the keys and values of its n-th evaluation, from 0."""
        if incremental_state is None or evaluation == 0:
            return incremental_state
        return incremental_state.setdefault(EVALUATIONS, {}).setdefault(evaluation, {})


def wrap_layer(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """Apply activation checkpointing and full sharding, where asked for."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(layer, min_num_params=0)  # a checkpointed layer is one unit
    return fsdp_wrap(layer, min_num_params=cfg.min_params_to_wrap)
