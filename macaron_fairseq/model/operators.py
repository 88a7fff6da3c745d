"""The operators of a layer: which networks it has, where their weights are, and how they are built.

fairseq's layer builds the networks of the *last* operator of each kind, under its own names
(`self_attn`, `fc1`, ...). So `lie-trotter` has exactly the parameters of fairseq's `transformer`.
Other operators are in `earlier.<place>`, with the place in the scheme where they are first applied.
"""

from collections.abc import Callable
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LayerNorm
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn
from torch.nn import functional

from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import (
    CROSS_ATTENTION,
    FFN,
    SELF_ATTENTION,
    Operator,
    Step,
    Steps,
)


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


class Gate(nn.Module):
    """sigmoid(W [k1; k2] + b), a number for each token; training starts from 1/2, Heun's method.

    It is no `nn.Linear`, of which fairseq quantises the classes that it knows alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, 2 * width))
        self.bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start with zeros."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, k1: Tensor, k2: Tensor) -> Tensor:
        """The share of k1, (..., 1), for two slopes, (..., channel)."""
        return functional.linear(torch.cat((k1, k2), -1), self.weight, self.bias).sigmoid()


class OperatorWeights:
    """The weights of a scheme's operators, next to those that fairseq's layer holds."""

    steps: Steps

    # What fairseq's layers bring along.
    embed_dim: int
    quant_noise: float
    quant_noise_block_size: int
    normalize_before: bool
    training: bool
    activation_fn: Callable[[Tensor], Tensor]
    activation_dropout_module: FairseqDropout
    dropout_module: FairseqDropout
    final_layer_norm: nn.Module
    self_attn: nn.Module
    self_attn_layer_norm: nn.Module
    encoder_attn: nn.Module
    encoder_attn_layer_norm: nn.Module
    build_fc1: Callable[..., nn.Module]
    build_fc2: Callable[..., nn.Module]
    build_self_attention: Callable[..., nn.Module]
    build_encoder_attention: Callable[..., nn.Module]

    def build_operators(self, steps: Steps, cfg: TransformerConfig, side: str) -> None:
        """Build what fairseq's layer of that side lacks for these steps."""
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
                width = widths.ffn_embed_dim
                if operator.kind not in kinds and widths.first_ffn_embed_dim:
                    width = widths.first_ffn_embed_dim
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
                    self.gates[str(place)] = Gate(self.embed_dim)

    def build_network(self, kind: str, cfg: TransformerConfig, width: int) -> nn.Module:
        """A new network of that kind; `width` is the inner width of an FFN."""
        if kind == SELF_ATTENTION:
            return self.build_self_attention(self.embed_dim, cfg)
        if kind == CROSS_ATTENTION:
            return self.build_encoder_attention(self.embed_dim, cfg)
        if kind == FFN:
            noise = self.quant_noise, self.quant_noise_block_size
            return FeedForward(
                self.build_fc1(self.embed_dim, width, *noise),
                self.build_fc2(width, self.embed_dim, *noise),
            )
        raise NotImplementedError(f"no layer builds the operator '{kind}'")

    def weights(self, operator: Operator) -> tuple[Any, Any]:
        """The network and the LayerNorm of an operator."""
        if operator in self.places:
            earlier: Any = self.earlier[self.places[operator]]
            return earlier.network, earlier.layer_norm
        if operator.kind == SELF_ATTENTION:
            return self.self_attn, self.self_attn_layer_norm
        if operator.kind == CROSS_ATTENTION:
            return self.encoder_attn, self.encoder_attn_layer_norm
        if operator.kind == FFN:
            return self, self.final_layer_norm  # fairseq's layer holds its FFN itself
        raise NotImplementedError(f"no layer holds the operator '{operator.kind}'")

    def gate_place(self, step: Step) -> str:
        """Where the gate of a step is: steps of the same operators have one."""
        first = next(i for i, x in enumerate(self.steps) if x.operators == step.operators)
        return str(first)

    def gate(self, step: Step) -> Any:
        """The gate of a step, or None where the sub-step has none."""
        return self.gates[self.gate_place(step)] if self.substep.is_gated else None
