"""Worker processes end with their block."""

import multiprocessing
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor

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


def test_what_another_thread_has_started_meanwhile_goes_on(monkeypatch):
    """Such as the workers of another model, or of a server."""
    submit, others = ProcessPoolExecutor.submit, []

    def after_another(pool, *work):
        if not others:
            others.append(
                multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            )
            others[0].start()
        return submit(pool, *work)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", after_another)
    with Workers(2, abs, "fewer workers", "fork") as workers:
        assert [*workers.map([-1, 2])] == [1, 2]
        assert len(workers.processes) == 2
    (other,) = others
    other.join(0.5)
    is_alive = other.is_alive()
    other.kill()
    other.join()
    assert is_alive
