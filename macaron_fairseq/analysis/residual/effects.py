"""What one model does with parts of its layers removed: its loss, and its spectra."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from macaron_fairseq.analysis import likelihood
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.residual import depth, interventions, rows, topology
from macaron_fairseq.analysis.residual.coupling import Choices, Placed
from macaron_fairseq.analysis.residual.depth import Sides
from macaron_fairseq.analysis.residual.interventions import PARTS, Place, Removal
from macaron_fairseq.analysis.residual.rows import RowFigures
from macaron_fairseq.analysis.running_statistics import finite_mean
from macaron_fairseq.analysis.sentences import Data, Sentence

# Of the layers that lose a part, and of the product of all layers of their side.
OF_LAYERS = ("complex", "rotation", "henrici", "asymmetry", "norm")
OF_PRODUCT = ("henrici", "asymmetry", "norm", "effective_rank", "lyapunov_largest")


@dataclass
class Ablation:
    """A model that is to lose parts, and what is known of it before."""

    model: Any  # in fp64
    sides: Sides
    read: Sequence[Sentence]
    data: Data
    tokens: int
    seed: int  # of the tokens, and with the run of the controls
    run: int  # its number: each run, and each layer, has a control of its own
    states: Mapping[str, Sequence[Floats]]  # before each layer, (tokens, d), by side
    placed: Mapping[str, Sequence[Placed]]  # communities by side: `topology.placed_by_layer`
    choices: Choices

    @cached_property
    def bits(self) -> float:
        """Its bits per token as it is."""
        return likelihood.bits_per_token(self.model, self.read, self.data)

    def mean_jacobian(self, place: Place) -> Floats:
        """That of a layer, over the tokens."""
        side, number = place
        return self.sides[side][number - 1].whole.jacobians.mean(axis=0)

    def without(self, name: str, places: Sequence[Place]) -> dict[str, float | None]:
        """What comes of removing a part of some layers.

        Args:
            name: of `interventions.PARTS`.
            places: the layers.

        Returns:
            bits: per token; `bits_added` is the difference from the whole model.
            control_bits_added: the same of the control, `interventions.rotated`.
            bits_over_control: `bits_added` less `control_bits_added`. Its interval over runs is
                that of pairs, and tests the part against its control.
            size: |N| / |M - I| with Frobenius norms, over all these layers: how much of what they
                add is removed.
            layer_* and product_*: the figures of `OF_LAYERS` and `OF_PRODUCT`, means over tokens.
            layer_coupling: of these layers' Jacobians with the communities of the whole model, the
                mean over layers; see `topology.coupling_of`.
            intact_layer_* and intact_product_*: the same of the whole model.
        """
        means = {place: self.mean_jacobian(place) for place in places}
        parts = {place: PARTS[name](mean) for place, mean in means.items()}
        removals = self.removals(parts)
        control = self.removals(
            {place: interventions.rotated(part, self.draw(place)) for place, part in parts.items()}
        )
        added = [mean - np.eye(len(mean)) for mean in means.values()]
        with interventions.removing(self.model, removals):
            bits = likelihood.bits_per_token(self.model, self.read, self.data)
            sides = depth.along_depth(
                self.model,
                self.read,
                self.tokens,
                self.seed,
                removed=removals,
                has_sublayers=False,
            )
        with interventions.removing(self.model, control):
            control_bits = likelihood.bits_per_token(self.model, self.read, self.data)
        return {
            "bits": bits,
            "bits_added": bits - self.bits,
            "control_bits_added": control_bits - self.bits,
            "bits_over_control": bits - control_bits,
            "size": frobenius(parts.values()) / frobenius(added),
            **spectrum(sides, places),
            "layer_coupling": topology.coupling_of(sides, self.placed, places, self.choices),
            **{f"intact_{key}": x for key, x in spectrum(self.sides, places).items()},
            "intact_layer_coupling": topology.coupling_of(
                self.sides, self.placed, places, self.choices
            ),
        }

    def draw(self, place: Place) -> tuple[int, ...]:
        """The seed of a layer's control."""
        side, number = place
        return self.seed, self.run, [*self.sides].index(side), number

    def removals(self, parts: Mapping[Place, Floats]) -> dict[Place, Removal]:
        """Removals of these parts, each around the mean state before its layer."""
        return {
            (side, number): Removal(part, self.states[side][number - 1].mean(axis=0))
            for (side, number), part in parts.items()
        }


def frobenius(matrices: Iterable[Floats]) -> float:
    """The Frobenius norm of several matrices together, of any sizes."""
    return math.hypot(*(np.linalg.norm(x) for x in matrices))


def spectrum(sides: Sides, places: Sequence[Place]) -> dict[str, float | None]:
    """Figures of some layers, and of the product of all layers of their sides.

    Means over tokens, of what is finite; None without any.
    """
    wholes = [sides[side][number - 1].whole for side, number in places]
    layers = [rows.filled(RowFigures("", one.layer, ""), one) for one in wholes]
    products = [
        rows.products_of([layer.whole for layer in sides[side]], only_last=True)[0]
        for side in dict.fromkeys(side for side, _ in places)
    ]
    return {
        f"{what}_{name}": finite_mean(x for row in found for x in row.figures[name])
        for what, found, names in (
            ("layer", layers, OF_LAYERS),
            ("product", products, OF_PRODUCT),
        )
        for name in names
    }
