"""Dropout's loops over vectors, which Numba compiles when they are first called.

Numbers come from the Mersenne Twister (Matsumoto and Nishimura 1998), as PyTorch's generator on a
CPU does. Its `state` is 624 words of 32 bits, of which the last `left` are still to be used. Loops
that draw return how many are left then.
"""

import logging

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Numbers = NDArray[np.float32]
Flags = NDArray[np.bool_]

# Numba's compiler logs each of its steps, which shows where the root logger lets everything pass.
logging.getLogger("numba").setLevel(logging.WARNING)

WORDS = 624
SHIFT = 397
REST = WORDS - SHIFT
UPPER, LOWER = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
MATRIX = np.uint32(0x9908B0DF)
TEMPER_B, TEMPER_C = np.uint32(0x9D2C5680), np.uint32(0xEFC60000)
ONE = np.uint32(1)
BITS_21 = np.uint32(2**21 - 1)
BLOCK = 4096  # elements at a time: their numbers stay in a core's cache


@njit(cache=True, nogil=True)
def twist(high: np.uint32, low: np.uint32, shifted: np.uint32) -> np.uint32:
    """The next word of the state from three of its words."""
    word = (high & UPPER) | (low & LOWER)
    return shifted ^ (word >> ONE) ^ ((np.uint32(0) - (word & ONE)) & MATRIX)


@njit(cache=True, nogil=True)
def renew(state: Words) -> None:
    """Replace the state by its next 624 words.

    No index can be negative, so that the compiler may take many words at once.
    """
    for i in range(REST):
        state[i] = twist(state[i], state[i + 1], state[i + SHIFT])
    for i in range(SHIFT - 1):
        state[i + REST] = twist(state[i + REST], state[i + REST + 1], state[i])
    state[WORDS - 1] = twist(state[WORDS - 1], state[0], state[SHIFT - 1])


@njit(cache=True, nogil=True)
def draw(state: Words, left: int, words: Words) -> int:
    """Fill `words` with the generator's next numbers of 32 bits."""
    done = 0
    while done < len(words):
        if left == 0:
            renew(state)
            left = WORDS
        count = min(left, len(words) - done)
        first = WORDS - left
        source, drawn = state[first : first + count], words[done : done + count]
        for i in range(count):
            y = source[i]
            y ^= y >> np.uint32(11)
            y ^= (y << np.uint32(7)) & TEMPER_B
            y ^= (y << np.uint32(15)) & TEMPER_C
            drawn[i] = y ^ (y >> np.uint32(18))
        left -= count
        done += count
    return left


@njit(cache=True, nogil=True)
def is_below(words: Words, i: int, threshold: int) -> bool:
    """Whether the lower 53 of the i-th 64 bits are below a threshold."""
    first, second = words[2 * i] & BITS_21, words[2 * i + 1]
    high, low = np.uint32(threshold >> 32), np.uint32(threshold & 0xFFFFFFFF)
    return (first < high) | ((first == high) & (second < low))


@njit(cache=True, nogil=True)
def draw_kept(state: Words, left: int, kept: Flags, threshold: int) -> int:
    """What dropout keeps: where 53 of 64 bits are below the threshold."""
    words = np.empty(2 * BLOCK, np.uint32)
    for start in range(0, len(kept), BLOCK):
        part = kept[start : start + BLOCK]
        left = draw(state, left, words[: 2 * len(part)])
        for i in range(len(part)):
            part[i] = is_below(words, i, threshold)
    return left


@njit(cache=True, nogil=True)
def drop(x: Numbers, kept: Flags, y: Numbers, scale: np.float32) -> None:
    """x where it is kept, scaled, in y."""
    for i in range(len(x)):
        y[i] = x[i] * (scale * np.float32(kept[i]))
