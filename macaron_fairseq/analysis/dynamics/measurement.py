"""All measures of trained models on sentences (`macaron-fairseq dynamics`).

They are collected one sentence at a time: alone it needs no padding, and memory is that of the
longest one. All figures are kept as running sums, see `running_statistics`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from macaron_fairseq.analysis import (
    JACOBIAN_SENTENCES,
    jacobians,
    local_error,
    measures,
    output,
    sampling,
    trajectories,
)
from macaron_fairseq.analysis.by_layer import LAYER, sublayer_rows
from macaron_fairseq.analysis.dynamics import sentence_views
from macaron_fairseq.analysis.models import TrainedModel, refuse_other_sides
from macaron_fairseq.analysis.running_statistics import CosineAcross, Histogram, Running, rounded
from macaron_fairseq.analysis.sentences import Sample, Sentence
from macaron_fairseq.analysis.trajectories import Layer, Move
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar, following
from macaron_fairseq.schemes import splitting

TITLE = "Dynamics of trained models"

ALMOST_ONE = 0.999
BINS = 80

STEPS = local_error.halved(1.0, times=2)
ERRORS = [f"local_error_{splitting.as_fraction(h)}" for h in STEPS]


@dataclass(frozen=True)
class Settings:
    """What the measures depend on.

    Raises:
        UserError: if a number is out of its range.
    """

    threshold: float = 0.9  # the cosine above which two tokens belong to one cluster
    beta: float = 1.0  # of the energy
    jacobian_sentences: int = JACOBIAN_SENTENCES
    shown_sentences: int = 8  # one by one, see `sentence_views`
    seed: int = 1

    def __post_init__(self) -> None:
        if not -1 <= self.threshold <= 1:
            raise UserError(f"threshold {self.threshold} is not a cosine: give one from -1 to 1")
        if not 0 < self.beta < math.inf:
            raise UserError(f"beta {self.beta} should be above 0 and finite")
        for name in ("jacobian_sentences", "shown_sentences"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} {getattr(self, name)} should be 0 or more")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed {self.seed} should be from 0 to below 2^32")


@dataclass
class RowFigures:
    """The figures of one state and of the sub-layer that led to it, or of one layer."""

    name: str
    layer: int  # from 1; 0 for the input
    time: float  # in layers
    operator: str | None
    occurrence: int = 1  # of the operator in the layer
    step: float | None = None
    figures: dict[str, Running] = field(default_factory=lambda: defaultdict(Running))
    cosines: Histogram = field(default_factory=lambda: Histogram(BINS))
    across: CosineAcross = field(default_factory=CosineAcross)

    def add(self, figures: Mapping[str, ArrayLike]) -> None:
        """Add the figures of one sentence."""
        for name, values in figures.items():
            self.figures[name].add(values)

    def summary(self) -> dict[str, Any]:
        """What goes into the JSON file."""
        result: dict[str, Any] = {
            "name": self.name,
            "layer": self.layer,
            "time": rounded(self.time),
            "operator": self.operator,
            "occurrence": self.occurrence,
            "step": self.step,
            "figures": {name: running.figures() for name, running in self.figures.items()},
        }
        errors = [self.figures[name].mean for name in ERRORS if name in self.figures]
        if errors:
            slope = local_error.slope(STEPS, errors, local_error.RESOLVED_IN_FP32)
            result["local_error_slope"] = None if slope is None else rounded(slope)
        if self.cosines.counts.any():
            result["cosine_histogram"] = self.cosines.counts.tolist()
            result["cosine_quantiles"] = {
                str(q): self.cosines.quantile(q) for q in (0.05, 0.5, 0.95)
            }
        if self.across.count:
            result["cosine_across"] = self.across.mean()
        return result


@dataclass
class SideFigures:
    """The rows of an encoder or a decoder."""

    name: str
    norm: str  # "pre" or "post"
    states: list[RowFigures]  # the input's, then one for each sub-layer
    layers: list[RowFigures]

    def summary(self) -> dict[str, Any]:
        """What goes into the JSON file."""
        return {
            "side": self.name,
            "norm": self.norm,
            "states": [row.summary() for row in self.states],
            "layers": [row.summary() for row in self.layers],
        }


def compare(
    models: Sequence[TrainedModel],
    sample: Sample,
    settings: Settings,
    title: str = TITLE,
) -> dict[str, Any]:
    """All figures of several models on the same sentences.

    Args:
        models: see `models.load`.
        sample: see `sentences.read`.
        settings: see there.
        title: of the page.

    Returns:
        What goes into dynamics.json, and next to it `views`: for each of the sentences that are
        shown one by one, a `sentence_views.View` of each model.

    Raises:
        UserError: if models have layers on different sides, a sentence is too long for one, the
            data are not what it was trained for (see `TrainedModel.check`), or `measure` raises it.
    """
    refuse_other_sides(models)
    count = min(settings.jacobian_sentences, len(sample.sentences))
    bits = [model.check(sample) for model in models]
    reads = [model.to_read(sample) for model in models]
    shown = sentence_views.readable(reads, settings.shown_sentences, sentence_views.LARGEST)
    settings = replace(settings, jacobian_sentences=count, shown_sentences=len(shown))
    summaries, views = [], []
    for model, bits_per_token, read in zip(models, bits, reads, strict=True):
        with bar(model.label, total=len(read) + count, leave=False) as done:
            sides = measure(model.runnable(), read, settings, done.update)
        one_by_one = following(shown, f"{model.label}, single sentences")
        views.append(
            [sentence_views.look(model.runnable(), read[i], sample.data) for i in one_by_one]
        )
        summaries.append({**model.description(), "bits_per_token": bits_per_token, "sides": sides})
    return {
        "title": title,
        **output.provenance(),
        "data": sample.description(),
        "settings": asdict(settings),
        "models": summaries,
        "views": [*zip(*views, strict=True)],
    }


def measure(
    model: Any,
    sentences: Sequence[Sentence],
    settings: Settings,
    done: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """All figures of a model.

    Args:
        model: in evaluation mode, its parameters frozen.
        sentences: what to run it on.
        settings: see there.
        done: called once for each sentence, and once more for each that Jacobians are taken at,
            see `sampling.evenly`.

    Returns:
        The summaries of the model's sides.

    Raises:
        UserError: if the model has layers that are not known, or the model has diverged.
    """
    sides: dict[str, SideFigures] = {}
    for sentence in sentences:
        layers = trajectories.run(model, sentence.source, sentence.target)
        for name, of_side in trajectories.by_side(layers).items():
            side = sides.setdefault(name, new_side(of_side))
            add_states(side, of_side, settings)
        done()
    starts = torch.Generator().manual_seed(settings.seed)
    at = sampling.evenly(len(sentences), settings.jacobian_sentences)
    for i, places in zip(at, sampling.drawn_places(len(at), settings.seed), strict=True):
        for layer in trajectories.run(model, sentences[i].source, sentences[i].target):
            token = int(places[layer.side] * len(layer.state))
            add_jacobians(sides[layer.side], layer, token, starts)
        done()
    return [side.summary() for side in sides.values()]


def new_side(layers: Sequence[Layer]) -> SideFigures:
    """Rows for these layers, without figures yet."""
    states = [RowFigures("input", 0, 0.0, None)]
    states += [
        RowFigures(name, layer.number, time, x.operator, occurrence, x.step)
        for layer in layers
        for x, name, time, occurrence in sublayer_rows(layer.number, layer.sublayers)
    ]
    whole = [RowFigures(f"layer {x.number}", x.number, float(x.number), LAYER) for x in layers]
    return SideFigures(layers[0].side, "pre" if layers[0].is_pre_norm else "post", states, whole)


def add_states(side: SideFigures, layers: Sequence[Layer], settings: Settings) -> None:
    """Add the figures of one sentence's states, steps and local errors."""
    rows = iter(side.states)
    add_state(next(rows), layers[0].state[:, 0], settings)
    for layer, whole in zip(layers, side.layers, strict=True):
        for sublayer, move in trajectories.moves(layer):
            row = next(rows)
            add_state(row, move.after, settings)
            row.add(arrays(trajectories.step_figures(move)))
            # In post-norm without the LayerNorm, which is no part of the step.
            add_errors(row, sublayer.step_alone, move.before[:, None])
        added = layer.increment(layer.state)[:, 0]
        before = layer.state[:, 0]
        whole.add(arrays(trajectories.step_figures(Move(before, added, before + added))))
        if layer.is_pre_norm:  # in post-norm, a layer without steps would still normalise
            add_errors(whole, layer.advance, layer.state)


