"""The layers of `model/layers.py` with this room's attention, dropout and linear maps."""

from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import gelu
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.fast import activation, caches, gpu_kernels
from macaron_fairseq.fast.attention import Attention
from macaron_fairseq.fast.dropout import Dropout, is_plain
from macaron_fairseq.fast.linear import Linear
from macaron_fairseq.fast.replaceable import inherits, is_linear
from macaron_fairseq.model.incremental import IncrementalState
from macaron_fairseq.model.layers import (
    Evaluate,
    MacaronDecoderLayer,
    MacaronEncoderLayer,
    SplittingLayer,
)
from macaron_fairseq.schemes import substeps


class FusedLayer(SplittingLayer):
    """What both layers share: they build this room's modules, which compute the same."""

    dropout_module: Dropout
    activation_dropout_module: Dropout

    def replace_dropout(self) -> None:
        """Take this room's dropout."""
        self.dropout_module = Dropout.of(self.dropout_module)
        self.activation_dropout_module = Dropout.of(self.activation_dropout_module)

    def build_fc1(
        self, input_dim: int, output_dim: int, noise: float = 0, block: int = 8
    ) -> nn.Module:
        """The first linear map of an FFN.

        Raises:
            ValueError: if it is to have quantisation noise, which the layers of `model/` have.
        """
        if noise:
            raise ValueError("quantisation noise needs the layers of macaron_fairseq.model.layers")
        return Linear(input_dim, output_dim)

    build_fc2 = build_fc1  # the second one

    def advance(self, x: Tensor, evaluate: Evaluate, skipped: str | None = None) -> Tensor:
        """The state x after all steps.

        On a GPU, with euler and one operator a step, there are fewer calls of Python: no sub-step,
        dropout in one kernel with the sum x + h y, and its masks for all steps in another.
        """
        dropout = self.dropout_module
        p = dropout.share()
        is_direct = gpu_kernels.suit(x) and self.takes_plain_steps() and is_plain(dropout)
        if not is_direct or p == 1:
            return super().advance(x, evaluate, skipped)
        steps = [step for step in self.steps if step.operators[0].kind != skipped]
        all_kept = gpu_kernels.draw_kept(len(steps), x, p) if p else [None] * len(steps)
        for step, kept in zip(steps, all_kept, strict=True):
            network, layer_norm = self.weights(step.operators[0])
            y = layer_norm(x) if self.normalize_before else x
            y = evaluate(step.operators[0].kind, network, y)
            if kept is None:
                x = torch.add(x, y, alpha=step.size)
            else:
                x = gpu_kernels.add_dropped(x, y, kept, p, step.size)
            if not self.normalize_before:
                x = layer_norm(x)
        return x

    def takes_plain_steps(self) -> bool:
        """Whether each step is x + h f(x) of one operator f, also by a user's subclass."""
        return (
            self.substep.slope is substeps.euler
            and inherits(self, FusedLayer, "move", "field")
            and all(len(x.operators) == 1 for x in self.steps)
        )

    def feed_forward(self, network: Any, x: Tensor) -> Tensor:
        """FFN(x); ReLU after its dropout gives the same and remembers one tensor less, as GELU."""
        dropout, fc1, fc2 = self.activation_dropout_module, network.fc1, network.fc2
        p = dropout.share()
        is_called = not is_plain(dropout)  # after ReLU, as in fairseq
        is_whole = not p and not is_called
        if self.activation_fn is gelu and is_whole and is_linear(fc2) and activation.is_useful():
            return activation.gelu_linear(fc1(x), fc2.weight, fc2.bias)
        if self.activation_fn is not functional.relu or is_called:
            return super().feed_forward(network, x)
        if gpu_kernels.suit(x) and is_linear(fc1) and fc1.bias is not None and p < 1:
            return fc2(gpu_kernels.dropped_relu(x, fc1.weight, fc1.bias, p))
        return fc2(functional.relu(dropout(fc1(x))))

    def move(self, x: Tensor, slope: Tensor, size: float) -> Tensor:
        """x + h k, in the memory of k where k is dropout's result, which nobody else needs.

        A GPU takes one kernel for the sum and two for this.
        """
        dropout = self.dropout_module
        is_on_cpu = x.device.type == "cpu"
        is_its_result = (
            self.substep.slope is substeps.euler
            and inherits(self, SplittingLayer, "field")
            and 0 < dropout.share() < 1
            and is_plain(dropout)
        )
        if not is_its_result or slope.dtype != x.dtype or not is_on_cpu:
            return super().move(x, slope, size)
        return (slope if size == 1 else slope.mul_(size)).add_(x)


class FusedEncoderLayer(FusedLayer, MacaronEncoderLayer):
    """The encoder layer."""

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        self.replace_dropout()

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> Attention:
        """Self-attention, with the arguments that fairseq's layer gives."""
        return Attention(
            embed_dim,
            cfg.encoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            xformers_att_config=cfg.encoder.xformers_att_config,
        )


class FusedDecoderLayer(FusedLayer, MacaronDecoderLayer):
    """The decoder layer."""

    def __init__(self, cfg: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self.replace_dropout()
        # Its weights are computed where the decoder asks for them: in evaluation fairseq's layers
        # all compute theirs, and the decoder reads those of one layer.
        self.need_attn = False

    def build_self_attention(
        self,
        embed_dim: int,
        cfg: TransformerConfig,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> Attention:
        """Self-attention, with the arguments that fairseq's layer gives."""
        return Attention(
            embed_dim,
            cfg.decoder.attention_heads,
            dropout=cfg.attention_dropout,
            add_bias_kv=add_bias_kv,
            add_zero_attn=add_zero_attn,
            self_attention=not cfg.cross_self_attention,
            xformers_att_config=cfg.decoder.xformers_att_config,
        )

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> Attention:
        """Attention to the source, with the arguments that fairseq's layer gives."""
        return Attention(
            embed_dim,
            cfg.decoder.attention_heads,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            xformers_att_config=cfg.encoder.xformers_att_config,
        )

    def state_of_evaluation(
        self, incremental_state: IncrementalState | None, evaluation: int
    ) -> IncrementalState | None:
        """The state of an evaluation, which knows the batch that it belongs to."""
        state = super().state_of_evaluation(incremental_state, evaluation)
        if state is not None and incremental_state is not None and evaluation:
            state[caches.BATCH] = caches.batch(incremental_state)
            state[caches.EVALUATION] = evaluation
        return state
