"""Raw text that somebody types: asked for line by line."""

import io
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from macaron_fairseq.common import files


def is_typed(source: Path) -> bool:
    """Whether that is standard input, and a terminal."""
    return str(source) == "-" and sys.stdin.isatty()


def typed_lines(source: str, target: str) -> Iterator[str]:
    """The lines that are typed, until Ctrl-D; what is said goes to stderr, or to the terminal.

    Args:
        source: the language that is asked for.
        target: that of the answers.
    """
    with suppress(ImportError):  # some builds of Python lack it
        import readline  # noqa: F401 - `input` then knows arrow keys, and what was typed before
    if isinstance(sys.stdin, io.TextIOWrapper):  # whatever the locale
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    print(f"{source} to {target}: type a line; Ctrl-D ends.", file=sys.stderr, flush=True)
    while True:
        prompt = f"{source}> "
        if not files.is_terminal(sys.stdout):  # where `input` would write it, too
            print(prompt, end="", file=sys.stderr, flush=True)
            prompt = ""
        try:
            line = input(prompt).encode(errors="surrogateescape").decode()
        except EOFError:
            print(file=sys.stderr)
            return
        except UnicodeDecodeError:
            print("this is not UTF-8: set the terminal to it", file=sys.stderr)
        else:
            yield line
