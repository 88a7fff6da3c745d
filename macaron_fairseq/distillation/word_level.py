"""Word-level distillation (Kim & Rush 2016, arXiv 1606.07947, section 3.1; Hinton et al. 2015).

The student learns the teachers' distribution over the next token. With z the student's logits, q_T
the mean of the teachers' softmax at temperature T, and w from 0 to 1, a token's loss is

    (1 - w) CE(z) + w c KL(q_T || softmax(z / T)),        c = T^2 or 1.

CE is label-smoothed, and at temperature 1. The gradient of the KL by the logits shrinks as 1/T^2;
c = T^2 keeps it at its size (Hinton et al. 2015, section 2).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from macaron_fairseq.fast.chunked_loss import chunks
from macaron_fairseq.fast.linear import multiply_transposed
from macaron_fairseq.fast.linear_gradients import SCALE, LinearGradients, times

# What a teacher says of some of the target tokens: logits or log-probabilities, (tokens, types).
Logits = Callable[[slice], Tensor]


@dataclass(frozen=True)
class Mixture:
    """How much a student's loss has from whom."""

    weight: float  # w
    temperature: float = 1.0  # T
    is_squared: bool = True  # whether c is T^2

    @property
    def factor(self) -> float:
        """By what the divergence enters the loss: w c."""
        return self.weight * (self.temperature**2 if self.is_squared else 1.0)

    def formula(self) -> str:
        """The loss in words, for the log."""
        cross_entropy = f"{1 - self.weight:g} label-smoothed CE"
        if not self.weight:
            return cross_entropy
        factor = f"{self.weight:g}{' T^2' * self.is_squared}"
        return f"{cross_entropy} + {factor} KL(teacher || student), T = {self.temperature:g}"


def projected(features: Tensor, weight: Tensor) -> Logits:
    """The logits of a linear layer without bias, of features (tokens, dim), when asked for."""
    return lambda rows: project(features[rows], weight)


def project(features: Tensor, weight: Tensor) -> Tensor:
    """Logits features weight^T, in fp32 or in fp64."""
    if weight.dtype not in (torch.float32, torch.float64):
        return torch.mm(features, weight.t()).float()
    out = features.new_empty(len(features), len(weight))
    return multiply_transposed(features, weight, out=out)


def log_softmax_at(logits: Tensor, temperature: float) -> Tensor:
    """The logarithm of the softmax at a temperature, (tokens, types)."""
    return log_softmax(logits if temperature == 1 else logits / temperature, 1)


def log_mean_softmax(logits: Sequence[Tensor], temperature: float) -> Tensor:
    """The logarithm of the mean of several softmax at a temperature, (tokens, types)."""
    first, *others = (log_softmax_at(x, temperature) for x in logits)
    for other in others:
        first = torch.logaddexp(first, other)
    return first.sub_(math.log(len(logits))) if others else first


def divergence(
    logits: Tensor, teachers: Sequence[Tensor], temperature: float
) -> tuple[Tensor, Tensor]:
    """KL(teachers || student) at a temperature, and the teachers' entropy, of each token.

    Args:
        logits: the student's, (tokens, types).
        teachers: those of each teacher.
        temperature: of both sides.

    Returns:
        Two tensors (tokens,) in nats; their sum is the cross-entropy of student and teachers.
    """
    log_q = log_mean_softmax(teachers, temperature)
    q = log_q.exp()
    log_p = log_softmax_at(logits, temperature)
    return (q * (log_q - log_p)).sum(1), -(q * log_q).sum(1)


def distilled_loss(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    epsilon: float,
    mixture: Mixture,
    teachers: Sequence[Logits],
    products: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss of this module for a linear layer's softmax, summed over tokens.

    Logits, softmax and gradients are computed for some tokens at a time. No matrix of all tokens by
    types is made, neither of the student nor of a teacher. Softmax and sums are fp32, or fp64 where
    the features are.

    Args:
        features: the student's, (tokens, dim).
        weight: of its last layer, (types, dim), of the same dtype.
        target: (tokens,).
        epsilon: the label smoothing; each type but the target gets epsilon / (types - 1).
        mixture: w, T and c.
        teachers: one function for each teacher.
        products: the dtype of the student's matrix products; None for the parameters'.

    Returns:
        The loss; the NLL of the targets; KL(teachers || student) at temperature T; the teachers'
        entropy at T. Only the loss has a gradient.
    """
    dtype = products or weight.dtype
    return DistilledLoss.apply(
        features, weight, target, (epsilon, mixture), teachers, dtype, torch.is_grad_enabled()
    )


class DistilledLoss(torch.autograd.Function):
    """`distilled_loss`; gradients are computed in the forward pass, as in `ChunkedLoss`.

    p and p_T are the student's softmax at 1 and at T. The target's share is t = 1 - epsilon, and e
    that of each other type. The gradient by the logits is

        (1 - w) (p - (t - e) onehot - e) + w c / T (p_T - q_T).
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        target: Tensor,
        setting: tuple[float, Mixture],
        teachers: Sequence[Logits],
        products: torch.dtype,
        training: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the four sums, and keep the gradients of the loss if training."""
        epsilon, mixture = setting
        types, temperature = len(weight), mixture.temperature
        share = epsilon / (types - 1)
        peak = 1.0 - epsilon - share
        dtype = torch.promote_types(weight.dtype, torch.float32)
        own, taught = 1.0 - mixture.weight, mixture.factor / temperature
        ctx.dtype = weight.dtype
        features, weight = features.to(products), weight.to(products)
        target = target.unsqueeze(1)
        pieces = chunks(len(target), weight)
        longest = max((rows.stop - rows.start for rows in pieces), default=0)
        needed = [*(training and x for x in ctx.needs_input_grad[:2]), False]  # no bias
        scale = SCALE / max(own + taught, 1.0)
        gradients = LinearGradients(features, weight, needed, dtype, longest, scale)
        # Four tensors, not views of one: of a view, fairseq could not set the loss to 0.
        loss, nll, kl, entropy = (features.new_zeros((), dtype=dtype) for _ in range(4))
        for rows in pieces:
            logits = project(features[rows], weight)
            log_p = log_softmax(logits, 1)
            log_p_t = log_p if temperature == 1 else log_softmax_at(logits, temperature)
            log_q = log_mean_softmax([x(rows).to(dtype) for x in teachers], temperature)
            q = log_q.exp()
            nll_of_rows = -log_p.gather(1, target[rows]).sum()
            nll += nll_of_rows
            loss += own * (peak * nll_of_rows - share * log_p.sum())
            entropy -= torch.linalg.vecdot(q, log_q).sum()
            kl += torch.linalg.vecdot(q, log_q.sub_(log_p_t)).sum()
            if not any(needed):
                continue
            if temperature == 1:  # the student's two terms are one: (1 - w) p + w p
                grad = log_p.exp_()
            else:
                grad = log_p_t.exp_().mul_(taught)
                if own:
                    grad.add_(log_p.exp_(), alpha=own)
            grad.sub_(q, alpha=taught)
            if own * share:
                grad.sub_(own * share)
            if own:
                at_target = grad.new_full(target[rows].shape, -own * peak)
                grad.scatter_add_(1, target[rows], at_target)
            gradients.add(rows, grad)
        features_grad, weight_grad, _ = gradients.sums()
        ctx.save_for_backward(features_grad, weight_grad)
        loss += mixture.factor * kl
        ctx.mark_non_differentiable(nll, kl, entropy)
        return loss, nll, kl, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the kept gradients; the other five arguments have none."""
        return *times(ctx.saved_tensors, loss_grad, ctx.dtype), *[None] * 5
