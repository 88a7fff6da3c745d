"""Which modules may be computed in another way: those that do what fairseq's do, and no more."""

from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import nn
from torch.nn.modules import module as modules

from macaron_fairseq.fast.linear import Linear

# The methods by which a model of fairseq's makes probabilities of logits.
PROBABILITIES = "get_normalized_probs", "get_normalized_probs_scriptable"
# Hooks of all modules: PyTorch adds to these, and takes from them.
HOOKS_OF_ALL = (
    modules._global_forward_hooks,
    modules._global_forward_pre_hooks,
    modules._global_backward_hooks,
    modules._global_backward_pre_hooks,
)


def is_watched(module: nn.Module) -> bool:
    """Whether hooks want to see what it is given or returns, or the gradients of these.

    They may change it, too, as those of quantisation noise do. It is asked in each update.
    """
    return bool(
        any(HOOKS_OF_ALL)
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_linear(module: Any) -> bool:
    """Whether it is a linear map and no more: not quantised, pruned or watched by hooks."""
    return (
        type(module) in (nn.Linear, Linear)
        and isinstance(module.weight, nn.Parameter)  # not parametrised or sharded
        and not is_watched(module)
    )


def projects_features(decoder: Any) -> bool:
    """Whether its logits are features weight^T, with the weight of `decoder.output_projection`."""
    return (
        isinstance(decoder, TransformerDecoderBase)
        and inherits(decoder, TransformerDecoderBase, "forward", "output_layer", *PROBABILITIES)
        and decoder.adaptive_softmax is None
        and is_linear(decoder.output_projection)
        and decoder.output_projection.bias is None
        and not torch.is_autocast_enabled(decoder.output_projection.weight.device.type)
    )


def inherits(module: Any, base: type, *methods: str) -> bool:
    """Whether these methods are those of the base class."""
    return all(getattr(type(module), x, None) is getattr(base, x, None) for x in methods)
