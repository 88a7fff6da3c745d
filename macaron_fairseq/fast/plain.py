"""Where a computation may be replaced: what is fairseq's own, with nothing added to it."""

from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase
from torch import nn

from macaron_fairseq.fast.products import Linear


def is_linear(module: Any) -> bool:
    """Whether it is a linear map and no more: not quantised, pruned or watched by hooks."""
    return (
        type(module) in (nn.Linear, Linear)
        and isinstance(module.weight, nn.Parameter)  # not parametrised or sharded
        and not module._forward_pre_hooks  # as of quantisation noise
        and not module._forward_hooks
    )


def projects_features(decoder: Any) -> bool:
    """Whether its logits are features weight^T, with the weight of `decoder.output_projection`."""
    methods = "forward", "output_layer", "get_normalized_probs", "get_normalized_probs_scriptable"
    return (
        isinstance(decoder, TransformerDecoderBase)
        and inherits(decoder, TransformerDecoderBase, methods)
        and decoder.adaptive_softmax is None
        and is_linear(decoder.output_projection)
        and decoder.output_projection.bias is None
        and not torch.is_autocast_enabled(decoder.output_projection.weight.device.type)
    )


def inherits(module: nn.Module, base: type, methods: tuple[str, ...]) -> bool:
    """Whether these methods are those of the base class."""
    return all(getattr(type(module), x, None) is getattr(base, x, None) for x in methods)
