"""What happens when one of fairseq's commands imports the package: the whole of `preflight`."""

import multiprocessing
from argparse import Namespace
from collections.abc import Sequence

from fairseq.models import ARCH_MODEL_REGISTRY

from macaron_fairseq.common.errors import explain_path
from macaron_fairseq.preflight import batches, checks, command_line, missing, save_folder
from macaron_fairseq.preflight.command_line import CommandLine

# Of an architecture that is registered later, as those of other packages are.
unknown: list[CommandLine] = []


def model_is_built(args: Namespace) -> None:
    """Check what could not be checked before the architecture was registered.

    Args:
        args: all flags, with which the model is built.

    Raises:
        UserError: if training is to go on with another network.
    """
    while unknown:
        checks.check_built(unknown.pop(), args)


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
    if line.command == "train" and line.args.arch not in ARCH_MODEL_REGISTRY:
        unknown.append(line)
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
    save_folder.claim(line)
