"""The page on which the tokens of single sentences move through the layers of trained models."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np
import torch

from macaron_fairseq.analysis import figures, interactive_page, output, trajectories
from macaron_fairseq.analysis.dynamics import sentence_views
from macaron_fairseq.analysis.interactive_page import Scene
from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.models import TrainedModel
from macaron_fairseq.analysis.sentences import Sample, Sentence
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import following

COMPONENTS = 3
INTRODUCTION = (
    "Each point is the state of a token, seen as a direction x/|x|: before the first layer and "
    "after each sub-layer. The axes are the first three principal components. They are fitted once "
    "for each model and side, to all states of all sentences shown here, the mean taken away. The "
    "colours follow the sentence, from its first token to its last."
)


@dataclass(frozen=True)
class Path:
    """A sentence in the encoder or the decoder of a model."""

    number: int  # of the sentence, from 1
    tokens: list[str]
    steps: list[str]  # (t,)
    states: Floats  # (t, tokens, channel)


def page(
    models: Sequence[TrainedModel],
    sample: Sample,
    wanted: int,
    title: str = "Tokens on their way through trained models",
) -> str:
    """The page of several models on the same sentences.

    Args:
        models: see `models.load`.
        sample: see `sentences.read`.
        wanted: how many of its sentences to show, see `sentence_views.readable`.
        title: of the page.

    Raises:
        UserError: if no sentence is wanted, or see `trajectories.run` and
            `interactive_page.library`.
    """
    if wanted < 1:
        raise UserError("a page of tokens shows sentences: ask for one or more")
    chosen = sentence_views.readable([sample.sentences], wanted)
    part = replace(sample, sentences=[sample.sentences[i] for i in chosen])
    scenes, facts = [], []
    for model in models:
        read = model.to_read(part)
        sides: dict[str, list[Path]] = defaultdict(list)
        for sentence in following(read, f"{model.label}, tokens that move"):
            for side, path in paths(model, sentence, sample):
                sides[side].append(path)
        for side, found in sides.items():
            made, shares = side_scenes(f"{model.label}, {side}", found)
            scenes += made
            listed = ", ".join(f"{share:.0%}" for share in shares)
            facts.append((escape(f"{model.label}, {side}"), f"the components explain {listed}"))
    provenance = output.provenance()
    facts.append(("Text", f"<code>{escape(str(sample.description()['source']))}</code>"))
    facts.append(("Command", f"<code>{escape(provenance['command'])}</code>"))
    return interactive_page.page(title, INTRODUCTION, facts, scenes)


@torch.no_grad()
def paths(model: TrainedModel, sentence: Sentence, sample: Sample) -> Iterator[tuple[str, Path]]:
    """The tokens of a sentence in each side of a model, by the side's name."""
    layers = trajectories.run(model.runnable(), sentence.source, sentence.target)
    for side, of_side in trajectories.by_side(layers).items():
        tokens = sentence_views.tokens_of(side, sentence, sample.data)
        steps, states = ["input"], [of_side[0].state[:, 0]]
        for layer in of_side:
            for sublayer, move in trajectories.moves(layer):
                steps.append(f"layer {layer.number}: {sublayer.title}")
                states.append(move.after)
        found = torch.stack(states).double().cpu().numpy()
        yield side, Path(sentence.number, tokens, steps, found)


def side_scenes(group: str, found: Sequence[Path]) -> tuple[list[Scene], list[float]]:
    """A scene for each sentence, all on the same axes, and the share that each axis explains."""
    directions = [x.states / np.linalg.norm(x.states, axis=2, keepdims=True) for x in found]
    together = np.concatenate([x.reshape(-1, x.shape[2]) for x in directions])
    mean, axes, shares = principal_components(together)
    return [
        Scene(
            group,
            f"sentence {path.number}: {sentence_views.title(path.tokens)}",
            path.steps,
            [f"{i}. {token}" for i, token in enumerate(path.tokens, 1)],
            (x - mean) @ axes.T,
            [f"component {i + 1}" for i in range(COMPONENTS)],
            figures.spread(len(path.tokens)),
            values(path, x),
            labelled=True,
        )
        for path, x in zip(found, directions, strict=True)
    ], shares


def principal_components(points: Floats) -> tuple[Floats, Floats, list[float]]:
    """The first components of points (n, d).

    Returns:
        Their mean, (d,); the components, (3, d), largest first, zeros where there are fewer; and
        the share of the variance that each explains.
    """
    mean = points.mean(axis=0)
    _, lengths, axes = np.linalg.svd(points - mean, full_matrices=False)
    variances = lengths**2 / max(float((lengths**2).sum()), np.finfo(float).tiny)
    missing = max(0, COMPONENTS - len(axes))
    axes = np.pad(axes[:COMPONENTS], ((0, missing), (0, 0)))
    return mean, axes, [*variances[:COMPONENTS].tolist(), *[0.0] * missing]


def values(path: Path, directions: Floats) -> dict[str, Floats]:
    """What can be pointed at, each (t, tokens)."""
    found = {
        "length |x|/\u221ad": np.linalg.norm(path.states, axis=2) / path.states.shape[2] ** 0.5
    }
    cosines = directions @ directions.swapaxes(1, 2)
    found["cosine with its state before the first layer"] = (directions * directions[0]).sum(axis=2)
    if len(path.tokens) > 1:
        cosines[:, np.eye(len(path.tokens), dtype=bool)] = -np.inf
        found["cosine with the nearest token"] = cosines.max(axis=2)
        found["nearest token, number"] = cosines.argmax(axis=2) + 1.0
    return found
