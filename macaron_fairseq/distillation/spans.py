"""Spans of a sentence's tokens: which tokens each has, its mean state, and how spans are placed.

A batch has states (batch, length, dim), and spans as `members`: (batch, spans, length), true where
a token belongs to a span. Sentences have different numbers of spans; those that are missing, and
spans without a token, have no members and count nowhere.
"""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize


def members_within(spans: Tensor, starts: Tensor, ends: Tensor, mask: Tensor) -> Tensor:
    """Which tokens lie within which spans.

    Args:
        spans: (batch, spans, 2), start and end in any unit, such as characters; -1 for none.
        starts: of each token, (batch, length), in the same unit.
        ends: of each token.
        mask: true for tokens, false for padding, (batch, length).

    Returns:
        `members`, (batch, spans, length). A token can be in several spans.
    """
    start, end = spans.unsqueeze(3).unbind(2)
    inside = (starts.unsqueeze(1) >= start) & (ends.unsqueeze(1) <= end)
    return inside & mask.bool().unsqueeze(1) & (start >= 0)


def members_of_ranges(ranges: list[list[tuple[int, int]]], length: int) -> Tensor:
    """The spans from one token to before another, for each sentence of a batch.

    Args:
        ranges: for each sentence, the number of the first token of each span and that after it.
        length: of the batch.

    Returns:
        `members`, (batch, spans, length).
    """
    most = max(map(len, ranges), default=0)
    padded = torch.tensor([[*x, *[(0, 0)] * (most - len(x))] for x in ranges], dtype=torch.long)
    start, end = padded.view(len(ranges), most, 2, 1).unbind(2)
    places = torch.arange(length)
    return (places >= start) & (places < end)


def member_weights(members: Tensor, weights: Tensor) -> Tensor:
    """The weight of each token in each of its spans; the weights of a sentence sum to 1.

    A token in two spans counts twice. A sentence without spans has only zeros.

    Args:
        members: (batch, spans, length).
        weights: of the tokens, not negative, (batch, length).

    Returns:
        (batch, spans, length).
    """
    found = members * weights.unsqueeze(1)
    return found / at_least_tiny(found.sum((1, 2), keepdim=True))


def centres(states: Tensor, weights: Tensor) -> Tensor:
    """The mean state of each span; zero where it has no member.

    Args:
        states: (batch, length, dim).
        weights: of each token in each span, (batch, spans, length).

    Returns:
        (batch, spans, dim).
    """
    return torch.bmm(weights / at_least_tiny(weights.sum(2, keepdim=True)), states)


def pair_weights(weights: Tensor) -> Tensor:
    """w_i w_j for two different spans of a sentence, and 0 for one with itself.

    Args:
        weights: of the spans, (batch, spans).

    Returns:
        (batch, spans, spans).
    """
    pairs = weights.unsqueeze(2) * weights.unsqueeze(1)
    return pairs * (1 - torch.eye(pairs.shape[1], dtype=pairs.dtype, device=pairs.device))


def cosines(vectors: Tensor) -> Tensor:
    """The cosine of any two spans of a sentence: (batch, spans, dim) to (batch, spans, spans)."""
    directions = normalize(vectors, dim=2)
    return torch.bmm(directions, directions.transpose(1, 2))


def squared_differences(student: Tensor, teacher: Tensor) -> Tensor:
    """How differently spans are placed: (cos S_ij - cos T_ij)^2, (batch, spans, spans).

    Both are unchanged if one side's vectors, (batch, spans, its dim), are rotated or scaled.
    """
    return (cosines(student) - cosines(teacher)).square()


def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """1 - cos(x, y) along the last dimension."""
    return 1 - cosine_similarity(x, y, dim=-1)


def at_least_tiny(x: Tensor) -> Tensor:
    """A sum of weights to divide them by, above 0: they are 0 where they were."""
    return x.clamp_min(torch.finfo(x.dtype).tiny)
