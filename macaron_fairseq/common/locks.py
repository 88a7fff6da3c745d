"""Locks that processes hold on a file; however a process ends, the system drops them.

They are fcntl's, not flock's: the processes that one forks do not inherit them, and different
processes can hold different bytes of one file.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import IO, Any

SECONDS = 10  # a killed process of many gigabytes takes a while to end
POLL_SECONDS = 0.2


class NoLocksError(OSError):
    """There are none, as on some network disks."""


def hold(path: Path) -> IO[bytes] | None:
    """Keep other processes from a file until what is returned is closed, or this process ends.

    Args:
        path: of the file, which is made with its folder if it is not there. Who holds it may
            remove it.

    Returns:
        The file; None if another process holds it for some seconds.

    Raises:
        NoLocksError: if it cannot be locked.
        OSError: if it cannot be opened.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        try:
            is_free = claim(file)
        except BaseException:
            file.close()
            raise
        if is_free and has_name(file, path):
            return file
        file.close()
        if not is_free:
            return None


def claim(file: IO[Any], start: int = 0, length: int = 0) -> bool:
    """Keep other processes from bytes of a file until it is closed, or this process ends.

    It waits some seconds for another process to end.

    Args:
        file: open for writing; its bytes need not be there.
        start: the first byte.
        length: how many; 0: all that follow.

    Returns:
        Whether nobody else holds one of the bytes.

    Raises:
        NoLocksError: if they cannot be locked.
    """
    end = time.monotonic() + SECONDS
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        except OSError as error:
            raise NoLocksError(error.errno, error.strerror) from error


def has_name(file: IO[Any], path: Path) -> bool:
    """Whether an open file still has that name: who locks a removed one keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
