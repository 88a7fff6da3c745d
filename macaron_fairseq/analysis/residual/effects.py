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
from macaron_fairseq.analysis.residual.rows import MatrixRow
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

    def jacobians(self, place: Place) -> Floats:
        """Those of a layer, (tokens, d, d)."""
        side, number = place
        return self.sides[side][number - 1].whole.jacobians

    def states_before(self, place: Place) -> Floats:
        """The states of all tokens before a layer, (tokens, d)."""
        side, number = place
        return self.states[side][number - 1]

    def bits_without(self, parts: Mapping[Place, Floats]) -> float:
        """The bits per token without these parts."""
        with interventions.removing(self.model, self.removals(parts)):
            return likelihood.bits_per_token(self.model, self.read, self.data)

    def without(self, name: str, places: Sequence[Place]) -> dict[str, float | None]:
        """What comes of removing a part of some layers.

        Args:
            name: of `interventions.PARTS`.
            places: the layers.

        Returns:
            bits: per token; `bits_added` is the difference from the whole model.
            control_bits_added: the same of `interventions.control`, a random map.
            bits_over_control: `bits_added` less `control_bits_added`. Its interval over runs is
                that of pairs, and tests the part against its control.
            equal_bits_added and rest_bits_added: of the part, and of the rest of what the layers
                add, M - I - N, as `interventions.equally_far` makes them.
            bits_over_rest: the first less the second, as above.
            size: |N| / |M - I| with Frobenius norms, over all these layers: how much of the mean
                map is removed.
            noise: the share of |M - I|^2 that comes of the choice of tokens, see `noise_share`.
            layer_* and product_*: the figures of `OF_LAYERS` and `OF_PRODUCT`, means over tokens.
            layer_coupling: of these layers' Jacobians with the communities of the whole model, the
                mean over layers; see `topology.coupling_of`.
            intact_layer_* and intact_product_*: the same of the whole model.
        """
        means = {place: self.jacobians(place).mean(axis=0) for place in places}
        parts = {place: PARTS[name](mean) for place, mean in means.items()}
        removals = self.removals(parts)
        added = {place: mean - np.eye(len(mean)) for place, mean in means.items()}
        equal, rest, control = {}, {}, {}
        for place, part in parts.items():
            states, others = self.states_before(place), added[place] - part
            equal[place], rest[place] = interventions.equally_far(part, others, states)
            control[place] = interventions.control(part, states, self.draw(place))
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
        control_bits, equal_bits, rest_bits = map(self.bits_without, (control, equal, rest))
        jacobians = [self.jacobians(place) for place in places]
        return {
            "bits": bits,
            "bits_added": bits - self.bits,
            "control_bits_added": control_bits - self.bits,
            "bits_over_control": bits - control_bits,
            "equal_bits_added": equal_bits - self.bits,
            "rest_bits_added": rest_bits - self.bits,
            "bits_over_rest": equal_bits - rest_bits,
            "size": frobenius(parts.values()) / frobenius(added.values()),
            "noise": noise_share(jacobians),
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
            place: Removal(part, self.states_before(place).mean(axis=0))
            for place, part in parts.items()
        }


def frobenius(matrices: Iterable[Floats]) -> float:
    """The Frobenius norm of several matrices together, of any sizes."""
    return math.hypot(*(np.linalg.norm(x) for x in matrices))


def noise_share(jacobians: Sequence[Floats]) -> float | None:
    """The share of |M - I|^2, over layers, that the choice of the tokens makes.

    None of one token, and of layers that add nothing.

    M is a mean of n Jacobians A. It is as far from that of all tokens as sum |A - M|^2 / n / (n-1)
    says, which is unbiased.

    Args:
        jacobians: of each layer, (tokens, d, d).
    """
    n, means = len(jacobians[0]), [x.mean(axis=0) for x in jacobians]
    whole = frobenius(x - np.eye(len(x)) for x in means) ** 2
    if n < 2 or not whole:
        return None
    scatter = frobenius(x - mean for x, mean in zip(jacobians, means, strict=True)) ** 2
    return scatter / n / (n - 1) / whole


def spectrum(sides: Sides, places: Sequence[Place]) -> dict[str, float | None]:
    """Figures of some layers, and of the product of all layers of their sides.

    Means over tokens, of what is finite; None without any.
    """
    wholes = [sides[side][number - 1].whole for side, number in places]
    layers = [rows.filled(MatrixRow("", one.layer, ""), one) for one in wholes]
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
