"""A model's layers on its way from input to output: their states, and the times they are at.

A Transformer integrates a system of particles in time (Lu et al. 2019, section 3). Layers of a deep
and of a shallow model meet at the same share of the whole time.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from macaron_fairseq.common.errors import UserError

SIDES = ENCODER, DECODER = "encoder", "decoder"
NONE = "none"  # no layers of a side

# Times are sums of steps; such a difference is rounding.
SAME_TIME = 1e-9

Pairs = list[tuple[int, int]]  # a student's layer and a teacher's, each from 1


def layers_of(model: Any) -> dict[str, Sequence[Any]]:
    """The layers of each side that a model has; a language model has a decoder alone.

    A recurrent or convolutional side has none of a Transformer's.
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


def width_of(layer: Any) -> int:
    """The width of a layer's states."""
    return layer.embed_dim


def times(layers: Sequence[Any]) -> list[float]:
    """At which share of the whole time a model is after each of its layers.

    The steps of a scheme say how long a layer takes. All layers of fairseq's take the same time.
    """
    spent = [
        sum(step.size * len(step.operators) for step in getattr(layer, "steps", ())) or 1.0
        for layer in layers
    ]
    return [x / sum(spent) for x in accumulate(spent)]


def match_in_time(student: Sequence[float], teacher: Sequence[float]) -> Pairs:
    """Each of the student's layers with that of the teacher's which is nearest in time.

    Of two that are as near it is the later one.

    Args:
        student: the `times` of its layers.
        teacher: those of the teacher's.
    """

    def nearest(time: float) -> int:
        distances = [abs(x - time) for x in teacher]
        least = min(distances) + SAME_TIME
        return max(i for i, distance in enumerate(distances, 1) if distance <= least)

    return [(i, nearest(time)) for i, time in enumerate(student, 1)]


def match_last(student: Sequence[float], teacher: Sequence[float]) -> Pairs:
    """The last layer of both; arguments as in `match_in_time`."""
    return [(len(student), len(teacher))]


def read_pairs(text: str, flag: str, side: str, student: int, teacher: int) -> Pairs:
    """Pairs of layers that a user named, "3:6,6:12", from the lowest up, each once.

    Args:
        text: STUDENT:TEACHER,...
        flag: where it was given.
        side: of the models.
        student: how many layers the student has.
        teacher: how many layers the teacher has.

    Raises:
        UserError: if it is something else, or a layer does not exist.
    """
    found = []
    for word in text.split(","):
        if not (match := re.fullmatch(r"\s*(\d+):(\d+)\s*", word)):
            raise UserError(
                f"{flag} {text} is not a list of layers: write STUDENT:TEACHER,..., as 3:6,6:12"
            )
        pair = int(match[1]), int(match[2])
        given = zip(("student", "teacher"), pair, (student, teacher), strict=True)
        for whose, number, most in given:
            if not 1 <= number <= most:
                raise UserError(
                    f"{flag} {text} names layer {number} of the {whose}'s {side}, which has "
                    f"layers 1 to {most}: name others, in --trajectory-{side}-layers where the "
                    "sides differ"
                )
        found.append(pair)
    return sorted({*found})


@dataclass(frozen=True)
class LayerPlan:
    """Which layers of student and teacher meet, as a user asks for it; "" leaves it open."""

    layers: str = ""  # STUDENT:TEACHER,... of both sides
    encoder_layers: str = ""  # of the encoder, where they are others; "none" leaves a side out
    decoder_layers: str = ""

    def named(self) -> list[str]:
        """The flags that ask for other than what is done by default."""
        return [
            "--trajectory-" + x.name.replace("_", "-")
            for x in fields(self)
            if getattr(self, x.name) != x.default
        ]

    def pairs(
        self,
        student: Any,
        teacher: Any,
        match: Callable[[Sequence[float], Sequence[float]], Pairs] = match_in_time,
    ) -> dict[str, Pairs]:
        """Which layers meet, on each side that both models have.

        Args:
            student: a model of the student's sizes.
            teacher: a model.
            match: which layers meet where none were named, by their `times`.

        Raises:
            UserError: if layers that were named do not exist, or none meet.
        """
        found: dict[str, Pairs] = {}
        sides = layers_of(student), layers_of(teacher)
        for side in SIDES:
            own = getattr(self, f"{side}_layers")
            asked = own or self.layers
            if own not in ("", NONE) and not all(side in x for x in sides):
                raise UserError(
                    f"--trajectory-{side}-layers {own} has no effect, since one of the models has "
                    f"no {side}: leave it out"
                )
            if side not in sides[0] or side not in sides[1] or asked == NONE:
                continue
            ours, theirs = (x[side] for x in sides)
            if asked:
                flag = f"--trajectory-{side}-layers" if own else "--trajectory-layers"
                found[side] = read_pairs(asked, flag, side, len(ours), len(theirs))
            else:
                found[side] = match(times(ours), times(theirs))
        if not found:
            raise UserError(
                "no layers of student and teacher meet: name some in --trajectory-layers instead "
                "of none"
            )
        return found


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
        """The state after a side's layer, counted from 1; (batch, length, channel).

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
    """Keep the states of the passes of a model, without its final LayerNorm; the last pass counts.

    Raises:
        UserError: if it is no Transformer.
    """
    states = States()
    sides = layers_of(model)
    if not sides:
        raise UserError(
            f"a {type(model).__name__} has no layers to follow: use --trajectory-weight 0"
        )

    def keep(side: str, number: int, module: nn.Module, inputs: Any, output: Any) -> None:
        states.after[side][number] = output[0] if isinstance(output, tuple) else output

    hooks = [
        layer.register_forward_hook(partial(keep, side, number))
        for side, layers in sides.items()
        for number, layer in enumerate(layers, 1)
    ]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()
