"""Where `--macaron-compile` would fail late, be ignored or compute wrong gradients."""

import os
import shutil
from argparse import Namespace
from importlib.util import find_spec

import torch

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.preflight import gpus

OLDEST = (7, 0)  # compute capability that Triton is for


def refuse_where_wrong(args: Namespace) -> None:
    """Raise a `UserError` for flags with which it does not go."""
    for name in ("checkpoint", "offload"):
        if getattr(args, f"{name}_activations", False):
            raise UserError(
                f"--macaron-compile and --{name}-activations do not go together: what is computed "
                "again would draw another dropout; drop one"
            )
    is_quantised = getattr(args, "quant_noise_pq", 0) or getattr(args, "quant_noise_scalar", 0)
    if is_quantised or getattr(args, "macaron_kernels", None) == "fairseq":
        flag = "--quant-noise" if is_quantised else "--macaron-kernels fairseq"
        raise UserError(
            f"--macaron-compile compiles this package's layers, and with {flag} they are "
            "fairseq's: drop one"
        )
    if getattr(args, "ddp_backend", None) == "fully_sharded":
        raise UserError(
            "--macaron-compile does not go with --ddp-backend fully_sharded, which splits a "
            "layer's weights: drop one"
        )


def refuse_where_impossible(count: int) -> None:
    """Raise a `UserError` where PyTorch cannot compile for so many GPUs, or else for the CPU."""
    if not torch._dynamo.is_dynamo_supported():
        reason = "this PyTorch compiles nothing for this version of Python"
    elif count and find_spec("triton") is None:
        reason = "Triton is not installed, which PyTorch compiles with for a GPU"
    elif gpus.may_be_asked(count) and torch.cuda.get_device_capability() < OLDEST:
        reason = "this GPU is older than compute capability 7.0, for which Triton has no code"
    elif not count and not shutil.which(compiler()):
        reason = "there is no C++ compiler (g++, or the one that CXX names)"
    else:
        return
    raise UserError(f"--macaron-compile cannot work here, since {reason}: drop it")


def compiler() -> str:
    """The name under which PyTorch looks for a C++ compiler."""
    return os.environ.get("CXX") or "g++"
