"""Running the recipes as their users do."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from small import SMALL

EXAMPLES = ROOT / "examples"
ARCHS = ("transformer_tiny_pre_norm", "macaron_transformer_tiny")
# Models and trainings of seconds; what follows -- wins over the recipe's own flags.
FAST = ["--sizes", "any", "--cpu", "--max-update", "8", "--max-tokens", "512", "--average", "2"]
FAST += ["--workers", "1"]
FLAGS = ["--", *SMALL, "--lr", "0.01", "--warmup-updates", "1", "--validate-interval-updates", "4"]


def start(script, *args, **env):
    """A recipe in a process group of its own, with this environment's commands first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", EXAMPLES / script, *map(str, args)],
        env={**os.environ, "PATH": path, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def recipe(script, *args, status=0, **env):
    """Run it to its end; returns what it printed."""
    process = start(script, *args, **env)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == status, output
    return output


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
