"""What PyTorch and fairseq say of this machine and of flags, asked in a process apart.

Their imports take seconds and memory, which a recipe's own process does not keep.
"""

import contextlib
import functools
import io
import multiprocessing
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from shlex import split
from typing import Any

from common import train_command
from common.recipe import Recipe
from common.steps import killed
from common.train_command import Devices
from macaron_fairseq.common import names, signals
from macaron_fairseq.common.errors import in_a_line
from macaron_fairseq.compat import quiet


def apart(function: Callable, *arguments: Any) -> Any:
    """What a function returns, in a separate process: fairseq and PyTorch end with it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(there, function, arguments))
    with signals.as_exits():
        try:
            process.start()
            there.close()
            found = here.recv()
        except EOFError:
            process.join()
            status = process.exitcode or 1
            sys.exit(f"a process that loads fairseq {killed(status) if status < 0 else 'failed'}")
        except BaseException:
            if process.pid:  # or it would go on, without the lock that this one holds
                process.kill()
                process.join()
            raise
    process.join()
    if isinstance(found, BaseException):
        raise found
    return found


def tell(there: Connection, function: Callable, arguments: Sequence[Any]) -> None:
    """Send what a function returns to the process that waits for it; or end, if that has.

    A mistake that can be told in a sentence is sent, too, and raised there.
    """
    # At Ctrl-C the other one says what there is to say.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        found = function(*arguments)
    except (SystemExit, OSError) as error:
        found = error
    with suppress(BrokenPipeError):
        there.send(found)


def quieten() -> None:
    """Let fairseq and hydra say nothing of themselves; first of all, in a process `apart`."""
    quiet.import_fairseq()
    warnings.simplefilter("ignore")


def count_gpus(recipe: Recipe) -> int:
    """The GPUs of this node that PyTorch can use; 0 where the user wants none.

    Ends the program where PyTorch is built for GPUs and cannot use what is here.
    """
    if recipe.cpu:
        return 0
    return recipe.gpus or count_usable()


@functools.cache
def count_usable() -> int:
    """The GPUs that PyTorch can use here; ends the program where it cannot use those."""
    found = apart(usable_gpus)
    if isinstance(found, str):
        sys.exit(f"{found}, or give --cpu")
    return found


def usable_gpus() -> int | str:
    """How many GPUs PyTorch can use, or why it cannot use those here."""
    import torch

    from macaron_fairseq.preflight import gpus

    return gpus.why_unusable() or torch.cuda.device_count()


def has_nvidia() -> bool:
    """Whether NVIDIA's driver sees a GPU."""
    if not shutil.which("nvidia-smi"):
        return False
    return not subprocess.run("nvidia-smi", capture_output=True).returncode


def refuse_unknown_flags(trained: Iterable[tuple[Recipe, Devices]]) -> None:
    """End the program at an architecture, a flag or a precision that fairseq refuses."""
    asked = []
    for recipe, devices in trained:
        flags = [*recipe.data_flags, *recipe.benchmark.training.words()]
        flags += [*devices.flags, "--max-update", str(recipe.max_update), *recipe.extra]
        decode = split(recipe.benchmark.evaluation.decode)
        asked.append((recipe.archs, flags, not recipe.dry_run, decode))
    if asked and (reason := apart(first_unknown, asked)):
        sys.exit(reason)


def first_unknown(asked: Iterable[tuple[Sequence[str], Sequence[str], bool, list[str]]]) -> str:
    """The first that `unknown_to_fairseq` says of these arguments; "" without any."""
    return next(filter(None, (unknown_to_fairseq(*one) for one in asked)), "")


def unknown_to_fairseq(
    archs: Sequence[str], flags: Sequence[str], is_for_here: bool, decode: Sequence[str] = ()
) -> str:
    """Why fairseq would refuse an architecture with these flags; "" where it would not.

    Args:
        archs: of --archs.
        flags: of fairseq-train.
        is_for_here: whether it is to run on this machine's devices.
        decode: flags of fairseq-generate, for what is trained.
    """
    command = "fairseq-train"
    quieten()
    from fairseq import models, options
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.roberta import RobertaModel

    import macaron_fairseq.plugin  # which --user-dir would find imported, without the registrations
    from macaron_fairseq.preflight import checks, command_line

    assert macaron_fairseq.plugin
    sys.argv = ["recipe", *flags]  # where fairseq looks for --user-dir and --task
    kinds: dict[str, type] = {  # of the tasks that recipes train for
        "language_modeling": models.FairseqLanguageModel,
        "masked_lm": RobertaModel,
        "sentence_prediction": RobertaModel,
        "translation": models.FairseqEncoderDecoderModel,
    }
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            checked, _ = command_line.parse(flags)
            checks.check_optimizer(checked)
            if is_for_here:
                checks.check_devices(checked, "train")
            for arch in (name.split("/")[0] for name in archs):
                if arch not in ARCH_MODEL_REGISTRY:
                    question = names.question(arch, ARCH_MODEL_REGISTRY)
                    return f"there is no architecture {arch}{question}"
                if not issubclass(ARCH_MODEL_REGISTRY[arch], kinds.get(checked.task, object)):
                    return f"{arch} is not for {checked.task}: name one that is in --archs"
            for name in archs:
                words = [*flags, *train_command.arch_flags(name)]
                options.parse_args_and_arch(options.get_training_parser(), words)
            if decode and checked.task == "translation":
                command = "fairseq-generate"
                words = [flags[0], "--path", "averaged.pt", *decode]
                options.parse_args_and_arch(options.get_generation_parser(), words)
    except SystemExit as refusal:
        if not isinstance(refusal.code, int):
            return str(refusal.code)
        reason = said.getvalue().strip().split("\n")[-1].partition("error: ")[2]
        return f"{command} would refuse this: {reason}; see {command} --help"
    except Exception as error:  # of whatever kind: a bad value is an ArgumentError
        reason = in_a_line(error)
        return f"{command} would refuse this: {reason}; see {command} --help"
    return ""
