"""Where a model has its layers, and a layer its networks: fairseq's and this package's."""

import inspect
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.masked_lm import MaskedLMModel
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.modules import TransformerSentenceEncoderLayer
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import nn

from macaron_fairseq.model.layers import SplittingLayer
from macaron_fairseq.model.transformer import MacaronTransformerModel
from macaron_fairseq.schemes import splitting, substeps
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, SELF_ATTENTION, Operator, Steps
from macaron_fairseq.schemes.substeps import Gate, SubStep

ENCODER = "encoder"
DECODER = "decoder"

# fairseq's are known by what they compute: a subclass with another `forward` is another layer.
FORWARDS = {
    TransformerEncoderLayerBase.forward,
    TransformerDecoderLayerBase.forward,
    TransformerSentenceEncoderLayer.forward,
}


def is_translation(model: Any) -> bool:
    """Whether that class is of an encoder-decoder with layers that are known here."""
    forward = getattr(model, "forward", None)
    return forward is TransformerModelBase.forward or issubclass(model, MacaronTransformerModel)


def is_masked_lm(model: Any) -> bool:
    """Whether that class is of a masked language model with layers that are known here."""
    return issubclass(model, (RobertaModel, MaskedLMModel))


def is_causal_lm(model: Any) -> bool:
    """Whether that class is of a causal language model with layers that are known here."""
    return issubclass(model, TransformerLanguageModel)


def not_supported(path: object, architecture: str) -> str:
    """What to say of a checkpoint of another model."""
    if architecture not in ARCH_MODEL_REGISTRY and architecture not in MODEL_REGISTRY:
        return (
            f"{path} holds a model of the architecture {architecture}, which fairseq does not know "
            "here: in Python, import macaron_fairseq.plugin first, or what registers it"
        )
    return (
        f"{path} holds a model of the architecture {architecture}, which is not supported: "
        "supported are the Macaron models with their baselines, and fairseq's transformer, "
        "transformer_lm, roberta and masked_lm"
    )


def stacks(model: Any) -> dict[str, str]:
    """The name of the module list that holds the layers, of each side that a model has."""
    found = {}
    if hasattr(model, "encoder"):
        has_inner = hasattr(model.encoder, "sentence_encoder")  # in masked language models
        found[ENCODER] = "encoder.sentence_encoder.layers" if has_inner else "encoder.layers"
    if hasattr(model, "decoder"):
        found[DECODER] = "decoder.layers"
    return found


def is_layer(module: nn.Module) -> bool:
    """Whether a module is a layer that is known here, fairseq's own or this package's."""
    return isinstance(module, SplittingLayer) or type(module).forward in FORWARDS


def signature(layer: nn.Module) -> inspect.Signature:
    """Of the layer's `forward`, from the class that names its arguments; `fast` hands them on."""
    forwards = (vars(x).get("forward") for x in type(layer).__mro__)
    found = (inspect.signature(x) for x in forwards if x)
    return next(x for x in found if "x" in x.parameters)


def is_pre_norm(layer: Any) -> bool:
    """Whether the LayerNorms are before the networks."""
    return getattr(layer, "normalize_before", False)  # fairseq's class without it is post-norm


def steps_of(layer: Any) -> tuple[Steps, SubStep]:
    """The steps of a layer, and how they are taken."""
    if hasattr(layer, "steps"):
        return layer.steps, layer.substep
    lie_trotter = splitting.SCHEMES["lie-trotter"]
    has_cross = getattr(layer, "encoder_attn", None) is not None
    return lie_trotter.decoder if has_cross else lie_trotter.encoder, substeps.get("euler")


def weights_of(layer: Any, operator: Operator) -> tuple[Any, Any]:
    """The network and the LayerNorm of an operator."""
    if hasattr(layer, "steps"):
        return layer.weights(operator)
    held = {SELF_ATTENTION: "self_attn", CROSS_ATTENTION: "encoder_attn"}
    if operator.kind in held:
        name = held[operator.kind]
        return getattr(layer, name), getattr(layer, f"{name}_layer_norm")
    return layer, layer.final_layer_norm  # which holds its FFN itself


def gates_of(layer: Any) -> dict[tuple[Operator, ...], Gate]:
    """The trained gates by the operators of their steps; empty where the sub-step has none."""
    if not getattr(layer, "gates", None):
        return {}
    return {step.operators: layer.gate(step) for step in layer.steps}
