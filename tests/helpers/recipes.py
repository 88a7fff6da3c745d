"""Running the recipes: in this process, or as their users do."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
import recipe as program
from common import ask_fairseq

from helpers import served
from helpers.paths import ROOT
from helpers.small import SMALL

EXAMPLES = ROOT / "examples"

ARCHS = ("transformer_tiny_pre_norm", "macaron_transformer_tiny")
# Models and trainings of seconds; what follows -- wins over the recipe's own flags.
FAST = ["--sizes", "any", "--cpu", "--max-update", "4", "--max-tokens", "512", "--average", "2"]
FAST += ["--workers", "1", "--merges", "60"]
FLAGS = ["--", *SMALL, "--lr", "0.01", "--warmup-updates", "1", "--validate-interval-updates", "4"]
FLAGS += ["--required-batch-size-multiple", "1"]


def environment(**env):
    """With stand-ins for this environment's commands first on the PATH."""
    folders = str(served.folder()), str(Path(sys.executable).parent), os.environ["PATH"]
    return {**os.environ, "PATH": os.pathsep.join(folders), **env}


def recipe(script, *args, status=0, is_bare=False, **env):
    """Run it in this process; returns what it and its commands printed.

    With `is_bare` the commands are not there to be called, which takes no time to start.
    """
    words = [str(EXAMPLES / script), *map(str, args)]
    return printed(program.main, words, status, env if is_bare else environment(**env))


def printed(main, words, status, changed):
    """What a recipe's `main` and its commands print, with these variables of the environment."""
    argv = sys.argv
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        mock.patch.dict(os.environ, changed),
        # fairseq is here already.
        mock.patch.object(ask_fairseq, "apart", lambda function, *words: function(*words)),
        printed_to(output),
    ):
        code = 0
        ask_fairseq.count_usable.cache_clear()  # another test may have other GPUs
        try:
            main(words)
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.argv = argv
            output.flush()
            output.seek(0)
            text = output.read()
    assert code == status, text
    return text


@contextlib.contextmanager
def printed_to(file):
    """What this process and those that it starts print goes to a file."""
    kept = os.dup(1), os.dup(2)
    for number in (1, 2):
        os.dup2(file.fileno(), number)
    try:
        with (
            open(1, "w", encoding="utf-8", closefd=False, buffering=1) as lines,
            contextlib.redirect_stdout(lines),
            contextlib.redirect_stderr(lines),
        ):
            yield
    finally:
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)


def start(script, *args, **env):
    """A recipe in a process group of its own."""
    return subprocess.Popen(
        ["bash", EXAMPLES / script, *map(str, args)],
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_recipe(when, script, *args, **env):
    """SIGKILL to all of its processes once it has printed a line or written a file."""
    process = start(script, *args, **env)
    if isinstance(when, Path):
        while not when.exists():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.02)
    else:
        printed = ""
        for line in process.stdout:
            printed += line
            if when in line:
                break
        else:
            pytest.fail(f"ended before '{when}':\n{printed}")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def fingerprint(work):
    return json.loads((work / "data" / "preprocessing.json").read_text())["fingerprint"]
