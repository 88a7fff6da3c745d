"""Reading checkpoints with PyTorch's safe loader, and saying what is wrong with a bad one."""

import re
import zipfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.logging import meters
from omegaconf import AnyNode, DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from torch import Tensor
from torch.torch_version import TorchVersion

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat.saved_args import PassUserDir

# What fairseq until 0.8, and so the authors' code, also saved, from a module of another name.
METERS = (meters.AverageMeter, meters.TimeMeter, meters.StopwatchMeter)
# All that the checkpoints of this package and of fairseq hold besides what PyTorch lets pass.
SAFE_GLOBALS: list[Any] = [
    *(Namespace, PassUserDir, *METERS),
    *((meter, f"fairseq.meters.{meter.__name__}") for meter in METERS),
]
# As the first process of a training sends it to the others: with the configuration in omegaconf's
# classes and places for the tensors, which follow. None of these runs anything.
SENT_GLOBALS: list[Any] = [
    *(dict, list, int, defaultdict, (Any, "typing.Any")),
    *(DictConfig, ListConfig, AnyNode, ContainerMetadata, Metadata),
    _TensorPlaceholder,
]

RECOVER = (
    "was saving it interrupted? Use another checkpoint of its folder "
    "(fairseq-train: --restore-file FILE)"
)


def allow_safe_globals() -> None:
    """Let PyTorch's safe loader accept what a fairseq checkpoint holds, read or sent; no more.

    Raises:
        UserError: if this PyTorch does not load safely unless told to, as fairseq does not tell it.
    """
    if TorchVersion(torch.__version__) < "2.6":
        raise UserError(f"PyTorch {torch.__version__} is too old: install 2.6 or newer")
    torch.serialization.add_safe_globals(SAFE_GLOBALS + SENT_GLOBALS)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; tensors of today's format stay on disk until used.

    Raises:
        UserError: if the file is missing, empty, truncated, no fairseq checkpoint, or holds a class
            that is not allowed (nothing in it runs).
    """
    allow_safe_globals()
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    try:
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if is_empty:
        raise UserError(f"{path} is empty: {RECOVER}")
    try:
        mmap = zipfile.is_zipfile(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (
        *(UnpicklingError, RuntimeError, EOFError, OSError),
        *(ValueError, KeyError, AttributeError, TypeError),
    ) as error:
        raise UserError(f"{path} {explain(error)}") from error
    model = state.get("model") if isinstance(state, dict) else None
    if not isinstance(model, dict) or not all(isinstance(x, Tensor) for x in model.values()):
        raise UserError(f"{path} is no fairseq checkpoint: it has no 'model' of named tensors")
    return state


def explain(error: Exception) -> str:
    """Say in one clause why PyTorch could not load a file."""
    refused = re.search(
        r"GLOBAL (\S+)|Trying to (?:instantiate|call reduce for \S+) (\S+)", str(error)
    )
    if refused:
        return (
            f"holds {refused[1] or refused[2]}, which no fairseq checkpoint needs: it was not "
            "loaded, since loading it could run any code"
        )
    return f"is truncated or no checkpoint: {RECOVER}"


def model_arguments(state: dict[str, Any]) -> Mapping[str, Any]:
    """The model's arguments, as fairseq-train, fairseq-hydra-train and old fairseq store them."""
    arguments = state.get("args") or (state.get("cfg") or {}).get("model") or {}
    arguments = arguments if isinstance(arguments, Mapping) else vars(arguments)
    return {"arch": arguments.get("_name"), **arguments}
