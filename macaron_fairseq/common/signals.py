"""Signals that end a process: as exceptions, so that what is half written goes."""

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = signal.SIGTERM, signal.SIGHUP
STATUSES = tuple(128 + number for number in ENDING)  # as a shell says them


@contextmanager
def as_exits() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise a SystemExit in the block, whose code is in `STATUSES`.

    A signal that is ignored stays so, as SIGHUP under nohup. Outside the main thread, where Python
    takes no handlers, nothing changes.
    """
    own = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != own:  # a process that has just been forked: it would remove our files
            os._exit(128 + number)
        raise SystemExit(128 + number)

    in_main = threading.current_thread() is threading.main_thread()
    taken = [x for x in ENDING if in_main and signal.getsignal(x) is signal.SIG_DFL]
    try:
        for number in taken:
            signal.signal(number, end)
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


class Interruption:
    """Lets Ctrl-C end this process by SIGINT itself, once all else is done.

    A shell's loop or script then ends, too. It goes on after a mere status of 130.
    """

    def __init__(self) -> None:
        """Be the last thing that Python does at its end: what is registered first comes last."""
        self.has_come = False
        atexit.register(self.end)

    def end(self) -> None:
        """End as it was ended."""
        if self.has_come:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)


def end_at_once() -> None:
    """Let signals end this process, a worker, whatever it does; its parent cleans up."""
    for number in (*ENDING, signal.SIGINT):
        if callable(signal.getsignal(number)):  # else it is ignored, as in a script's background
            signal.signal(number, signal.SIG_DFL)
