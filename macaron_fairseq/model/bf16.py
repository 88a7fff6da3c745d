"""Where bf16 on a CPU (`--macaron-matmul bf16`, `--bf16 --cpu`) would be wrong or slow."""

from argparse import Namespace

import torch

from macaron_fairseq.common.errors import UserError


def refuse_where_wrong(args: Namespace, on_gpu: bool) -> None:
    """Raise a `UserError` where bf16 would be ignored or give wrong gradients."""
    if on_gpu:
        raise UserError(
            "--macaron-matmul bf16 is for training on a CPU: give --bf16 instead, or add --cpu"
        )
    for name in ("checkpoint", "offload"):
        if getattr(args, f"{name}_activations", False):
            raise UserError(
                f"--macaron-matmul bf16 and --{name}-activations do not go together: what is "
                "computed again would be computed in fp32; drop one"
            )


def refuse_where_slow(flag: str) -> None:
    """Raise a `UserError` where training with that flag would take some hundred times as long."""
    if not is_fast_here():
        raise UserError(
            f"{flag} is not for this CPU, which has no instructions for it: leave it out, or "
            "PyTorch takes some hundred times as long as in fp32"
        )


def is_fast_here() -> bool:
    """Whether PyTorch has fast products of bf16 for this CPU: on x86 that takes AVX-512."""
    try:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError):  # built without oneDNN: unknown, and not refused
        return True
