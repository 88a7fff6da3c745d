"""MinED, a baseline of distillation across vocabularies (Wan et al. 2024, arXiv 2401.10491).

Two tokenisations of a sentence are aligned by dynamic time warping, whose cost is the edit distance
of two tokens. Each of the teacher's types becomes the student's type with the least edit distance.
Where one token meets one that becomes it, the student learns the teacher's distribution, and
elsewhere the token itself:

    matched   KL(softmax(m(z^T) / T) || softmax(z^S / T)),    m(z)_v = max of z over types like v
    else      -log softmax(z^S / T)_gold

Both without the factor T^2, as in the code of those who compare with it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from macaron_fairseq.common.errors import explain_missing

TYPES_AT_ONCE = 1000
LOW = -1e5  # the logit of a type that no type of the teacher's is like


def edit_distances(some: Sequence[str], others: Sequence[str]) -> Any:
    """Levenshtein's distance of any two texts, an array of (some, others).

    Raises:
        UserError: if rapidfuzz is not installed.
    """
    try:
        from rapidfuzz.distance import Levenshtein
        from rapidfuzz.process import cdist
    except ImportError as error:
        explain_missing(error, "rapidfuzz", "distillation")
    return cdist(some, others, scorer=Levenshtein.distance, dtype=np.uint16)


def nearest_types(student: Sequence[str], teacher: Sequence[str], special: int) -> list[int]:
    """For each of the teacher's types the student's with the least edit distance, or the same one.

    Args:
        student: the student's types in their order.
        teacher: the teacher's.
        special: how many types at the beginning of the student's are like themselves alone.

    Raises:
        UserError: if rapidfuzz is not installed.
    """
    numbers = {symbol: i for i, symbol in enumerate(student)}
    new = [symbol for symbol in teacher if symbol not in numbers]
    for start in range(0, len(new), TYPES_AT_ONCE):
        some = new[start : start + TYPES_AT_ONCE]
        nearest = edit_distances(some, student[special:]).argmin(1) + special
        numbers.update(zip(some, nearest.tolist(), strict=True))
    return [numbers[symbol] for symbol in teacher]


def warp(costs: Sequence[Sequence[float]]) -> list[list[int]]:
    """Dynamic time warping: which columns each row meets on the cheapest way through a table.

    The way goes from the first corner to the last, by one row, one column, or both. Of ways that
    cost the same it is the one that goes by both, seen from the end.
    """
    if not len(costs):
        return []
    width = len(costs[0])
    totals = [[0.0] + [np.inf] * width]
    for row in costs:
        above, now = totals[-1], [np.inf]
        for j, cost in enumerate(row):
            now.append(cost + min(above[j], above[j + 1], now[j]))
        totals.append(now)
    found: list[list[int]] = [[] for _ in costs]
    i, j = len(costs), width
    while i and j:
        found[i - 1].append(j - 1)
        ways = (totals[i - 1][j - 1], 1, 1), (totals[i - 1][j], 1, 0), (totals[i][j - 1], 0, 1)
        _, up, left = min(ways, key=lambda way: way[0])
        i, j = i - up, j - left
    return [columns[::-1] for columns in found]


def matches(
    student: Sequence[int],
    teacher: Sequence[int],
    texts: tuple[Sequence[str], Sequence[str]],
    to_student: Sequence[int],
) -> list[int]:
    """The teacher's position that each position of the student's meets alone; -1 for none.

    Args:
        student: the tokens that the student reads.
        teacher: those that the teacher reads.
        texts: both as texts, without the marks of BPE.
        to_student: see `nearest_types`.
    """
    met = warp(edit_distances(*texts).tolist())
    return [
        columns[0] if len(columns) == 1 and to_student[teacher[columns[0]]] == token else -1
        for token, columns in zip(student, met, strict=True)
    ]


def as_students(logits: Tensor, to_student: Tensor, types: int) -> Tensor:
    """A teacher's logits, (tokens, its types), as those of so many types of the student's."""
    found = logits.new_full((len(logits), types), LOW)
    return found.scatter_reduce(1, to_student.expand(len(logits), -1), logits, "amax")
