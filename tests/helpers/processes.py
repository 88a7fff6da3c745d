"""Commands of this environment, and ports for processes that talk to each other."""

import contextlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

from helpers import commands, served


def run(command, *args, check=True, cwd=None, stdin=None, **env):
    """Run a command of this environment; the completed process has stdout and stderr in one."""
    words = [*map(str, args)]
    if command.startswith(("fairseq-", "macaron-fairseq")):
        done = commands.run_forked(command, words, cwd, {**os.environ, **env}, stdin)
    else:
        done = subprocess.run(
            [Path(sys.executable).with_name(command), *words],
            cwd=cwd,
            env={**os.environ, **env},
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=served.TIMEOUT,
        )
    if check:
        assert done.returncode == 0, done.stdout
    return done


def free_port():
    """A port of the loopback interface on which nobody listens, and that Linux gives to none."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
