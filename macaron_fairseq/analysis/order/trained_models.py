"""The order of schemes and sub-steps on a trained model's layers (`macaron-fairseq order --path`).

Errors are by step halving on the frozen weights. A layer's networks can take the steps of any
scheme that has the same ones, and with them those of any sub-step. The states are those of the
model as it was trained.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macaron_fairseq.analysis import anatomy, integrators, local_error, trajectories
from macaron_fairseq.analysis.anatomy import DECODER, ENCODER
from macaron_fairseq.analysis.models import TrainedModel, in_double
from macaron_fairseq.analysis.order.results import Measured, Pair, Result, refuse_bad_names, result
from macaron_fairseq.analysis.sentences import Sample, Sentence
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import listed
from macaron_fairseq.common.progress import bar
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, Steps


def of_trained_model(
    model: TrainedModel,
    sample: Sample,
    scheme_names: Sequence[str] | None = None,
    substep_names: Sequence[str] | None = None,
    longest: float = 1.0,
) -> Measured:
    """The errors of a trained model's layers at the states of real sentences.

    They are the differences of `local_error.by_halving`, without a factor for the order.

    Args:
        model: see `models.load`.
        sample: see `sentences.read`; without references the decoder reads the model's translations.
        scheme_names: only these; otherwise all that its weights allow.
        substep_names: the same.
        longest: the longest step; five more are each half of the one before.

    Raises:
        UserError: if the model does not fit the sample or the names, it is post-norm, or the errors
            are not finite.
    """
    pairs = choose(model.model, scheme_names, substep_names)
    model.check(sample)
    found = model.to_read(sample)
    steps = local_error.halved(longest, times=5)
    return Measured(
        f"Step-halving differences of the layers of {model.label}, trained as "
        + trained_as(model.settings),
        {"model": model.description(), "data": sample.description()},
        steps,
        measure(in_double(model.runnable()), found, pairs, steps),
    )


def trained_as(settings: Mapping[str, str]) -> str:
    """The scheme and the sub-step that a model was trained with."""
    own = ", ".join(f"{name} {value}" for name, value in settings.items())
    return own or "scheme lie-trotter, substep euler"  # fairseq's own layers


# --- what a trained model allows -----------------------------------------------------------------


def choose(
    model: Any, scheme_names: Sequence[str] | None, substep_names: Sequence[str] | None
) -> list[Pair]:
    """Those of the schemes and sub-steps that the model's weights allow; None stands for all.

    Raises:
        UserError: if something was named that there is not or that they do not allow, or the model
            is post-norm.
    """
    refuse_bad_names(scheme_names, substep_names, splitting.SCHEMES, substeps.SUBSTEPS)
    layers = [x for x in model.modules() if anatomy.is_layer(x)]
    if not layers:
        raise UserError("the model has no layers of a kind that is supported")
    if not all(map(anatomy.is_pre_norm, layers)):
        raise UserError(
            "the model is post-norm: its layers normalise the state even where steps are short, "
            "and follow no flow whose error could be measured"
        )
    refusals = {
        pair: refusal_by_all(layers, *pair)
        for pair in product(scheme_names or splitting.SCHEMES, substep_names or substeps.SUBSTEPS)
    }
    pairs = [pair for pair, reason in refusals.items() if not reason]
    left_schemes, left_substeps = {x for x, _ in pairs}, {x for _, x in pairs}
    for (scheme, substep), reason in refusals.items():
        is_named_and_missing = (
            (scheme_names and substep_names)
            or (scheme_names and scheme not in left_schemes)
            or (substep_names and substep not in left_substeps)
        )
        if reason and is_named_and_missing:
            raise UserError(reason)
    return pairs


def refusal_by_all(layers: Iterable[Any], scheme: str, substep: str) -> str | None:
    """Why none of the layers can take a scheme's steps by a sub-step; None if one can."""
    reasons = [refusal(layer, scheme, substep) for layer in layers]
    return None if None in reasons else reasons[0]


def refusal(layer: Any, scheme: str, substep: str) -> str | None:
    """Why that layer cannot; None if it can."""
    steps, is_gated = steps_of(layer, scheme), substeps.get(substep).is_gated
    if is_gated and not anatomy.gates_of(layer):
        return f"the sub-step '{substep}' needs gates, and the model was trained without: drop it"
    if steps is None:
        fitting = [name for name in splitting.SCHEMES if steps_of(layer, name)]
        return (
            f"the scheme '{scheme}' has another number of FFNs in a layer than the model, whose "
            f"weights are for {listed(fitting)}"
        )
    if is_gated and any(x.operators not in anatomy.gates_of(layer) for x in steps):
        return f"the gates of '{substep}' were not trained for the steps of '{scheme}': drop one"
    return None


def steps_of(layer: Any, scheme: str) -> Steps | None:
    """The steps of a scheme in that layer; None if it has other networks than they need."""
    own = set(splitting.operators(anatomy.steps_of(layer)[0]))
    side = DECODER if hasattr(layer, "encoder_attn") else ENCODER  # None in a language model
    steps = getattr(splitting.get(scheme), side)
    if not any(x.kind == CROSS_ATTENTION for x in own):
        steps = splitting.without(steps, CROSS_ATTENTION)
    return steps if set(splitting.operators(steps)) == own else None


# --- measuring -----------------------------------------------------------------------------------


def measure(
    model: Any, found: Sequence[Sentence], pairs: Sequence[Pair], steps: Sequence[float]
) -> list[Result]:
    """The results of all layers of a side together, and then of each layer.

    An error is the median over all tokens of the sentences.

    Args:
        model: in fp64.
        found: the sentences.
        pairs: see `choose`.
        steps: the sizes h, each half of the one before.

    Raises:
        UserError: if `trajectories.run` raises it.
    """
    # For each side, layer, scheme and sub-step, and for each sentence: a tensor (time,) for each h.
    errors: dict[tuple[str, int, Pair], list[list[Tensor]]] = defaultdict(list)
    with bar("sentences", total=float(len(found)), leave=False) as shown:
        for sentence in found:
            layers = trajectories.run(model, sentence.source, sentence.target)
            for layer in layers:
                fitting = [pair for pair in pairs if not refusal(layer.module, *pair)]
                gates = anatomy.gates_of(layer.module)
                for scheme, substep in fitting:
                    own = steps_of(layer.module, scheme)
                    assert own is not None
                    method = substeps.get(substep)
                    advance = partial(integrators.advance, own, layer.apply, method, gates)
                    with torch.no_grad():
                        one = local_error.by_halving(advance, layer.state, steps)
                    errors[layer.side, layer.number, (scheme, substep)].append(one)
                    shown.update(1 / len(layers) / len(fitting))
    together: dict[tuple[str, Pair], list[list[Tensor]]] = defaultdict(list)
    for (side, _, pair), of_sentences in errors.items():
        together[side, pair] += of_sentences
    return [
        *(result(side, pair, steps, medians(x)) for (side, pair), x in together.items()),
        *(result(side, pair, steps, medians(x), n) for (side, n, pair), x in errors.items()),
    ]


def medians(of_sentences: list[list[Tensor]]) -> list[float]:
    """The median over all tokens for each h."""
    return [float(np.median(torch.cat(x).cpu())) for x in zip(*of_sentences, strict=True)]
