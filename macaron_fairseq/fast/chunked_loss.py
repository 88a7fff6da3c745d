"""Label-smoothed cross-entropy of a linear layer's softmax, of some tokens at a time.

There is no matrix of all tokens by all types, and the gradients are computed in the forward pass.
"""

from typing import Any

import torch
from torch import Tensor

from macaron_fairseq.fast.linear import multiply_transposed
from macaron_fairseq.fast.linear_gradients import MOST_TOKENS, SCALE, LinearGradients, times

# Tokens x types in memory at a time. From about this size on, matrix products on a CPU are as fast
# as in one piece. An accelerator wants fewer and larger ones.
CHUNK_ELEMENTS_CPU = 2**22
CHUNK_ELEMENTS = 2**25


def label_smoothed_nll_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    epsilon: float,
    products: torch.dtype | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross-entropy of a linear layer's softmax, and its NLL, summed over tokens.

    As in fairseq, each type but the target gets `epsilon / (types - 1)`; Szegedy et al. 2016 give
    the target a share too. Softmax and sums are fp32, or fp64 where the features are.

    Args:
        features: (tokens, dim).
        weight: of the layer, (types, dim), of the same dtype.
        target: (tokens,).
        epsilon: the label smoothing.
        products: the dtype of matrix products; None for the parameters'.
        bias: of the layer, (types,), if it has one.

    Returns:
        The loss, and the NLL, which has no gradient.
    """
    return rdrop_loss(features, weight, target, epsilon, 0.0, products, bias)[:2]


def rdrop_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    epsilon: float,
    alpha: float,
    products: torch.dtype | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Label-smoothed cross-entropy and R-Drop's divergence (Liang et al. 2021).

    Arguments are those of `label_smoothed_nll_loss`; with `alpha` above 0, rows 2i and 2i + 1 are
    two passes over one token. Their divergence is (KL(p, q) + KL(q, p)) / 2 of the two softmax.

    Returns:
        the loss, cross-entropy plus alpha times the divergence; the NLL; the divergence: summed
        over rows. Only the loss has a gradient.
    """
    dtype = products or weight.dtype
    return ChunkedLoss.apply(
        features, weight, bias, target, epsilon, alpha, dtype, torch.is_grad_enabled()
    )


