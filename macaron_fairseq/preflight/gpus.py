"""What a GPU cannot do here, in one sentence, before fairseq has loaded anything.

fairseq trains on the CPU without a word where the GPU's driver is too old. It starts to train in
bf16 where the GPU only emulates it, and with `--use-bmuf --fp16` it ends in a traceback.
`tests/preflight/test_gpus.py` shows what of this can be shown without a GPU.
"""

import multiprocessing
import os
import warnings
from argparse import Namespace
from pathlib import Path

import torch

from macaron_fairseq.common import environment, names
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model import bf16

FP16 = ("fp16", "memory_efficient_fp16")
BF16 = ("bf16", "memory_efficient_bf16")
# Of NVIDIA's driver, also where PyTorch cannot use it; the second under WSL.
DRIVERS = [Path("/proc/driver/nvidia/version"), Path("/usr/lib/wsl/lib/libcuda.so.1")]
DEVICES = Path("/dev")
NONE_VISIBLE = "No CUDA GPUs are available"  # PyTorch's word, which is no word on the driver


def check(args: Namespace, command: str, gpus: int) -> None:
    """Refuse what this machine's GPUs, or their absence, rule out.

    Args:
        args: fairseq's flags of precision, --cpu, --distributed-world-size and --use-bmuf.
        command: of fairseq's, such as "train".
        gpus: how many there are to use.

    Raises:
        UserError: naming what to change.
    """
    if args.tpu:  # for which fairseq has --bf16
        return
    asked = [name for name in (*FP16, *BF16, "amp") if getattr(args, name)]
    flags = [*map(names.flag, asked)]
    if not args.cpu and (reason := why_unusable()):
        without = f" without {flags[0]}" if flags else ""
        raise UserError(f"{reason}, or add --cpu{without}")
    if not gpus and asked:
        if command == "train" and args.cpu and set(asked) <= {*BF16}:
            bf16.refuse_where_slow(flags[0])
        elif asked != ["amp"]:  # of which fairseq makes nothing on a CPU
            raise UserError(
                f"{flags[0]} needs a GPU, and "
                f"{'--cpu rules it out' if args.cpu else why_none()}: "
                "leave it out to compute in fp32 on the CPU"
            )
    if (
        may_be_asked(args, command, gpus)
        and set(asked) & {*BF16}
        and not torch.cuda.is_bf16_supported(False)
    ):
        raise UserError(
            f"{flags[0]} needs a GPU of compute capability 8.0 or higher, and this one, "
            f"{torch.cuda.get_device_name()}, has {capability()}: use --fp16 instead"
        )
    if command == "train" and args.use_bmuf and asked:
        raise UserError(
            f"--use-bmuf and {flags[0]} do not go together in fairseq: drop one of them"
        )


def may_be_asked(args: Namespace, command: str, gpus: int) -> bool:
    """Whether there are GPUs that this process may ask what they can do.

    Asking starts CUDA. A process that starts one for each GPU must not: they ask themselves.
    """
    told = args.distributed_world_size
    # Only fairseq-train starts several where it is not told how many.
    is_alone = gpus == 1 or told == 1 or (told is None and command != "train")
    return gpus > 0 and (is_alone or multiprocessing.parent_process() is not None)


def capability() -> str:
    """Of the first GPU, such as 8.0."""
    return ".".join(map(str, torch.cuda.get_device_capability()))


def why_unusable() -> str | None:
    """What to do where there is a GPU, and PyTorch is built for it but cannot use it; or None."""
    if torch.version.cuda is None or torch.cuda.is_available() or not has_driver():
        return None
    if environment.hides_gpus() or not [*DEVICES.glob("nvidia[0-9]*"), *DEVICES.glob("dxg")]:
        return None  # hidden on purpose, or not of this job
    reason = why_not_started()
    if reason == NONE_VISIBLE:
        named = os.environ.get("CUDA_VISIBLE_DEVICES")  # unset where the job has no GPU
        return named and (
            f"CUDA_VISIBLE_DEVICES={named} names no GPU that PyTorch finds here: correct it"
        )
    return (
        f"PyTorch {torch.__version__} cannot use the GPU here ({reason}): update its "
        f"driver, install a PyTorch for an older CUDA than {torch.version.cuda}"
    )


def has_driver() -> bool:
    """Whether NVIDIA's driver is here."""
    return any(path.exists() for path in DRIVERS)


def why_not_started() -> str:
    """PyTorch's word on what is wrong, in short."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0].split(". ")[0].rstrip(".")
    return "it sees no device"


def why_none() -> str:
    """Why PyTorch finds no GPU."""
    if torch.version.cuda is None and torch.version.hip is None and has_driver():
        return f"PyTorch {torch.__version__} is built for CPUs, so install it for CUDA"
    return "PyTorch finds none here"
