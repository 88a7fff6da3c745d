"""Which layers of a student and its teacher meet: those that a user names, or by their times.

A Transformer integrates a system of particles in time (Lu et al. 2019, section 3). Layers of a deep
and of a shallow model meet at the same share of the whole time.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.distillation.layers import SIDES, layers_of

NONE = "none"  # no layers of a side

# Times are sums of steps; such a difference is rounding.
SAME_TIME = 1e-9

Pairs = list[tuple[int, int]]  # a student's layer and a teacher's, each from 1


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
        for model, of_model in zip((student, teacher), sides, strict=True):
            if not of_model:
                raise UserError(
                    f"a {type(model).__name__} has no layers that could meet others: take a loss "
                    "that compares none"
                )
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
