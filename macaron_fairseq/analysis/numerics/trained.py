"""Local errors of trained layers, by step halving on their frozen weights.

A layer's networks can take the steps of any scheme that has the same ones, and with them those of
any sub-step. The states are those of the model as it was trained.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from macaron_fairseq.analysis import anatomy
from macaron_fairseq.analysis.anatomy import DECODER, ENCODER
from macaron_fairseq.analysis.dynamics import comparing, likelihood, loading, local_error, operators
from macaron_fairseq.analysis.dynamics.loading import Loaded
from macaron_fairseq.analysis.dynamics.sentences import Data, Sentence
from macaron_fairseq.analysis.numerics import integration
from macaron_fairseq.analysis.numerics.fitting import Result, result
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import listed
from macaron_fairseq.fast import kernels
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, Steps

Pair = tuple[str, str]  # names of a scheme and a sub-step


# --- the model and its sentences -----------------------------------------------------------------


def prepare(loaded: Loaded, data: Data, found: Sequence[Sentence]) -> tuple[Any, list[Sentence]]:
    """The model in fp64, and the sentences with a target.

    Sentences without a translation get the model's own, which the decoder then reads.

    Raises:
        UserError: if a sentence is too long for the model, or the data are not what it was trained
            for (see `likelihood.checked`).
    """
    loading.refuse_long(loaded, found)
    if found[0].target is not None:
        likelihood.checked(loaded, data, found)
    elif loaded.engine:
        found = comparing.translated(loaded, loaded.engine, data, found)
    model = loaded.runnable().double()
    kernels.fuse(model)  # fairseq's own attention to a source takes its softmax in fp32
    return model, list(found)


def settings(description: dict[str, Any]) -> str:
    """The scheme and the sub-step that a model was trained with."""
    own = ", ".join(f"{name} {value}" for name, value in description["settings"].items())
    return own or "scheme lie-trotter, substep euler"  # fairseq's own layers


# --- what can be measured ------------------------------------------------------------------------


def choose(
    model: Any, scheme_names: Sequence[str] | None, substep_names: Sequence[str] | None
) -> list[Pair]:
    """Those of the schemes and sub-steps that the model's weights allow; None stands for all.

    Raises:
        UserError: if something was named that they do not allow, or the model is post-norm.
    """
    layers = [x for x in model.modules() if operators.is_layer(x)]
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
    if is_gated and not gates(layer):
        return f"the sub-step '{substep}' needs gates, and the model was trained without: drop it"
    if steps is None:
        fitting = [name for name in splitting.SCHEMES if steps_of(layer, name)]
        return (
            f"the scheme '{scheme}' has another number of FFNs in a layer than the model, whose "
            f"weights are for {listed(fitting)}"
        )
    if is_gated and any(x.operators not in gates(layer) for x in steps):
        return f"the gates of '{substep}' were not trained for the steps of '{scheme}': drop one"
    return None


def steps_of(layer: Any, scheme: str) -> Steps | None:
    """The steps of a scheme in that layer; None if it has other networks than they need."""
    own = set(splitting.operators(anatomy.steps_of(layer)[0]))
    side = DECODER if hasattr(layer, "encoder_attn") else ENCODER
    steps = getattr(splitting.get(scheme), side)
    if not any(x.kind == CROSS_ATTENTION for x in own):
        steps = splitting.without(steps, CROSS_ATTENTION)
    return steps if set(splitting.operators(steps)) == own else None


def gates(layer: Any) -> integration.Gates:
    """The gates of a layer by the operators of their steps."""
    if not getattr(layer, "gates", None):
        return {}
    return {step.operators: layer.gate(step) for step in layer.steps}


# --- measuring -----------------------------------------------------------------------------------


def measure(
    model: Any, found: Sequence[Sentence], pairs: Sequence[Pair], steps: Sequence[float]
) -> list[Result]:
    """The results of all layers of a side together, and then of each layer.

    An error is the median over all tokens of the sentences.

    Args:
        model: see `prepare`.
        found: the sentences.
        pairs: see `choose`.
        steps: the sizes h, each half of the one before.

    Raises:
        UserError: if `operators.run` raises it.
    """
    # For each side, layer, scheme and sub-step, and for each sentence: a tensor (time,) for each h.
    errors: dict[tuple[str, int, Pair], list[list[Tensor]]] = defaultdict(list)
    for sentence in tqdm(found, unit="sentence", disable=None, leave=False):
        for call in operators.run(model, sentence.source, sentence.target):
            layer, apply = call.module, partial(operators.apply, call.module, call.given)
            for scheme, substep in pairs:
                own = steps_of(layer, scheme)
                if own is None or refusal(layer, scheme, substep):
                    continue
                method = substeps.get(substep)
                advance = partial(integration.advance, own, apply, method, gates(layer))
                with torch.no_grad():
                    one = local_error.local_errors(advance, call.state, steps)
                errors[call.side, call.number, (scheme, substep)].append(one)
    together: dict[tuple[str, Pair], list[list[Tensor]]] = defaultdict(list)
    for (side, _, pair), of_sentences in errors.items():
        together[side, pair] += of_sentences
    return [
        *(result(side, *pair, steps, medians(x)) for (side, pair), x in together.items()),
        *(result(side, *pair, steps, medians(x), n) for (side, n, pair), x in errors.items()),
    ]


def medians(of_sentences: list[list[Tensor]]) -> list[float]:
    """The median over all tokens for each h."""
    return [torch.cat(x).median().item() for x in zip(*of_sentences, strict=True)]
