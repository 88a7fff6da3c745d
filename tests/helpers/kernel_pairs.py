"""Models with fairseq's kernels beside the same with this package's."""

from helpers.small import DROPOUT, SMALL, build
from macaron_fairseq.fast.attention import Attention
from macaron_fairseq.fast.dropout import Dropout

STOCK = ["--macaron-kernels", "fairseq"]
OPTIONS = [
    [],
    ["--attention-dropout", "0"],
    ["--macaron-scheme", "lie-trotter"],
    ["--macaron-post-norm"],
    ["--no-cross-attention", "--cross-self-attention"],
    ["--encoder-embed-dim", "24", "--decoder-embed-dim", "16"],
]
# Two matrix products attend within the short ones, on a CPU PyTorch's kernel within the long ones.
SHORT = (9, 8), (5, 3), (7, 8), (3, 4)
LONG = (70, 81), (80, 66), (5, 4)
LENGTHS = [SHORT, LONG]


def both(*flags, arch="macaron_transformer"):
    """The same model with fairseq's kernels and with this package's."""
    stock, fused = (build(arch, *SMALL, *DROPOUT, *flags, *kernels) for kernels in (STOCK, []))
    assert not any(isinstance(m, Attention | Dropout) for m in stock.modules())
    assert any(isinstance(m, Attention) for m in fused.modules())
    assert stock.state_dict().keys() == fused.state_dict().keys()
    return stock, fused
