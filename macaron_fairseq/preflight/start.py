"""What happens when one of fairseq's commands imports the package: the whole of `preflight`."""

import multiprocessing
from collections.abc import Sequence
from typing import Any

from macaron_fairseq.common.errors import explain_path
from macaron_fairseq.model.base import as_namespace
from macaron_fairseq.preflight import batches, checks, command_line, missing, ranks, save_folder
from macaron_fairseq.preflight.command_line import CommandLine

# What trains with an architecture or a criterion of another package, which is registered later.
unregistered: list[CommandLine] = []


def before_build(args: Any) -> None:
    """Check what could not be checked before all that the flags name was registered.

    Args:
        args: with which a model is built: all flags if it is to be trained, and for others, such as
            a teacher, those of its training.

    Raises:
        UserError: if training is to go on with another network.
    """
    if not unregistered or getattr(args, "arch", None) != unregistered[0].args.arch:
        return
    try:
        checks.check_built(unregistered.pop(), as_namespace(args))
    except OSError as error:
        explain_path(error)
        raise


def start(argv: Sequence[str]) -> None:
    """Check a command line and its files, and prepare for what may fail later.

    What is cheap to see comes first: checks read whole checkpoints. The save folder comes last,
    since a command that is refused should leave no lock behind.

    Args:
        argv: of the process; that of another program than fairseq's commands is left alone.

    Raises:
        UserError: naming what to change.
    """
    line = command_line.read(argv)
    if not line:
        return
    if line.command == "train" and not line.given:
        unregistered.append(line)
    if multiprocessing.parent_process():  # of several GPUs: the files were checked by its parent
        checks.check_devices(line.args, line.command)
        batches.explain(line)
        return
    try:
        missing.refuse(line)
        missing.refuse_untold(line)
        checks.check(line)
    except OSError as error:
        explain_path(error)
        raise
    batches.explain(line)
    ranks.explain()
    save_folder.claim(line)
