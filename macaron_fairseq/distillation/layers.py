"""The layers of a model, and the states that a pass goes through. `layer_plan` pairs layers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from macaron_fairseq.common.errors import UserError

SIDES = ENCODER, DECODER = "encoder", "decoder"

Place = tuple[str, int]  # a side of a model, and the number of a layer, from 1
States = dict[Place, Tensor]  # after layers, (batch, length, channel)


def layers_of(model: Any) -> dict[str, Sequence[Any]]:
    """The layers of each side that a model has; a language model has a decoder alone.

    A recurrent side has none, nor one of fairseq's fully convolutional models. Layers of dynamic
    convolution count, which have a width but no self-attention.
    """
    sides: dict[str, Any] = {side: getattr(model, side, None) for side in SIDES}
    # Going through fairseq's list in training would leave out the layers that dropout leaves out.
    found = {
        side: [x.layers[i] for i in range(len(x.layers))]
        for side, x in sides.items()
        if hasattr(x, "layers")
    }
    return {side: x for side, x in found.items() if all(hasattr(y, "embed_dim") for y in x)}


def read_by(side: str, inputs: Mapping[str, Tensor]) -> Tensor:
    """The tokens that a side reads, (batch, length); in a language model those are the source."""
    is_source = side == ENCODER or "prev_output_tokens" not in inputs
    return inputs["src_tokens" if is_source else "prev_output_tokens"]


def refuse_layer_dropout(model: Any, side: str) -> None:
    """Raise a `UserError` if all layers of a side can be left out, so that no state is known."""
    found = getattr(getattr(model, side), "layers", None)
    if getattr(found, "p", 0) > 0:
        raise UserError(
            f"--{side}-layerdrop can leave out every layer of the student's {side}, which should "
            f"follow the teacher's: give --{side}-layerdrop 0"
        )


@contextmanager
def recorded(model: nn.Module, places: Collection[Place]) -> Iterator[States]:
    """Keep the states after some layers of the passes of a model; the last pass counts.

    That of a side's last layer is the one after its final LayerNorm, if it has one. So the authors
    of MTA and the teachers of SRA have it: Hugging Face's last hidden state is normalised. A layer
    that did not run has none; `refuse_layer_dropout` has refused what lets it.

    Raises:
        UserError: if it is no Transformer, and there are places.
    """
    states: States = {}
    sides = layers_of(model)
    if places and not sides:
        raise UserError(
            f"a {type(model).__name__} has no layers to follow: translation models and causal "
            "language models have"
        )

    def keep(place: Place, module: nn.Module, inputs: Any, output: Any) -> None:
        state = output[0] if isinstance(output, tuple) else output
        states[place] = state.transpose(0, 1)

    def keep_last(place: Place, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if place in states:  # or else the layer was left out
            keep(place, module, inputs, output)

    hooks = []
    for side, number in places:
        layer = sides[side][number - 1]
        hooks.append(layer.register_forward_hook(partial(keep, (side, number))))
        norm = getattr(getattr(model, side), "layer_norm", None)
        if norm is not None and number == len(sides[side]):
            hooks.append(norm.register_forward_hook(partial(keep_last, (side, number))))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()
