"""What a model's layers do to the tokens of a sentence, of fairseq's layers and of this package's.

A sub-layer is one step of a layer along an operator, or along the sum of several. It turns the
state x, (time, 1, channel), into

    x + a(x, h)                   pre-norm
    LayerNorm(x + a(x, h))        post-norm

where the increment a holds the operator, its LayerNorm in pre-norm, the sub-step that integrates it
and its step. The step is made h times as long; in the model h is 1.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from macaron_fairseq.analysis import anatomy, integrators
from macaron_fairseq.analysis.anatomy import DECODER, ENCODER
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model.incremental import prepend_source
from macaron_fairseq.model.layers import SplittingLayer
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN, Operator, step

# The recomputed layer may differ from the model's own by rounding only.
TOLERANCE = 1e-3

RADIAN = 180 / torch.pi


@dataclass(frozen=True)
class Sublayer:
    """One step within a layer."""

    operator: str  # or several with " + " between them
    step: float  # its size
    increment: Callable[..., Tensor]  # a(x, h), with 1 for h where it is not given
    norm: nn.Module | None  # after the sum, where the model is post-norm
    operators: tuple[Operator, ...] = ()  # those that it is along

    @property
    def title(self) -> str:
        """The operator, with its step where that is not 1: "ffn 1/2"."""
        step = splitting.as_fraction(self.step, 4)
        return self.operator if self.step == 1 else f"{self.operator} {step}"

    def step_alone(self, x: Tensor, h: float = 1.0) -> Tensor:
        """The state after the sub-layer, in post-norm before the LayerNorm."""
        return x + self.increment(x, h)

    def advance(self, x: Tensor, h: float = 1.0) -> Tensor:
        """The state after the sub-layer."""
        return self.normalized(self.step_alone(x, h))

    def normalized(self, x: Tensor) -> Tensor:
        """The state x after the LayerNorm that follows the sum, if there is one."""
        return x if self.norm is None else self.norm(x)


@dataclass(frozen=True)
class Layer:
    """One layer as the model ran it on a sentence."""

    side: str  # ENCODER or DECODER
    number: int  # from 1
    state: Tensor  # before it, (time, 1, channel)
    module: Any
    given: dict[str, Any]  # the arguments of the module's call

    @property
    def is_pre_norm(self) -> bool:
        """Whether the state is not normalised between the sub-layers."""
        return anatomy.is_pre_norm(self.module)

    @cached_property
    def sublayers(self) -> list[Sublayer]:
        """The sub-layers in order."""
        has_source = self.given.get("encoder_out") is not None
        steps, substep = anatomy.steps_of(self.module)
        found = []
        for whole in steps:
            applied = [x for x in whole.operators if has_source or x.kind != CROSS_ATTENTION]
            if not applied:
                continue
            gate = anatomy.gates_of(self.module).get(whole.operators)
            _, after = anatomy.weights_of(self.module, applied[0])
            found.append(
                Sublayer(
                    " + ".join(x.kind for x in applied),
                    float(whole.size),
                    partial(
                        integrators.increment, step(whole.size, *applied), self.apply, substep, gate
                    ),
                    None if self.is_pre_norm else after,
                    tuple(applied),
                )
            )
        return found

    def advance(self, x: Tensor, h: float = 1.0) -> Tensor:
        """The state after the layer if all steps are `h` times as long."""
        for sublayer in self.sublayers:
            x = sublayer.advance(x, h)
        return x

    def increment(self, x: Tensor, h: float = 1.0) -> Tensor:
        """By how much the layer changes the state x, post-norm LayerNorms included."""
        return self.advance(x, h) - x

    def apply(self, operator: Operator, x: Tensor) -> Tensor:
        """What an operator gives for the state x, without padding and without dropout.

        In pre-norm, its LayerNorm comes before.
        """
        if operator.kind == FFN:
            network, y = self.input_of(operator, x)
            if isinstance(self.module, SplittingLayer):
                return self.module.feed_forward(network, y)
            return network.fc2(self.module.activation_fn(network.fc1(y)))
        # Not with static_kv=True as the model's cross-attention, which changes nothing here but
        # that fairseq's would take its softmax in fp32, whatever the precision of the rest.
        return self.attend(operator, x, need_weights=False)[0]

    def attention(self, operator: Operator, x: Tensor) -> Tensor:
        """How much each token attends to each, by head, in the state x: (heads, time, key time).

        Each row sums to one. The keys of cross-attention are the source's tokens; those of a
        decoder with `--cross-self-attention` are the source's, then its own.
        """
        # fairseq's attention gives heads apart only off PyTorch's path, which static_kv leaves.
        weights = self.attend(operator, x, need_head_weights=True, static_kv=True)[1]
        assert weights is not None
        return weights[:, 0]

    def attend(self, operator: Operator, x: Tensor, **wanted: bool) -> tuple[Tensor, Tensor | None]:
        """What an attention gives for the state x, with the arguments `wanted` of fairseq's."""
        network, y = self.input_of(operator, x)
        source = self.given.get("encoder_out")
        if operator.kind == CROSS_ATTENTION:
            return network(query=y, key=source, value=source, **wanted)
        keys, hidden = y, self.given.get("self_attn_mask", self.given.get("attn_mask"))
        if source is not None and getattr(self.module, "cross_self_attention", False):
            keys, hidden, _ = prepend_source(y, source, None, hidden, None)
        return network(query=y, key=keys, value=keys, attn_mask=hidden, **wanted)

    def input_of(self, operator: Operator, x: Tensor) -> tuple[Any, Tensor]:
        """The network of an operator, and what it reads in the state x."""
        network, layer_norm = anatomy.weights_of(self.module, operator)
        return network, layer_norm(x) if self.is_pre_norm else x


