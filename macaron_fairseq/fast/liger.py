"""`--loss-kernel liger`: label-smoothed cross-entropy by Liger-Kernel, for training on a GPU.

Liger-Kernel (Hsu et al. 2024, arXiv 2410.10989) computes projection, softmax and gradients of some
tokens at a time, as `criterion.ChunkedLoss` does. Softmax and its gradient are one Triton kernel
there.
"""

import torch
from torch import Tensor

NAME = "liger"


def label_smoothed_nll_loss(
    features: Tensor, weight: Tensor, target: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """What `criterion.label_smoothed_nll_loss` returns; its arguments, of one token or more.

    Liger's smoothing s is Szegedy's, where the target has a share as each other type. With x the
    logits, the loss of a token is then nll + s (x_target - mean(x)), which gives the NLL back.
    """
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    types = len(weight)
    smoothing = epsilon * types / (types - 1)
    loss = LigerFusedLinearCrossEntropyLoss(
        label_smoothing=smoothing, reduction="sum", accum_dtype=torch.float32
    )(weight, features, target)
    with torch.no_grad():
        exact = features.float()
        of_target = torch.linalg.vecdot(exact, weight[target].float())
        mean = torch.mv(exact, weight.mean(0, dtype=torch.float32))
        nll = loss - smoothing * (of_target - mean).sum()
    return loss, nll
