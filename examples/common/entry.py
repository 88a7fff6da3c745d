"""How a recipe's program begins and ends: what --help shows, the tools that it needs, one sentence
for each mistake.
"""

from __future__ import annotations  # an old Python gets as far as a sentence

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import start

AGAIN = "start it again, and it goes on"
TOOLS = (
    "macaron-fairseq",
    "fairseq-preprocess",
    "fairseq-train",
    "fairseq-generate",
    "subword-nmt",
)


def header(script: Path) -> str:
    """The comment at the top of a file, without what is for shellcheck."""
    lines = script.read_text("utf-8", errors="replace").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = [line for line in lines[:end] if not re.match("#!|# shellcheck", line)]
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment)


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Look for the tools; then a mistake is one sentence that begins with `name`, and status 1."""
    interruption = None
    try:
        with flushed():
            start.refuse_missing_package()
            from macaron_fairseq.common.signals import Interruption

            interruption = Interruption()
            for tool in TOOLS:
                if not shutil.which(tool):
                    sys.exit(f"{tool} is not on the PATH: install it, or activate its environment")
            yield
    except SystemExit as end:
        if not isinstance(end.code, str):
            if end.code in (128 + signal.SIGTERM, 128 + signal.SIGHUP):
                print(f"{name}: ended by a signal: {AGAIN}", file=sys.stderr, flush=True)
            raise
        print(f"{name}: {end.code}", file=sys.stderr, flush=True)
        sys.exit(1)
    except BrokenPipeError:  # as in `reproduce.sh report | head`
        let_go()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        where = f"{error.filename}: " * bool(error.filename)
        way_out = ""
        if error.errno in (errno.EACCES, errno.EROFS) and isinstance(error.filename, str):
            path = Path(error.filename)
            if not os.path.lexists(path) and not os.access(path.parent, os.W_OK):
                way_out = ": name a folder that you may write to, such as by --work"
        print(f"{name}: {where}{error.strerror or error}{way_out}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{name}: interrupted: {AGAIN}", file=sys.stderr, flush=True)
        if interruption:
            interruption.has_come = True
        sys.exit(130)  # as a shell says it


@contextmanager
def flushed() -> Iterator[None]:
    """Write what was printed. Where that fails, it is an error only if there is no other."""
    try:
        yield
    except BaseException as end:
        try:
            flush()
        except OSError:
            if isinstance(end, SystemExit) and not end.code:  # as after --help
                raise
            let_go()
        raise
    flush()


def flush() -> None:
    """Write what was printed; nothing, where standard output was closed from the start."""
    if sys.stdout:
        sys.stdout.flush()


def let_go() -> None:
    """Let what cannot be written go nowhere, or Python would try again at exit."""
    from macaron_fairseq.common.files import close_stdout  # which may not be installed

    close_stdout()
