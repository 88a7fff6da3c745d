"""What a signal that ends a process leaves behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from macaron_fairseq.common import signals

COMMAND = Path(sys.executable).with_name("macaron-fairseq")


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, "2"), (signal.SIGHUP, "1")])
def test_a_command_that_is_ended_leaves_no_half_of_its_output(number, workers, tmp_path):
    words = ["tokenize", "--steps", "tokenize", "--file", "en", "-", tmp_path / "tokens.en"]
    with subprocess.Popen(
        [COMMAND, *words, "--workers", workers],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also under nohup
    ) as process:
        try:
            process.stdin.write(b"A line.\n" * 100_000)  # more than a pipe holds: it has begun
            assert [*tmp_path.iterdir()] != []
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert said.endswith(b"ended by a signal\n") and b"Traceback" not in said
    assert [*tmp_path.iterdir()] == []


def test_what_is_ignored_or_handled_stays_so():
    def other(number, frame):
        raise AssertionError

    before = [signal.getsignal(number) for number in signals.ENDING]
    try:
        signal.signal(signal.SIGTERM, other)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with signals.as_exits():
            found = [signal.getsignal(number) for number in signals.ENDING]
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        for number, handler in zip(signals.ENDING, before, strict=True):
            signal.signal(number, handler)
    assert found == [other, signal.SIG_IGN]


def test_the_handlers_end_with_the_block():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as end, signals.as_exits():
            os.kill(os.getpid(), signal.SIGTERM)
        assert end.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_process_cleans_nothing_up():
    """A worker may be ended before it has begun, when it still stands where its parent does."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with signals.as_exits():
            child = os.fork()
            try:
                if not child:
                    os.kill(os.getpid(), signal.SIGTERM)
            finally:
                if not child:
                    os._exit(1)  # had it come here, it would have gone on to the parent's cleaning
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
