"""How a recipe's program ends."""

import os
import subprocess

import pytest
from helpers.paths import ROOT

# Without it what is printed is written at the end.
BUFFERED = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["--dry-run", "--cpu"]])
def test_a_cut_pipe_ends_as_a_shell_says_it(words, tmp_path):
    """141 is 128 + SIGPIPE, as for other programs in `... | head -1`; and nothing is said."""
    process = subprocess.Popen(
        [ROOT / "examples" / "quickstart" / "run.sh", *words, "--work", tmp_path / "work"],
        env=BUFFERED,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (141, b"")
