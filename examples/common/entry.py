"""How a recipe's program begins and ends: what --help shows, the tools that it needs, one sentence
for each mistake.
"""

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
    try:
        start.refuse_missing_package()
        for tool in TOOLS:
            if not shutil.which(tool):
                sys.exit(f"{tool} is not on the PATH: install it, or activate its environment")
        try:
            yield
        finally:
            sys.stdout.flush()  # also after --help
    except SystemExit as end:
        if not isinstance(end.code, str):
            if end.code in (128 + signal.SIGTERM, 128 + signal.SIGHUP):
                print(f"{name}: ended by a signal: {AGAIN}", file=sys.stderr, flush=True)
            raise
        print(f"{name}: {end.code}", file=sys.stderr, flush=True)
        sys.exit(1)
    except BrokenPipeError:  # as in `reproduce.sh report | head`
        from macaron_fairseq.common.files import close_stdout

        close_stdout()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        where = f"{error.filename}: " * bool(error.filename)
        print(f"{name}: {where}{error.strerror or error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{name}: interrupted: {AGAIN}", file=sys.stderr, flush=True)
        sys.exit(130)  # as a shell says it