def run(model: Any, source: Tensor, target: Tensor | None = None) -> list[Layer]:
    """Run a model on one sentence, without padding, on the model's device.

    Args:
        model: in evaluation mode.
        source: what the encoder reads, (time,), or a language model.
        target: what the decoder reads, (time,), the end-of-sentence symbol first; None to run the
            encoder alone.

    Returns:
        The layers in order, the encoder's first.

    Raises:
        UserError: if it has no such layers, or one that is not known here.
    """
    if not anatomy.stacks(model):
        raise UserError(
            f"a {type(model).__name__} has no encoder or decoder of fairseq's: see "
            "jacobians.own_block for the Jacobian of any function"
        )
    calls: list[Layer] = []
    device = next(model.parameters()).device
    source = source.to(device)
    layers = {side: model.get_submodule(name) for side, name in anatomy.stacks(model).items()}
    if ENCODER not in layers:  # a causal language model
        with torch.no_grad(), recording(DECODER, layers[DECODER], calls):
            model(source[None])
        return calls
    with torch.no_grad(), recording(ENCODER, layers[ENCODER], calls):
        if DECODER not in layers:
            model(source[None], features_only=True)  # a classifier has no more
            return calls
        encoded = model.encoder(source[None], src_lengths=source.new_tensor([len(source)]))
    if target is not None:
        with torch.no_grad(), recording(DECODER, layers[DECODER], calls):
            model.decoder(target[None].to(device), encoder_out=encoded, features_only=True)
    return calls


def by_side(layers: Iterable[Layer]) -> dict[str, list[Layer]]:
    """The layers of each side, in order."""
    found: dict[str, list[Layer]] = {}
    for layer in layers:
        found.setdefault(layer.side, []).append(layer)
    return found


@contextmanager
def recording(side: str, layers: Iterable[nn.Module], calls: list[Layer]) -> Iterator[None]:
    """Append a `Layer` to `calls` for each call of one of those modules."""

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not anatomy.is_layer(module):
            raise UserError(
                f"the model has layers of the class {type(module).__name__}, which is not supported"
            )
        given = anatomy.signature(module).bind(module, *args, **kwargs).arguments
        number = 1 + sum(layer.side == side for layer in calls)
        layer = Layer(side, number, given["x"], module, given)
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

    hooks = [
        # Before others, which may change what the layer gives.
        layer.register_forward_hook(record, prepend=True, with_kwargs=True)
        for layer in set(layers)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# --- how far the tokens move ---------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """One sub-layer, or one layer, at work on a sentence: all are (tokens, channel)."""

    before: Tensor
    added: Tensor  # in post-norm before the LayerNorm
    after: Tensor


def moves(layer: Layer) -> Iterator[tuple[Sublayer, Move]]:
    """What each sub-layer of the layer does, in order."""
    x = layer.state
    for sublayer in layer.sublayers:
        added = sublayer.increment(x)
        after = sublayer.normalized(x + added)
        yield sublayer, Move(x[:, 0], added[:, 0], after[:, 0])
        x = after


def step_figures(move: Move) -> dict[str, Tensor]:
    """How far a sub-layer moves each token; each is (tokens,).

    Returns:
        step: |a| / |x|, what is added relative to the state.
        step_cosine: the cosine of a and x: 1 lengthens, 0 turns, -1 shortens; NaN of what adds
            nothing.
        velocity: |P a| / |x|, with P the projection to the tangent space at x: the speed of x/|x|
            on the unit sphere, in radians per sub-layer.
        turn: the angle between the states before and after, in degrees, post-norm LayerNorms
            included.
    """
    x, a = move.before.double(), move.added.double()
    length = x.norm(dim=-1)
    direction = x / length[:, None]
    radial = (a * direction).sum(-1, keepdim=True)
    # The arc sine of half the chord is exact where the arc cosine is not, at small angles.
    after = move.after.double()
    chord = (after / after.norm(dim=-1, keepdim=True) - direction).norm(dim=-1)
    return {
        "step": a.norm(dim=-1) / length,
        "step_cosine": radial.squeeze(-1) / a.norm(dim=-1),
        "velocity": (a - radial * direction).norm(dim=-1) / length,
        "turn": 2 * RADIAN * torch.asin((chord / 2).clamp(max=1)),
    }
