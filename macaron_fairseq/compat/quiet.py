"""fairseq's import, which sets up the logging of the whole process and asks for a package.

`fairseq.tasks.text_to_speech`, imported with all other tasks, calls `logging.basicConfig`: from
then on every library prints what it logs at the level INFO. Then it says "Please install
tensorboardX", which nothing here needs. Newer versions of PyTorch warn about fairseq's scripted
functions. `tests/compat/test_quiet.py` shows this in the installed fairseq. Where that test fails,
this file can go.
"""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

ASKS = "fairseq.tasks.text_to_speech"


def import_fairseq() -> None:
    """Import fairseq without its request, and leave the process' logging as it was.

    Other messages are shown as ever. Where fairseq is imported already, nothing is done.
    """
    if "fairseq" in sys.modules:
        return
    logger = logging.getLogger(ASKS)
    logger.addFilter(is_no_request)
    try:
        with as_without_handlers(), warnings.catch_warnings():
            # Of PyTorch 2.14 and newer, about fairseq's scripted functions.
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")
            import_module("fairseq")
    finally:
        logger.removeFilter(is_no_request)


def is_no_request(record: logging.LogRecord) -> bool:
    """Whether it is another message than the request for tensorboardX."""
    return "install tensorboardX" not in record.getMessage()


@contextmanager
def as_without_handlers() -> Iterator[None]:
    """Give the root logger the handler that Python uses where there is none.

    `logging.basicConfig` does nothing to a logger that has a handler.
    """
    root, last = logging.getLogger(), logging.lastResort
    if root.handlers or last is None:
        yield
        return
    root.addHandler(last)
    try:
        yield
    finally:
        root.removeHandler(last)
