"""Signals that end a process: as exceptions, so that what is half written goes."""

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
    in_main = threading.current_thread() is threading.main_thread()
    taken = [x for x in ENDING if in_main and signal.getsignal(x) is signal.SIG_DFL]
    try:
        for number in taken:
            signal.signal(number, exit_for)
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def exit_for(number: int, _: object) -> None:
    """End this process as the signal would."""
    raise SystemExit(128 + number)


def end_at_once() -> None:
    """Let signals end this process with no cleaning up: a worker, whose parent does that."""
    for number in ENDING:
        if signal.getsignal(number) is exit_for:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
