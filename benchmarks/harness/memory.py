"""The memory of a command and all its processes, looked at while it runs."""

import subprocess
import time
from contextlib import suppress

import psutil

SECONDS = 0.1  # between two looks, at least,
RARELY = 50  # and times the last look's: it takes a core


def wait(process: subprocess.Popen) -> float:
    """Wait for the end; returns the most MiB that were seen.

    Proportional set size: pages that processes share count once.
    """
    peak = 0
    while process.poll() is None:
        begin = time.perf_counter()
        peak = max(peak, of_tree(process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(SECONDS, RARELY * (time.perf_counter() - begin)))
    return peak / 2**20


def of_tree(pid: int) -> int:
    """Bytes that a process and its descendants hold."""
    total = 0
    with suppress(psutil.Error):  # it has just ended
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                found = member.memory_full_info()
                total += getattr(found, "pss", found.uss)  # Linux alone tells the former
    return total
