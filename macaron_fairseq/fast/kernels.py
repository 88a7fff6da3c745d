"""Who computes attention, dropout and linear maps: this package, or fairseq and PyTorch."""

from fairseq.modules import MultiheadAttention
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import nn

from macaron_fairseq.fast import products
from macaron_fairseq.fast.attention import Attention
from macaron_fairseq.fast.dropout import Dropout

FUSED = "fused"
FAIRSEQ = "fairseq"
NAMES = (FUSED, FAIRSEQ)


def fuse(model: nn.Module, linear_maps: bool = True) -> None:
    """Give these modules the faster `forward` of this package's: they have the same state.

    Args:
        model: any of fairseq's.
        linear_maps: False if something else is still to replace them, by their class.
    """
    linear_maps = linear_maps and products.is_faster()
    for module in model.modules():
        if type(module) is MultiheadAttention:
            module.__class__ = Attention
        elif type(module) is FairseqDropout:
            module.__class__ = Dropout
        elif linear_maps and products.is_large(module):
            module.__class__ = products.Linear
