"""Processes that train together, or would each train a separate model instead.

fairseq takes the number of processes from the GPUs that it sees, not from torchrun, srun or mpirun.
If it sees one GPU or none, each process silently trains alone, and all write to the same folder.
Each refusal can go when its test fails, `test_fairseq_does_not_see_what_torchrun_or_srun_started`
and those after it.
"""

import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from types import TracebackType

import torch
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from macaron_fairseq.common.errors import UserError

MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def check(args: Namespace, environ: Mapping[str, str], gpus: int) -> None:
    """Refuse to train if the processes would not find each other.

    Args:
        args: fairseq-train's distributed_world_size, distributed_port and distributed_init_method.
        environ: what torchrun, Slurm's srun or mpirun has set.
        gpus: how many GPUs this process may use; 0 on a CPU.

    Raises:
        UserError: naming the flag that is missing.
    """
    if args.distributed_world_size == 1:  # separate models are meant
        return
    by_torchrun = is_by_torchrun(environ)
    launcher = "torchrun" if by_torchrun else "srun"
    started = int(environ.get("WORLD_SIZE" if by_torchrun else "SLURM_STEP_NUM_TASKS") or 1)
    is_told = args.distributed_init_method or args.distributed_world_size in (None, started)
    if by_torchrun and not is_told:
        raise UserError(
            f"torchrun started {started} processes, and --distributed-world-size is "
            f"{args.distributed_world_size}, which fairseq would ignore: give it as many on each "
            "node as there are together"
        )
    by_mpirun = max(int(environ.get(name) or 1) for name in MPI)
    if started == 1 and by_mpirun > 1 and not by_torchrun and not args.distributed_init_method:
        raise UserError(
            f"mpirun started {by_mpirun} processes, but fairseq does not know mpirun and would "
            "train a model in each: start them with torchrun, or pass --distributed-world-size 1 "
            "if that is meant"
        )
    if args.distributed_init_method:
        return
    if started == 1:
        if not by_torchrun and (args.distributed_world_size or gpus > 1):
            refuse_script_of_job(environ)
        return
    if not gpus:
        raise UserError(
            f"{launcher} started {started} processes, but without GPUs fairseq trains a model in "
            "each: start one, or give each --distributed-init-method tcp://HOST:PORT "
            f"--distributed-no-spawn --distributed-world-size {started} --distributed-rank N "
            "--distributed-backend gloo --ddp-backend legacy_ddp"
        )
    if not args.distributed_world_size and gpus == 1:
        raise UserError(
            f"{launcher} started {started} processes, each of which would train its own "
            f"model: pass --distributed-world-size {started}, or 1 if that is meant"
        )
    if not by_torchrun and args.distributed_port <= 0:
        raise UserError(
            f"srun started {started} processes, which fairseq connects only by a port that it is "
            "told: pass --distributed-port N, the same free port for all"
        )


def refuse_script_of_job(environ: Mapping[str, str]) -> None:
    """Raise a `UserError` in a script of a Slurm job whose tasks nobody has started.

    fairseq counts the tasks that the job asks for, and would wait for them. Where the job does not
    say how many, it ends in a traceback.
    """
    in_script = "SLURM_JOB_NODELIST" in environ and "SLURM_STEP_NODELIST" not in environ
    if not in_script or not shutil.which("scontrol"):  # without it fairseq does not ask Slurm
        return
    nodes = environ.get("SLURM_NNODES", "1")
    tasks = environ.get("SLURM_NTASKS_PER_NODE") or environ.get("SLURM_NTASKS")
    if (nodes, tasks) != ("1", "1"):
        raise UserError(
            "in a Slurm job fairseq counts on tasks that srun starts, and nothing has started "
            f"them: start it by srun --ntasks={nodes} --ntasks-per-node=1"
            f"{', with --distributed-port N' * (nodes != '1')}, and it takes all GPUs of each node"
        )


def refuse_several_on_a_cpu(args: Namespace) -> None:
    """Raise a `UserError` if fairseq would start processes on the CPU, one for each GPU here.

    That is its default, and they could not talk to each other. `check` comes first: it knows what
    others have started.
    """
    gpus = torch.cuda.device_count()
    is_told = args.distributed_world_size == 1 or args.distributed_init_method
    if args.cpu and gpus > 1 and not is_told:
        raise UserError(
            f"with --cpu, too, fairseq starts a process for each of the {gpus} GPUs here: add "
            "--distributed-world-size 1"
        )


def is_first(args: Namespace, environ: Mapping[str, str]) -> bool:
    """Whether this process is the first of those that train a model together; see `check`."""
    if args.distributed_world_size == 1:
        return True
    if args.distributed_init_method:
        return args.distributed_rank == 0
    return not int(environ.get("RANK" if is_by_torchrun(environ) else "SLURM_PROCID") or 0)


def is_by_torchrun(environ: Mapping[str, str]) -> bool:
    """Whether torchrun started this process."""
    return all(name in environ for name in TORCHRUN)


def explain() -> None:
    """Let a mistake that one of several processes finds end the command with its sentence."""
    sys.excepthook = instead_of_traceback(sys.excepthook)


def instead_of_traceback(others: Callable[..., None]) -> Callable[..., None]:
    """What Python calls last of all, in the process that has started those of each GPU.

    It knows of their errors by the text of a traceback, or by a status.

    Args:
        others: is called for what is no user's mistake.
    """
    name = f"{UserError.__module__}.{UserError.__qualname__}: "

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _, found, sentence = str(error).rpartition(name)
        is_last = found and "Traceback (most recent call last)" not in sentence
        if isinstance(error, ProcessRaisedException) and is_last:
            print(sentence.strip(), file=sys.stderr)
        elif isinstance(error, ProcessExitedException) and error.exit_code == 1:
            # A `SystemExit`, whose sentence the process has printed.
            print(f"process {error.error_index} ended the training, see above", file=sys.stderr)
        else:
            others(kind, error, trace)

    return hook
