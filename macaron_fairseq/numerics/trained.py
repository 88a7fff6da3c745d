"""Local errors of trained layers, by step halving on their frozen weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from macaron_fairseq import substeps
from macaron_fairseq.dynamics import comparing, loading, local_error, operators, sentences
from macaron_fairseq.errors import UserError
from macaron_fairseq.layers import SplittingLayer

STEPS = [2.0**-i for i in range(6)]

Errors = dict[tuple[str, int], dict[str, list[float]]]


def load(path: Path, data: Path, subset: str, limit: int) -> tuple[Any, list[Any]]:
    """A model in fp64, and the first sentences of a data set.

    Raises:
        UserError: if a file is bad, or the model is none that can be measured.
    """
    opened = comparing.open_data([path], data, None, None)
    (loaded,) = loading.load_all([path], None, opened, torch.device("cpu"))
    found = sentences.from_data_set(opened, subset, limit)
    loading.refuse_long(loaded, found)
    return loaded.runnable().double(), found


def usable(model: Any, wanted: Sequence[str]) -> list[str]:
    """Those of the sub-steps that the model's weights allow; its own comes first.

    Raises:
        UserError: if none is left.
    """
    layers = [x for x in model.modules() if isinstance(x, SplittingLayer)]
    if not layers:
        return [substeps.DEFAULT]  # fairseq's own
    own = next(name for name, x in substeps.SUBSTEPS.items() if x is layers[0].substep)
    names = [x for x in wanted if not substeps.SUBSTEPS[x].is_gated or x == own]
    if not names:
        raise UserError("a gated sub-step needs gates, and the model was trained without")
    return sorted(names, key=lambda x: x != own)


@contextmanager
def integrated(model: Any, substep: str) -> Iterator[None]:
    """Let the model's layers take their steps by another sub-step for a while."""
    layers = [x for x in model.modules() if isinstance(x, SplittingLayer)]
    before = [x.substep for x in layers]
    try:
        for layer in layers:
            layer.substep = substeps.get(substep)
        yield
    finally:
        for layer, x in zip(layers, before, strict=True):
            layer.substep = x


def errors(
    model: Any, found: Sequence[Any], names: Sequence[str], progress: Callable[[], object]
) -> Errors:
    """The median error over all tokens, for each layer, sub-step and step of `STEPS`.

    Args:
        model: see `load`.
        found: the sentences.
        names: of sub-steps.
        progress: called once for each sentence.

    Raises:
        UserError: if the model is post-norm.
    """
    tokens: dict[tuple[str, int], dict[str, list[list[torch.Tensor]]]] = {}
    for sentence in found:
        for layer in operators.run(model, sentence.source, sentence.target):
            if not layer.is_pre_norm:
                raise UserError(
                    "the model is post-norm: its layers normalise the state even where steps are "
                    "short, and follow no flow whose error could be measured"
                )
            by_name = tokens.setdefault((layer.side, layer.number), {})
            for name in names:
                with integrated(model, name), torch.no_grad():
                    one = local_error.local_errors(layer.advance, layer.state, STEPS)
                by_name.setdefault(name, []).append(one)
        progress()
    return {
        key: {
            name: [torch.cat(x).median().item() for x in zip(*several, strict=True)]
            for name, several in by_name.items()
        }
        for key, by_name in tokens.items()
    }
