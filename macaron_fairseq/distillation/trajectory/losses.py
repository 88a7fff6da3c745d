"""The losses of MTA (arXiv 2605.01374): a student's layers follow those of its teacher.

At each pair of layers a student's states h^S meet a teacher's h^T, of the same tokens. Spans gather
tokens. w are the weights of the teacher's tokens (`token_weights`), divided by their sum over all
spans of the sentence (`member_weights`). w_i is their sum in span i. U_i is the span's mean state
by each side's own weights, and W a map that is learnt:

    DSA = sum_ij w_i w_j (cos(U^S_i, U^S_j) - cos(U^T_i, U^T_j))^2 / sum_ij w_i w_j
    Hid = sum_t w_t (1 - cos(W h^S_t, h^T_t)) / sum_t w_t

i and j are two spans of one sentence; sums are over the whole batch. DSA, the dynamic structural
alignment, needs no map between the widths: rotating or scaling the student's U changes nothing.

This is what the authors' code computes, but for one thing: there, padded positions take part in the
weights of tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from macaron_fairseq.distillation.spans import (
    at_least_tiny,
    centres,
    cosine_distance,
    member_weights,
    pair_weights,
    squared_differences,
)

# What DSA counts against Hid in the authors' code.
HIDDEN_SHARE = 0.1
EPSILON = 1e-5


@dataclass(frozen=True)
class LayerPair:
    """One student layer that meets one of the teacher's."""

    student: Tensor  # states, (batch, length, student's dim)
    teacher: Tensor  # states, (batch, length, teacher's dim)
    student_weights: Tensor  # of its tokens, (batch, length), see `token_weights`
    teacher_weights: Tensor
    members: Tensor  # spans, (batch, spans, length), see `spans`
    to_teacher: Callable[[Tensor], Tensor]  # the map from the student's width to the teacher's


class Alignment(NamedTuple):
    """How far a student's layer is from its teacher's."""

    structure: Tensor  # DSA
    hidden: Tensor  # Hid


def token_weights(states: Tensor, mask: Tensor) -> Tensor:
    """How much the tokens of a sentence attend to each one in a layer's states, without gradient.

    The states, divided by their standard deviations, are queries and keys. A token does not attend
    to itself. In a sentence of one token its weight is not 0.

    Args:
        states: (batch, length, dim).
        mask: true for tokens, false for padding, (batch, length).

    Returns:
        (batch, length); 0 at padding. A sentence's weights sum to 1.
    """
    mask = mask.bool()
    length = states.shape[1]
    with torch.no_grad():
        x = states.to(torch.promote_types(states.dtype, torch.float32))
        x = x / (x.std(2, keepdim=True) + EPSILON)
        scores = torch.bmm(x, x.transpose(1, 2)) / x.shape[2] ** 0.5
        hidden = ~mask.unsqueeze(1) | torch.eye(length, dtype=torch.bool, device=x.device)
        attention = scores.masked_fill(hidden, torch.finfo(x.dtype).min).softmax(2)
        weights = (attention * mask.unsqueeze(2)).sum(1) * mask
        return weights / at_least_tiny(weights.sum(1, keepdim=True))


def align(pair: LayerPair, importance: Tensor | None = None) -> Alignment:
    """DSA and Hid of two layers; both are 0, with a gradient of 0, where there is no span.

    Args:
        pair: the layers.
        importance: w, (batch, length), 0 at padding; None for the weights of the teacher's tokens.
    """
    dtype = torch.promote_types(pair.student.dtype, torch.float32)
    student, teacher = pair.student.to(dtype), pair.teacher.detach().to(dtype)
    own, others = (
        member_weights(pair.members, x.to(dtype))
        for x in (pair.student_weights, pair.teacher_weights)
    )
    weights = others if importance is None else member_weights(pair.members, importance.to(dtype))
    pairs = pair_weights(weights.sum(2))
    differences = squared_differences(centres(student, own), centres(teacher, others))
    # Weights first: a gradient divided by a tiny sum would be infinite.
    structure = (pairs / at_least_tiny(pairs.sum()) * differences).sum()

    of_tokens = weights.sum(1)
    distances = cosine_distance(pair.to_teacher(pair.student).to(dtype), teacher)
    hidden = (of_tokens / at_least_tiny(of_tokens.sum()) * distances).sum()
    return Alignment(structure, hidden)


def trajectory_loss(alignments: Sequence[Alignment]) -> Tensor:
    """The mean over layers of DSA + Hid / 10."""
    losses = [x.structure + HIDDEN_SHARE * x.hidden for x in alignments]
    return torch.stack(losses).mean()
