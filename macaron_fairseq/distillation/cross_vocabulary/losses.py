"""The losses of SRA (arXiv 2605.01205): teacher and student split text in different ways.

Both read the same text. It is cut where both have the end of a token (`common_spans`). Span i has
a centre of mass C_i on each side: the mean state of its tokens, by how much the last token attends
to each (`last_token`). With w the teacher's span weights and W a map that is learnt:

    cos = sum_i w_i (1 - cos(C^S_i W, C^T_i))                                  per layer
    geo = sum_ij w_i w_j (cos(C^S_i, C^S_j) - cos(C^T_i, C^T_j))^2 / sum_ij w_i w_j   last layer
    kd  = sum_i KL(softmax(z^T_i / T) || softmax(z^S_i / T))

cos and geo are means over sentences, kd is a sum over all spans divided by the sentences. z are the
output layers' logits of the centres, for types that are the same text in both dictionaries.
`uld_loss` is the baseline of Boizard et al. 2024 (arXiv 2402.12030).
"""

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, pad

from macaron_fairseq.distillation.spans import (
    at_least_tiny,
    cosine_distance,
    pair_weights,
    squared_differences,
)

FILLER = re.compile(r"madeupword\d{4,}")
Range = tuple[int, int]  # from a token to before another


def common_spans(
    student_ends: Sequence[int], teacher_ends: Sequence[int]
) -> tuple[list[Range], list[Range]]:
    """Cut a text wherever both tokenisations have the end of a token.

    Tokens after the last common end belong to no span. Where several tokens end at one character,
    as parts of a letter do, the cut is after the last of them.

    Args:
        student_ends: after which character each of the student's tokens ends, not decreasing.
        teacher_ends: the same of the teacher's.

    Returns:
        The spans as the student's tokens and as the teacher's, as many of each.
    """
    # By the character after which a token ends: the last token that ends there.
    student = {end: i for i, end in enumerate(student_ends)}
    teacher = {end: i for i, end in enumerate(teacher_ends)}
    ours, theirs = [], []
    begin = start = 0
    for cut in sorted(student.keys() & teacher.keys()):
        ours.append((begin, student[cut] + 1))
        theirs.append((start, teacher[cut] + 1))
        begin, start = student[cut] + 1, teacher[cut] + 1
    return ours, theirs


def centre_loss(projected: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """`cos`: the mean over sentences of the spans' weighted cosine distances.

    Args:
        projected: the student's centres in the teacher's width, (batch, spans, dim).
        teacher: the teacher's centres.
        weights: of the spans, (batch, spans), of which a sentence's sum to 1.
    """
    return (weights * cosine_distance(projected, teacher)).sum(1).mean()


def geometry_loss(student: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """`geo`: the mean over sentences; one with less than two spans adds 0.

    Args:
        student: centres, (batch, spans, student's dim).
        teacher: centres, (batch, spans, teacher's dim).
        weights: of the spans, as in `centre_loss`.
    """
    pairs = pair_weights(weights)
    pairs = pairs / at_least_tiny(pairs.sum((1, 2), keepdim=True))
    return (pairs * squared_differences(student, teacher)).sum((1, 2)).mean()


def common_types(student: Sequence[str], teacher: Sequence[str]) -> tuple[list[int], list[int]]:
    """The numbers of the types that two dictionaries share, in the student's order.

    fairseq fills dictionaries up to a multiple of 8 with types that stand for no text: these are
    not shared, though they have the same names.
    """
    numbers = {symbol: i for i, symbol in enumerate(teacher) if not FILLER.fullmatch(symbol)}
    found = [(i, numbers[x]) for i, x in enumerate(student) if x in numbers]
    return [i for i, _ in found], [j for _, j in found]


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) summed over rows: the sum of `kd` over spans, or MinED's over tokens.

    Args:
        student: logits, (rows, types).
        teacher: the same of the teacher's types that they meet.
        temperature: of both softmaxes; there is no factor T^2.
    """
    log_q = log_softmax(teacher.detach() / temperature, 1)
    log_p = log_softmax(student / temperature, 1)
    return (log_q.exp() * (log_q - log_p)).sum()


def uld_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Universal logit distillation: sum_v |sorted p^S - sorted p^T|, summed over positions.

    Sorted probabilities need no common vocabulary; the shorter list is filled up with 0. Position t
    of the student meets position t of the teacher.

    Args:
        student: logits, (positions, student's types).
        teacher: logits, (positions, teacher's types).
    """
    p, q = (in_order(x.softmax(1)) for x in (student, teacher.detach()))
    types = max(p.shape[1], q.shape[1])
    p, q = (pad(x, (types - x.shape[1], 0)) for x in (p, q))
    return (p - q).abs().sum()


def in_order(rows: Tensor) -> Tensor:
    """Each row in ascending order; on a CPU by NumPy, which takes a fraction of PyTorch's time."""
    if rows.device.type != "cpu":
        return rows.sort(1).values
    values = rows.detach().numpy()
    if not rows.requires_grad:
        return torch.from_numpy(np.sort(values, axis=1))
    return rows.gather(1, torch.from_numpy(np.argsort(values, axis=1)))
