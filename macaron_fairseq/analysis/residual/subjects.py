"""What is compared: models, each with the checkpoints of several seeds, trained or untrained."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from macaron_fairseq.analysis import models, trajectories
from macaron_fairseq.analysis.models import TrainedModel
from macaron_fairseq.analysis.residual import initial
from macaron_fairseq.analysis.sentences import Data, Sentence
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model import same_network


@dataclass(frozen=True)
class Subject:
    """One model, in the runs of several seeds."""

    label: str
    is_trained: bool
    runs: tuple[TrainedModel, ...]
    names: tuple[str, ...]  # of the runs: their checkpoints, or "seed 1"

    @property
    def title(self) -> str:
        """Its name."""
        return self.label if self.is_trained else f"{self.label}, untrained"


def labels(paths: Sequence[Path]) -> list[str]:
    """A label for each checkpoint, the same for all seeds of a model.

    Checkpoints of the same architecture, scheme and sub-step are taken for seeds of one model.

    Raises:
        UserError: if a file is bad or does not say which model it holds.
    """
    found = [models.read(path) for path in paths]
    keys = [(x.architecture, *x.settings.items()) for x in found]
    firsts = {key: x for key, x in reversed([*zip(keys, found, strict=True)])}
    names = dict(zip(firsts, models.labels([*firsts.values()]), strict=True))
    return [names[key] for key in keys]


def grouped(loaded: Sequence[TrainedModel], data: Data, seeds: Sequence[int]) -> list[Subject]:
    """The models of each label, in order, each before the same model untrained.

    Args:
        loaded: those of one label are seeds of one model.
        data: of the models.
        seeds: of the untrained ones, see `initial.like`; none without seeds.

    Raises:
        UserError: if a label is of several architectures, or a run or seed is there twice.
    """
    if len({*seeds}) < len(seeds):
        raise UserError(f"--initial {' '.join(map(str, seeds))} names a seed twice: name each once")
    found = []
    for label in dict.fromkeys(model.label for model in loaded):
        runs = [model for model in loaded if model.label == label]
        if len({model.path.resolve() for model in runs}) < len(runs):
            raise UserError(
                f"a checkpoint of '{label}' is named twice, and would count as two seeds: name "
                "each once, or give them different labels"
            )
        for one in runs:
            if (one.architecture, one.settings) != (runs[0].architecture, runs[0].settings):
                raise UserError(
                    f"{runs[0].path} and {one.path} are different models with the label '{label}', "
                    "which stands for the seeds of one: give each model its label"
                )
        warn_of_one_run(label, runs)
        found.append(Subject(label, True, tuple(runs), tuple(str(x.path) for x in runs)))
        if seeds:
            untrained = tuple(initial.like(runs[0], data, seed) for seed in seeds)
            found.append(Subject(label, False, untrained, tuple(f"seed {x}" for x in seeds)))
    return found


def warn_of_one_run(label: str, runs: Sequence[TrainedModel]) -> None:
    """Warn of checkpoints that have one label and one --seed, as those of one run have."""
    firsts: dict[Any, TrainedModel] = {}
    for one in runs:
        seed = one.arguments.get("seed")
        first = firsts.setdefault(seed, one)
        if seed is not None and first is not one:
            print(
                f"warning: {first.path} and {one.path} count as two seeds of '{label}', and both "
                f"have --seed {seed}: if they are of one run, give each a --label",
                file=sys.stderr,
            )
            return


@dataclass(frozen=True)
class Shape:
    """Of the encoder or the decoder of a model."""

    layers: int
    width: int
    is_pre_norm: bool


def shapes(model: Any, sentence: Sentence) -> dict[str, Shape]:
    """The shapes of a model's sides, in order."""
    layers = trajectories.run(model, sentence.source, sentence.target)
    return {
        layer.side: Shape(layer.number, layer.state.shape[-1], layer.is_pre_norm)
        for layer in layers
    }


def refuse_different_widths(found: Sequence[tuple[TrainedModel, dict[str, Shape]]]) -> None:
    """Raise a `UserError` if two models' states have different widths, whose figures depend on it.

    Models of different depths can be compared.
    """
    first, expected = found[0]
    for model, of_model in found:
        for side, shape in of_model.items():
            if side in expected and shape.width != expected[side].width:
                raise UserError(
                    f"the {side} of {first.path} is {expected[side].width} wide and that of "
                    f"{model.path} {shape.width}: compare models of one width"
                )


def refuse_different_seeds(found: Sequence[tuple[TrainedModel, dict[str, Shape]]]) -> None:
    """Raise a `UserError` if two runs of one model are different networks."""
    first, expected = found[0]
    for model, of_model in found:
        other = same_network.difference(first.arguments, model.arguments)
        if of_model != expected:
            what = "layers, width or norms"
        elif sizes(first) != sizes(model):
            what = "the sizes of their parameters"
        elif other:
            what = f"{other[0]}, {other[1]} and {other[2]}"
        else:
            continue
        raise UserError(
            f"{first.path} and {model.path} differ in {what}, and are taken for seeds of one "
            "model: give each model its --label"
        )


def sizes(model: TrainedModel) -> dict[str, torch.Size]:
    """The shape of each parameter."""
    return {name: x.shape for name, x in model.model.named_parameters()}
