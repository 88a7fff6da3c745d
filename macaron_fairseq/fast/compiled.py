"""Dropout's loops over vectors, which Numba compiles when they are first called.

Numbers come from the Mersenne Twister (Matsumoto and Nishimura 1998) as PyTorch's generator of a
CPU keeps it: `state`, 624 words of 32 bits, of which the last `left` are still to be used. Loops
that draw return how many are left then.
"""

import logging

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Numbers = NDArray[np.float32]
Bits = NDArray[np.int16]
Masks = NDArray[np.int8]
Flags = NDArray[np.bool_]

# Where the root logger lets everything pass, Numba's compiler tells of each of its steps.
logging.getLogger("numba").setLevel(logging.WARNING)

WORDS = 624
SHIFT = 397
REST = WORDS - SHIFT
UPPER, LOWER = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
MATRIX = np.uint32(0x9908B0DF)
TEMPER_B, TEMPER_C = np.uint32(0x9D2C5680), np.uint32(0xEFC60000)
ONE = np.uint32(1)
BITS_21 = np.uint32(2**21 - 1)
BITS_32 = np.uint64(32)
BITS_16 = np.uint32(16)
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


@njit(cache=True, nogil=True)
def drop_and_add(x: Numbers, kept: Flags, y: Numbers, scale: np.float32, size: np.float32) -> None:
    """x + size (y where it is kept, scaled), in the place of y."""
    for i in range(len(x)):
        y[i] = x[i] + size * (y[i] * (scale * np.float32(kept[i])))


@njit(cache=True, nogil=True)
def rectify(
    state: Words, left: int, x: Numbers, bias: Numbers, threshold: int, scale: np.float32
) -> int:
    """Dropout of ReLU(x + bias), in the place of x, (row, channel)."""
    words = np.empty(2 * len(bias), np.uint32)
    for row in range(len(x)):
        left = draw(state, left, words)
        xs = x[row]
        for i in range(len(bias)):
            y = xs[i] + bias[i]
            # Zero where it is negative, but not where it is no number.
            y = np.float32(0) if y <= 0 else y
            xs[i] = y * (scale * np.float32(is_below(words, i, threshold)))
    return left


@njit(cache=True, nogil=True)
def of_rectified(x: Numbers, y: Numbers, result: Numbers, scale: np.float32) -> None:
    """x where y, what `rectify` gave, is not zero, scaled."""
    for i in range(len(x)):
        result[i] = x[i] * scale if y[i] != 0 else np.float32(0)


@njit(cache=True, nogil=True)
def draw_coarse(state: Words, left: int, masks: Masks, threshold: np.int16) -> int:
    """Masks of all bits or none: all where a signed number of 15 bits is below the threshold.

    Each 64 bits, of which the second word is the lower one, serve four elements in turn.
    """
    words = np.empty(2 * BLOCK, np.uint32)
    pairs, numbers = words.view(np.uint64), words.view(np.int16)
    for start in range(0, len(masks), 4 * BLOCK):
        part = masks[start : start + 4 * BLOCK]
        quarters = -(-len(part) // 4)
        left = draw(state, left, words[: 2 * quarters])
        for i in range(quarters):
            pairs[i] = (pairs[i] << BITS_32) | (pairs[i] >> BITS_32)
        for i in range(len(part)):
            part[i] = -np.int8((numbers[i] >> 1) < threshold)
    return left


@njit(cache=True, nogil=True)
def widened(bits: np.int16) -> np.float32:
    """bf16's bits as fp32, of which they are the upper half."""
    return np.uint32(np.uint32(np.uint16(bits)) << BITS_16).view(np.float32)


@njit(cache=True, nogil=True)
def narrowed(x: np.float32) -> np.int16:
    """The bits of the next bf16; of two that are as near, the even one."""
    bits = np.float32(x).view(np.uint32)
    return np.int16((bits + np.uint32(0x7FFF) + ((bits >> BITS_16) & ONE)) >> BITS_16)


@njit(cache=True, nogil=True)
def mask_coarse(x: Bits, masks: Masks, y: Bits, scale: np.float32) -> None:
    """x & mask, times scale, in y, of x in bf16."""
    for i in range(len(x)):
        y[i] = narrowed(scale * widened(x[i] & masks[i]))


@njit(cache=True, nogil=True)
def rectify_coarse(x: Bits, masks: Masks, scale: np.float32) -> None:
    """Dropout of ReLU(x), by masks, in the place of x in bf16."""
    for i in range(len(x)):
        y = widened(x[i])
        y = np.float32(0) if y <= 0 else y
        x[i] = narrowed(scale * y) & masks[i]


@njit(cache=True, nogil=True)
def of_rectified_coarse(x: Bits, y: Bits, result: Bits, scale: np.float32) -> None:
    """x where y, what `rectify_coarse` gave, is not zero, scaled."""
    for i in range(len(x)):
        result[i] = narrowed(scale * widened(x[i])) if y[i] != 0 else np.int16(0)


@njit(cache=True, nogil=True)
def add_coarse(x: Numbers, y: Bits, masks: Masks, result: Numbers, scale: np.float32) -> None:
    """x + scale (y & mask), in `result`, of y in bf16."""
    for i in range(len(x)):
        result[i] = x[i] + scale * widened(y[i] & masks[i])


@njit(cache=True, nogil=True)
def of_added_coarse(x: Numbers, masks: Masks, y: Bits, scale: np.float32) -> None:
    """scale x & mask, in y, in bf16."""
    for i in range(len(x)):
        y[i] = narrowed(scale * x[i]) & masks[i]