class ChunkedLoss(torch.autograd.Function):
    """`rdrop_loss`, with the gradients computed in the forward pass.

    Let e be the share of each other type, and t = 1 - (types - 1) e the target's. A token's loss is

        (t - e) nll + e sum(-log p),    its gradient by the logits    p - (t - e) onehot - e.

    The last term is the same for all logits and enters both products as a sum of rows. R-Drop adds
    what `diverge` says.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        epsilon: float,
        alpha: float,
        products: torch.dtype,
        training: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute loss, NLL and divergence, and keep the gradients of the loss if training."""
        types, dtype_of_parameters = len(weight), weight.dtype
        share = epsilon / (types - 1)
        peak = 1.0 - epsilon - share
        dtype = torch.promote_types(weight.dtype, torch.float32)
        exact = features.to(dtype)
        weight_sum = weight.sum(0, dtype=dtype)
        features, weight = features.to(products), weight.to(products)
        target = target.unsqueeze(1)
        losses, nlls = features.new_empty(2, len(target), 1, dtype=dtype)
        divergence = losses.new_zeros(())
        # All logits of a token, summed, are its features by the sum of all types' weights.
        totals = torch.mv(exact, weight_sum).unsqueeze(1)
        if bias is not None:
            totals += bias.sum(dtype=dtype)
        pieces = chunks(len(target), weight, together=2 if alpha else 1)
        longest = max((rows.stop - rows.start for rows in pieces), default=0)
        buffer = weight.new_empty(longest, types, dtype=dtype)
        needed = [training and x for x in ctx.needs_input_grad[:3]]
        scale = SCALE / (1 + alpha)  # R-Drop's gradients are larger by about so much
        gradients = LinearGradients(features, weight, needed, dtype, longest, scale)
        for rows in pieces:
            scores = logits(features[rows], weight, bias, buffer[: rows.stop - rows.start])
            target_score = scores.gather(1, target[rows])
            highest = scores.amax(1, keepdim=True)
            log_ratio = scores[0::2] - scores[1::2] if alpha else None
            normalizer = scores.sub_(highest).exp_().sum(1, keepdim=True)
            log_normalizer = normalizer.log() + highest
            nlls[rows] = log_normalizer - target_score
            losses[rows] = peak * nlls[rows] + share * (types * log_normalizer - totals[rows])
            if log_ratio is not None:
                log_ratio -= log_normalizer[0::2] - log_normalizer[1::2]
                scores /= normalizer
                normalizer.fill_(1)
                divergence += diverge(scores[0::2], scores[1::2], log_ratio, alpha / 2, any(needed))
            if any(needed):
                scores.scatter_add_(1, target[rows], -peak * normalizer)
                gradients.add(rows, scores, normalizer)
        features_grad, weight_grad, bias_grad = gradients.sums()
        # What all logits' gradients have in common.
        if features_grad is not None:
            features_grad -= share * weight_sum
        if weight_grad is not None:
            weight_grad -= share * exact.sum(0)
        if bias_grad is not None:
            bias_grad -= share * len(target)
        ctx.save_for_backward(features_grad, weight_grad, bias_grad)
        ctx.dtype = dtype_of_parameters
        loss, nll = losses.sum(), nlls.sum()
        if alpha:
            loss += alpha * divergence
        ctx.mark_non_differentiable(nll, divergence)
        return loss, nll, divergence

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the kept gradients; the other five arguments have none."""
        return *times(ctx.saved_tensors, loss_grad, ctx.dtype), *[None] * 5


def diverge(p: Tensor, q: Tensor, log_ratio: Tensor, weight: float, training: bool) -> Tensor:
    """Half of KL(p, q) + KL(q, p), summed over rows; all three arguments are overwritten.

    p, q and log_ratio = log(p / q) are (tokens, types). With p = softmax(x), the gradient of
    KL(p, q) + KL(q, p) by x is p (log(p / q) - KL(p, q)) + p - q. In training p and q become
    themselves, which is what the cross-entropy wants, and `weight` times these gradients.
    """
    p_from_q = torch.linalg.vecdot(p, log_ratio).unsqueeze(1)  # KL(p, q)
    q_from_p = torch.linalg.vecdot(q, log_ratio).unsqueeze(1).neg_()
    if training:
        before = p.clone()
        factor_of_p, factor_of_q = (1 + weight * (1 - x) for x in (p_from_q, q_from_p))
        factor = log_ratio.mul_(weight)
        p.mul_(factor.add_(factor_of_p)).sub_(q, alpha=weight)
        q.mul_(factor.neg_().add_(factor_of_p + factor_of_q)).sub_(before, alpha=weight)
    return (p_from_q + q_from_p).sum() / 2


def logits(features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """features weight^T + bias, (tokens, types), in the dtype of `out`: there, or in new memory."""
    if features.dtype == out.dtype:
        out = multiply_transposed(features, weight, out=out)
    else:
        out.copy_(torch.mm(features, weight.t()))
    return out if bias is None else out.add_(bias)


def chunks(tokens: int, weight: Tensor, together: int = 1) -> list[slice]:
    """Return slices of the tokens whose logits, tokens x types, fit the chunk size.

    So many tokens as stay `together` are in one slice, whatever its size.
    """
    elements = CHUNK_ELEMENTS_CPU if weight.device.type == "cpu" else CHUNK_ELEMENTS
    size = max(1, elements // len(weight))
    if weight.dtype == torch.float16:
        size = min(size, MOST_TOKENS)
    size = max(together, size - size % together)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def accuracy(features: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """How many targets are the most probable type, and how many there are; without gradients."""
    correct = target.new_zeros(())
    with torch.no_grad():
        for rows in chunks(len(target), weight):
            best = torch.mm(features[rows], weight.t()).argmax(1)
            correct += best.eq(target[rows]).sum()
    return correct, torch.tensor(len(target))