def add_state(row: RowFigures, points: Tensor, settings: Settings) -> None:
    """Add the measures of one sentence's tokens, (tokens, channel)."""
    row.add({"norm": (points.norm(dim=-1) / points.shape[-1] ** 0.5).cpu().numpy()})
    if len(points) < 2:
        return
    x = points.double().cpu().numpy()
    row.across.add(measures.directions(x))
    cosines = measures.cosines(x)
    row.cosines.add(cosines)
    groups = measures.clusters(x, settings.threshold)
    rank = measures.effective_rank(x)
    row.add(
        {
            "cosine": cosines,
            "almost_one": measures.share_above(x, ALMOST_ONE),
            "clusters": groups,
            "clusters_per_token": groups / len(x),
            "effective_rank": rank,
            "effective_rank_per_token": rank / len(x),
            "participation_ratio": measures.participation_ratio(x),
            "energy": measures.energy(x, settings.beta),
        }
    )


def add_errors(row: RowFigures, advance: Callable[[Tensor, float], Tensor], x: Tensor) -> None:
    """Add the local errors of one sentence's tokens."""
    errors = local_error.by_halving(advance, x, STEPS)
    row.add({name: e.cpu().numpy() for name, e in zip(ERRORS, errors, strict=True)})


def add_jacobians(side: SideFigures, layer: Layer, token: int, generator: torch.Generator) -> None:
    """Add the Jacobian figures of a layer and its sub-layers at one token of one sentence."""
    rows = [row for row in side.states if row.layer == layer.number]
    x = layer.state
    for row, sublayer in zip(rows, layer.sublayers, strict=True):
        add_jacobian(row, sublayer.increment, x, token, generator)
        x = sublayer.advance(x)
    add_jacobian(side.layers[layer.number - 1], layer.increment, layer.state, token, generator)


def add_jacobian(
    row: RowFigures, field: jacobians.Field, x: Tensor, token: int, generator: torch.Generator
) -> None:
    """Add the Jacobian figures of one field."""
    row.add(jacobians.block_figures(jacobians.own_block(field, x, token)))
    row.add({"singular_value": jacobians.largest_singular_value(field, x, generator)})


def arrays(figures: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Tensors as arrays."""
    return {name: values.cpu().numpy() for name, values in figures.items()}
