"""Worker processes end with their block."""

import signal
import threading
import time

from macaron_fairseq.common.workers import Workers


def ignore_for(seconds):
    """Be deaf to the usual signal, as a process for which it comes before it has run at all."""
    if seconds > 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(seconds)
    return seconds


def test_a_worker_that_another_signal_would_not_reach_ends_too():
    """It waits behind the other one, which is killed while it holds the queue."""
    workers = Workers(2, ignore_for, "fewer workers", "fork")
    assert [*workers.map([1.5, 0.5])] == [1.5, 0.5]
    started = [*workers.processes]
    closing = threading.Thread(target=workers.close, daemon=True)
    closing.start()
    closing.join(30)
    is_open = closing.is_alive()
    for process in started:
        process.kill()
    assert not is_open and len(started) == 2
