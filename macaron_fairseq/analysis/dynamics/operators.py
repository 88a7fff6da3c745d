"""What a model's layers do to a state, of fairseq's layers and of this package's.

A sub-layer is one step of a layer along an operator, or along the sum of several. It turns the
state x, (time, 1, channel), into

    x + a(x, h)                   pre-norm
    LayerNorm(x + a(x, h))        post-norm

where the increment a holds the operator, its LayerNorm in pre-norm, the sub-step that integrates it
and its step, made h times as long; in the model h is 1.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from fairseq.modules import TransformerSentenceEncoderLayer
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from macaron_fairseq.analysis import anatomy
from macaron_fairseq.analysis.anatomy import DECODER, ENCODER
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model.layers import MacaronDecoderLayer, MacaronEncoderLayer, prepend_source
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN, Operator, Step

# Layers are known by what they compute: a subclass with a `forward` of its own is another layer.
LAYERS = {
    MacaronEncoderLayer.forward,
    MacaronDecoderLayer.forward,
    TransformerEncoderLayerBase.forward,
    TransformerDecoderLayerBase.forward,
    TransformerSentenceEncoderLayer.forward,
}

# The recomputed layer may differ from the model's own by rounding only.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Sublayer:
    """One step within a layer."""

    operator: str  # or several with " + " between them
    step: float  # its size
    increment: Callable[..., Tensor]  # a(x, h), with 1 for h where it is not given
    norm: nn.Module | None  # after the sum, where the model is post-norm

    def step_alone(self, x: Tensor, h: float = 1.0) -> Tensor:
        """The state after the sub-layer, in post-norm before the LayerNorm."""
        return x + self.increment(x, h)

    def advance(self, x: Tensor, h: float = 1.0) -> Tensor:
        """The state after the sub-layer."""
        x = self.step_alone(x, h)
        return x if self.norm is None else self.norm(x)


@dataclass(frozen=True)
class Layer:
    """One layer as the model ran it on a sentence."""

    side: str  # ENCODER or DECODER
    number: int  # from 1
    sublayers: tuple[Sublayer, ...]
    state: Tensor  # before it, (time, 1, channel)
    module: Any
    given: dict[str, Any]  # the arguments of the module's call

    @property
    def is_pre_norm(self) -> bool:
        """Whether the state is not normalised between the sub-layers."""
        return all(sublayer.norm is None for sublayer in self.sublayers)

    def advance(self, x: Tensor, h: float = 1.0) -> Tensor:
        """The state after the layer if all steps are `h` times as long."""
        for sublayer in self.sublayers:
            x = sublayer.advance(x, h)
        return x

    def increment(self, x: Tensor, h: float = 1.0) -> Tensor:
        """By how much the layer changes the state x, post-norm LayerNorms included."""
        return self.advance(x, h) - x


def run(model: Any, source: Tensor, target: Tensor | None = None) -> list[Layer]:
    """Run a model on one sentence, without padding.

    Args:
        model: in evaluation mode.
        source: what the encoder reads, (time,).
        target: what the decoder reads, (time,), the end-of-sentence symbol first; None to run the
            encoder alone.

    Returns:
        The layers in order, the encoder's first.

    Raises:
        UserError: if a layer is none that is known here.
    """
    calls: list[Layer] = []
    layers = {side: model.get_submodule(name) for side, name in anatomy.stacks(model).items()}
    with torch.no_grad(), recording(ENCODER, layers[ENCODER], calls):
        if DECODER not in layers:
            model(source[None])
            return calls
        encoded = model.encoder(source[None], src_lengths=torch.tensor([len(source)]))
    if target is not None:
        with torch.no_grad(), recording(DECODER, layers[DECODER], calls):
            model.decoder(target[None], encoder_out=encoded, features_only=True)
    return calls


@contextmanager
def recording(side: str, layers: Iterable[nn.Module], calls: list[Layer]) -> Iterator[None]:
    """Append a `Layer` to `calls` for each call of one of those modules."""

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        number = 1 + sum(layer.side == side for layer in calls)
        layer = Layer(side, number, tuple(sublayers(module, given)), given["x"], module, given)
        after = output[0] if isinstance(output, tuple) else output
        if not (layer.state.isfinite().all() and after.isfinite().all()):
            raise UserError(
                f"the states of layer {number} of the {side} are not finite: the model has "
                "diverged, use an earlier checkpoint"
            )
        if (layer.advance(layer.state) - after).abs().max() > TOLERANCE * after.abs().max():
            raise UserError(
                f"layer {number} of the {side} computes more than its operators and LayerNorms, "
                "which is not supported"
            )
        calls.append(layer)

    hooks = [layer.register_forward_hook(record, with_kwargs=True) for layer in set(layers)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def sublayers(layer: Any, given: dict[str, Any]) -> Iterator[Sublayer]:
    """The sub-layers of a layer in order; `given` are the arguments of its call."""
    if not is_layer(layer):
        raise UserError(
            f"the model has layers of the class {type(layer).__name__}, which is not supported"
        )
    steps, substep = anatomy.steps_of(layer)
    has_source = given.get("encoder_out") is not None
    for step in steps:
        applied = [x for x in step.operators if has_source or x.kind != CROSS_ATTENTION]
        if not applied:
            continue

        def added(
            x: Tensor, h: float = 1.0, step: Step = step, applied: Sequence[Operator] = applied
        ) -> Tensor:
            def field(x: Tensor) -> Tensor:
                return reduce(torch.add, [apply(layer, given, operator, x) for operator in applied])

            size = h * step.size
            gate = layer.gate(step) if substep.is_gated else None
            return size * substep.slope(field, x, size, gate)

        norm = None if anatomy.is_pre_norm(layer) else anatomy.weights_of(layer, applied[0])[1]
        yield Sublayer(" + ".join(x.kind for x in applied), float(step.size), added, norm)


def is_layer(module: nn.Module) -> bool:
    """Whether a module is a layer that is known here, fairseq's own or this package's."""
    return type(module).forward in LAYERS


def apply(layer: Any, given: dict[str, Any], operator: Operator, x: Tensor) -> Tensor:
    """What an operator of a layer gives for a state, without padding and without dropout.

    Args:
        layer: in pre-norm, its LayerNorm comes before.
        given: the arguments of the layer's call.
        operator: one of the layer's.
        x: the state, (time, 1, channel).
    """
    network, layer_norm = anatomy.weights_of(layer, operator)
    y = layer_norm(x) if anatomy.is_pre_norm(layer) else x
    if operator.kind == FFN:
        return network.fc2(layer.activation_fn(network.fc1(y)))
    source = given.get("encoder_out")
    if operator.kind == CROSS_ATTENTION:
        return network(query=y, key=source, value=source, static_kv=True, need_weights=False)[0]
    keys, hidden = y, given.get("self_attn_mask", given.get("attn_mask"))
    if source is not None and getattr(layer, "cross_self_attention", False):
        keys, hidden, _ = prepend_source(y, source, None, hidden, None)
    return network(query=y, key=keys, value=keys, attn_mask=hidden, need_weights=False)[0]
