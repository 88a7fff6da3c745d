"""The command `macaron-fairseq`: how it starts and how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from macaron_fairseq import UserError, cli

COMMAND = [sys.executable, "-m", "macaron_fairseq"]


def test_python_m_is_the_command_and_quiet():
    done = subprocess.run([*COMMAND, "user-dir"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()) == ROOT / "macaron_fairseq"


@pytest.mark.parametrize(
    "words", [["user-dir"], ["tokenize", "--language", "en", "--steps", "lowercase"]]
)
def test_a_cut_pipe_ends_as_a_shell_says_it(words):
    """141 is 128 + SIGPIPE, as for other programs in `... | head -1`; and nothing is said."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(b"A LINE\n" * 10, timeout=60)
    assert (process.returncode, said) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_sentence():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "user-dir"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "cannot write the output: No space left on device\n"


def test_an_interrupt_ends_as_a_shell_says_it(monkeypatch):
    from macaron_fairseq.commands import user_dir

    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(user_dir, "run", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main(["user-dir"])
    assert ended.value.code == 130


def test_a_file_that_is_missing_is_no_output_that_failed(monkeypatch):
    """What no command has foreseen stays a traceback, which a report of a bug needs."""
    from macaron_fairseq.commands import user_dir

    error = FileNotFoundError(2, "No such file or directory", "a.txt")

    def failed(args):
        raise error

    monkeypatch.setattr(user_dir, "run", failed)
    with pytest.raises(FileNotFoundError) as raised:
        cli.main(["user-dir"])
    assert raised.value is error and not isinstance(error, UserError)
