"""Attention of each hypothesis' last token, for a few hypotheses or keys.

Matrix products of such sizes take longer to be called than to multiply.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Numbers = NDArray[np.float32]
Places = NDArray[np.int64]

ANY_ORDER = {"reassoc", "contract"}  # of sums, so that several elements are added at once


def try_out() -> None:
    """Compile and call one of the loops."""
    to_softmax(np.ones(1, np.float32))


@njit(cache=True, nogil=True)
def attend_to_own(
    projected: Numbers, keys: Numbers, values: Numbers, slots: Places, weights: Numbers, y: Numbers
) -> None:
    """Attend to those keys of a sentence that are a hypothesis' own.

    Args:
        projected: the queries first, (sentence, beam, head, part, channel).
        keys: (sentence, head, position, slot, channel), with positions to spare.
        values: alike.
        slots: of each hypothesis' tokens, (sentence, beam, position).
        weights: for the result, (sentence, beam, head, position).
        y: for the values' means, (sentence, beam, head, channel).
    """
    sentences, beam, heads, _, _ = projected.shape
    length = slots.shape[2]
    for s in range(sentences):
        for h in range(heads):
            for b in range(beam):
                query, own = projected[s, b, h, 0], slots[s, b]
                found, mean = weights[s, b, h], y[s, b, h]
                for t in range(length):
                    found[t] = dot(query, keys[s, h, t, own[t]])
                to_softmax(found)
                mean[:] = 0
                for t in range(length):
                    add(mean, found[t], values[s, h, t, own[t]])


@njit(cache=True, nogil=True)
def attend_to_source(
    projected: Numbers, keys: Numbers, values: Numbers, mask: Numbers, weights: Numbers, y: Numbers
) -> None:
    """Attend to a sentence's source.

    Args:
        projected: the queries first, (sentence, beam, head, part, channel).
        keys: (sentence, head, position, channel).
        values: alike.
        mask: added to scores, (sentence, position).
        weights: for the result, (sentence, beam, head, position).
        y: for the values' means, (sentence, beam, head, channel).
    """
    sentences, beam, heads, _, _ = projected.shape
    length = mask.shape[1]
    for s in range(sentences):
        for h in range(heads):
            for b in range(beam):
                query = projected[s, b, h, 0]
                found, mean = weights[s, b, h], y[s, b, h]
                for t in range(length):
                    found[t] = dot(query, keys[s, h, t]) + mask[s, t]
                to_softmax(found)
                mean[:] = 0
                for t in range(length):
                    add(mean, found[t], values[s, h, t])


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def dot(x: Numbers, y: Numbers) -> np.float32:
    """The scalar product of two vectors."""
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@njit(cache=True, nogil=True, fastmath=ANY_ORDER)
def add(total: Numbers, factor: np.float32, x: Numbers) -> None:
    """Add a multiple of x."""
    for i in range(len(total)):
        total[i] += factor * x[i]


@njit(cache=True, nogil=True)
def to_softmax(scores: Numbers) -> None:
    """Make weights of scores, of which one at least is not -inf."""
    highest = scores.max()
    total = np.float32(0)
    for i in range(len(scores)):
        scores[i] = np.exp(scores[i] - highest)
        total += scores[i]
    scores /= total
