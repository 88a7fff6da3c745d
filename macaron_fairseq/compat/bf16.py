"""Where products of bf16 in training on a CPU (`--macaron-matmul bf16`) would be wrong or slow.

That is this package's option. It is looked at here since `preflight` refuses what cannot work.
"""

from argparse import Namespace

import torch

from macaron_fairseq.common.errors import UserError


def refuse_where_wrong(args: Namespace, on_gpu: bool) -> None:
    """Raise a `UserError` where they would be ignored or give wrong gradients."""
    if on_gpu:
        raise UserError(
            "--macaron-matmul bf16 is for training on a CPU, where all else stays fp32: drop it "
            "and give --bf16, or give --cpu"
        )
    for name in ("checkpoint", "offload"):
        if getattr(args, f"{name}_activations", False):
            raise UserError(
                f"--macaron-matmul bf16 and --{name}-activations do not go together: what is "
                "computed again would be computed in fp32; drop one"
            )


def refuse_where_slow() -> None:
    """Raise a `UserError` where a training would hardly end."""
    if not is_fast_here():
        raise UserError(
            "--macaron-matmul bf16 is not for this CPU, which has no instructions for it: PyTorch "
            "would take some hundred times as long as in fp32; drop it"
        )


def is_fast_here() -> bool:
    """Whether PyTorch has fast products of bf16 for this CPU: on x86 that takes AVX-512."""
    try:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError):  # built without oneDNN: nothing is known, nor refused
        return True
