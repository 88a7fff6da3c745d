"""The layers of a model, and the states that a pass goes through. `layer_plan` pairs layers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from macaron_fairseq.common.errors import UserError

SIDES = ENCODER, DECODER = "encoder", "decoder"


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


class States:
    """The states that one pass of a model went through, side by side."""

    def __init__(self) -> None:
        self.after: dict[str, dict[int, Tensor]] = {side: {} for side in SIDES}

    def raw(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Tensor]:
        """The states after some layers that ran, (length, batch, channel)."""
        return {(side, number): self.after[side][number] for side, number in places}

    @classmethod
    def of(cls, found: Mapping[tuple[str, int], Tensor]) -> "States":
        """Those that `raw` gave."""
        states = cls()
        for (side, number), state in found.items():
            states.after[side][number] = state
        return states

    def __getitem__(self, place: tuple[str, int]) -> Tensor:
        """The state after a side's layer, counted from 1, see `recorded`; (batch, length, channel).

        Raises:
            KeyError: if the layer did not run; `refuse_layer_dropout` has refused what lets it.
        """
        side, number = place
        return self.after[side][number].transpose(0, 1)

    def are_finite(self) -> bool:
        """Whether none holds NaN or infinity."""
        return all(bool(x.isfinite().all()) for side in self.after.values() for x in side.values())


@contextmanager
def recorded(model: nn.Module) -> Iterator[States]:
    """Keep the states of the passes of a model; the last pass counts.

    That of a side's last layer is the one after its final LayerNorm, if it has one. So the authors
    of MTA and the teachers of SRA have it: Hugging Face's last hidden state is normalised.

    Raises:
        UserError: if it is no Transformer.
    """
    states = States()
    sides = layers_of(model)
    if not sides:
        raise UserError(
            f"a {type(model).__name__} has no layers to follow: translation models and causal "
            "language models have"
        )

    def keep(side: str, number: int, module: nn.Module, inputs: Any, output: Any) -> None:
        states.after[side][number] = output[0] if isinstance(output, tuple) else output

    hooks = [
        layer.register_forward_hook(partial(keep, side, number))
        for side, layers in sides.items()
        for number, layer in enumerate(layers, 1)
    ]

    def keep_last(side: str, number: int, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if number in states.after[side]:  # or else the layer was left out
            states.after[side][number] = output

    for side, layers in sides.items():
        if norm := getattr(getattr(model, side), "layer_norm", None):
            hooks.append(norm.register_forward_hook(partial(keep_last, side, len(layers))))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()
