"""Worker processes: each runs one function, for one argument at a time."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from typing import Any

from macaron_fairseq.common import signals
from macaron_fairseq.common.environment import available_cores
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted

MOST_PER_CORE = 16  # one would do


class Workers(AbstractContextManager):
    """Worker processes. They end with the `with` block, or with this process."""

    def __init__(
        self,
        count: int,
        function: Callable[[Any], Any],
        advice: str,
        start_method: str | None = None,
    ) -> None:
        """Start them.

        Args:
            count: how many.
            function: what they run.
            advice: what takes less memory, to tell the user where a worker was killed.
            start_method: Python's if None. With "fork" the function finds this process as it is
                now, and need not be pickled.

        Raises:
            UserError: if these are far more than the cores, or the system starts none.
        """
        cores = available_cores()
        if count > MOST_PER_CORE * cores:
            raise UserError(
                f"{count} worker processes on {counted(cores, 'core')} would only fill the memory: "
                f"try again with {advice}"
            )
        self.ahead = 2 * count
        self.advice = advice
        context = multiprocessing.get_context(start_method)
        try:
            self.pool = ProcessPoolExecutor(count, context, _start, (function,))
            self.pool.submit(int)  # it starts none before
        except (OSError, AssertionError) as error:  # too many, or this process may not have any
            for process in self.processes if hasattr(self, "pool") else []:
                process.kill()
                process.join()
            raise UserError(
                f"no worker process can be started ({error}): try again with {advice}"
            ) from error

    @property
    def processes(self) -> list[Any]:
        """The executor's own: this process may have other children, started by other threads."""
        return [*(self.pool._processes or {}).values()]

    def map(self, arguments: Iterable[Any]) -> Iterator[Any]:
        """The function's results, in the arguments' order.

        Never reads further ahead than 2 * count arguments, however many there are.

        Raises:
            UserError: if a worker is killed.
        """
        running: deque[Future] = deque()
        try:
            for argument in arguments:
                running.append(self.pool.submit(_call, argument))
                if len(running) == self.ahead:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was killed, most often because memory ran out: try again with "
                f"{self.advice}"
            ) from error

    def close(self) -> None:
        """End them, whatever they are doing.

        By SIGKILL, since Python drops another signal that comes before a forked process has run.
        """
        for process in self.processes:
            process.kill()
        self.pool.shutdown()

    def __exit__(self, *_: object) -> None:
        self.close()


_function: Callable[[Any], Any]  # what this process runs if it is a worker


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    signals.end_at_once()  # the parent reports it
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # Otherwise a worker whose parent was killed would wait for ever, and hold the recipe's lock.
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _call(argument: Any) -> Any:
    return _function(argument)
