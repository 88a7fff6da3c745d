"""How a recipe's program ends."""

import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT

# Without it what is printed is written at the end.
BUFFERED = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}


ENDS = """
import sys
sys.path.insert(0, "examples")
from common import entry
with entry.refusals("mine"):
    print("on its way")
    sys.exit("what is wrong")
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["--dry-run", "--cpu"]])
def test_a_cut_pipe_ends_as_a_shell_says_it(words, tmp_path):
    """141 is 128 + SIGPIPE, as for other programs in `... | head -1`; nothing is said of it."""
    process = subprocess.Popen(
        [ROOT / "examples" / "quickstart" / "run.sh", *words, "--work", tmp_path / "work"],
        env=BUFFERED,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(timeout=120)
    # What a dry run says of its commands.
    others = [x for x in said.splitlines() if not x.startswith(b"quickstart: ")]
    assert (process.returncode, others) == (141, [])


def test_a_cut_pipe_hides_no_other_end():
    """As Ctrl-C in `reproduce.sh | tee log` ends both."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nowhere:
        done = subprocess.run(
            [sys.executable, "-c", ENDS],
            cwd=ROOT,
            env=BUFFERED,
            stdout=nowhere,
            stderr=subprocess.PIPE,
        )
    assert (done.returncode, done.stderr) == (1, b"mine: what is wrong\n")


def test_a_closed_standard_output_is_none():
    program = ENDS.replace('sys.exit("what is wrong")', "pass")
    script = 'exec "$@" >&-'
    words = ["bash", "-c", script, "bash", sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, env=BUFFERED, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
