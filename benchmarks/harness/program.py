"""What the program of a benchmark needs before PyTorch is loaded."""

import argparse
import platform
import shlex
import signal
import sys
from collections.abc import Callable
from datetime import date

from macaron_fairseq.common import environment


def start(main: Callable[[], None]) -> None:
    """Run a benchmark; interrupted, it ends its processes and removes what it did not finish."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)


def parser(about: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help shows a benchmark's docstring with its lines as they are."""
    return argparse.ArgumentParser(
        description=about, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def here() -> str:
    """The date, the machine and Python, as they belong below a table."""
    machine = f"{environment.cpu_model()}, {environment.available_cores()} cores"
    return f"{date.today()}, {machine}, Python {platform.python_version()}"


def flags(text: str) -> str:
    """Flags of a command in one argument, as argparse takes it; their quotation marks must pair."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {str(error).lower()}") from error
    return text
