"""Work on all pairs of n points without their n x n matrix: a block of rows at a time.

NumPy leaves Python's lock while it computes, so that threads share the blocks of one matrix.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from macaron_fairseq.common import environment

# Entries of the matrix in a block: 4 MiB, about what a core's cache holds. A smaller matrix is not
# divided.
ENTRIES = 1 << 19

Part = TypeVar("Part")


def rows(n: int) -> list[slice]:
    """Slices that divide n rows of n entries into blocks."""
    size = max(1, ENTRIES // n)
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def over_rows(n: int, work: Callable[[slice], Part]) -> Iterator[Part]:
    """What `work` gives for each block of rows, in their order, computed on all cores.

    A memory of one block for each core is needed, next to what `work` returns.
    """
    blocks = rows(n)
    if len(blocks) == 1:
        yield work(blocks[0])
        return
    # The threads of BLAS would wait for each other, many times longer than they compute.
    with (
        _libraries().limit(limits=1, user_api="blas"),
        ThreadPoolExecutor(environment.wanted_threads()) as pool,
    ):
        yield from pool.map(work, blocks)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # looks at all that is loaded, which takes milliseconds
