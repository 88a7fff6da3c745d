"""Reading checkpoints with PyTorch's safe loader, and saying what is wrong with a bad one.

fairseq calls `torch.load` without naming the classes that its checkpoints hold, and PyTorch refuses
them. `allow_safe_globals` can go when `test_fairseq_does_not_load_its_own_checkpoints` fails.
"""

import ast
import re
import zipfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import data_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.logging import meters
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf, ValueNode
from omegaconf.base import ContainerMetadata, Metadata
from torch import Tensor
from torch.torch_version import TorchVersion

from macaron_fairseq.common.errors import UserError, in_a_line
from macaron_fairseq.common.names import listed
from macaron_fairseq.compat.arguments import PassUserDir, SavedArguments

# fairseq until 0.8, and so the authors' code, saved these from a module of another name.
METERS = (meters.AverageMeter, meters.TimeMeter, meters.StopwatchMeter)
SCALAR = np.float64(0).__reduce__()[0]  # makes a number of its bytes
ARRAY = np.zeros(1).__reduce__()[0]  # makes an array, which its state then fills
# All classes in checkpoints of this package and of fairseq that PyTorch does not allow by itself.
SAFE_GLOBALS: list[Any] = [
    (SavedArguments, f"{Namespace.__module__}.{Namespace.__name__}"),
    *(PassUserDir, *METERS),
    *((meter, f"fairseq.meters.{meter.__name__}") for meter in METERS),
    # Metrics of fairseq are numbers of NumPy at times, such as F1, and the best one is saved.
    # With --eval-bleu the counts of n-grams are arrays.
    *(
        (made_by, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")  # NumPy 1 and 2
        for made_by, name in ((SCALAR, "scalar"), (ARRAY, "_reconstruct"))
    ),
    *(np.ndarray, np.dtype, *(type(np.dtype(x)) for x in ("f4", "f8", "i8"))),
]
# The first process sends a checkpoint to the others with the configuration in omegaconf's classes,
# and with placeholders for the tensors, which follow. None of these classes runs anything.
SENT_GLOBALS: list[Any] = [
    *(dict, list, int, defaultdict, (Any, "typing.Any")),
    *(DictConfig, ListConfig, AnyNode, ContainerMetadata, Metadata),
    _TensorPlaceholder,
]

SHOWN = 4  # checkpoints of a folder, in a message
# Tasks whose models go on from one another, or decode for one another.
KIND_OF_TASK = {
    **dict.fromkeys(("translation", "macaron_translation"), "translation"),
    **dict.fromkeys(("masked_lm", "sentence_prediction"), "masked"),
    "language_modeling": "causal",
}

# Architectures of language models, of this package and the authors'.
ARCHITECTURES_OF_LANGUAGE_MODELS = re.compile(
    "macaron_(roberta|transformer_lm)|(roberta|transformer_lm)(_.*)?_pre_norm$|"
    "transformer_(bert|classifier)_"
)

# Arguments that fairseq evaluates as Python where it builds a task or a model.
EVALUATED = {
    *(f"{side}_{x}" for side in ("encoder", "decoder") for x in ("layers", "attention")),
    *("self_attention", "project_input", "gated_attention", "downsample", "pretrained"),
    *(f"{x}xformers_att_config" for x in ("", "encoder_", "decoder_")),
    *("adaptive_softmax_cutoff", "adaptive_input_cutoff", "character_filters"),
    *("conv_feature_layers", "conv_aggregator_layers", "override_encoder_layers"),
    *("left_pad_source", "left_pad_target", "wer_args", "feature_encoder_spec"),
    *(
        f"pipeline_{side}{x}"
        for side in ("", "encoder_", "decoder_")
        for x in ("balance", "devices")
    ),
}
# What a value of theirs may be made of, such as "[(512, 3)] * 20"; a name alone runs nothing.
LITERALS = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.Load),
    *(ast.UnaryOp, ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub, ast.Mult),
)

RECOVER = (
    "was saving it interrupted? Use another checkpoint of its folder "
    "(fairseq-train: --restore-file FILE)"
)


def allow_safe_globals() -> None:
    """Let PyTorch's safe loader accept what a fairseq checkpoint holds, and no more.

    Raises:
        UserError: if this PyTorch loads safely only when told to, which fairseq does not do.
    """
    if TorchVersion(torch.__version__) < "2.6":
        raise UserError(f"PyTorch {torch.__version__} is too old: install 2.6 or newer")
    torch.serialization.add_safe_globals(SAFE_GLOBALS + SENT_GLOBALS)


def in_folder(folder: Path) -> str:
    """The end of the sentence "FOLDER is a folder": which checkpoints to name."""
    found = [*folder.glob("*.pt")] or [*folder.glob("*/*.pt")]
    if not found:
        return " that holds no checkpoint (*.pt): name a file of fairseq-train"
    # checkpoint_best.pt and checkpoint_last.pt come before those of epochs and updates.
    found.sort(key=lambda path: (not re.search("best|last|average", path.name), path))
    names = [str(path.relative_to(folder)) for path in found]
    if len(names) > SHOWN:
        names = [*names[:SHOWN], f"{len(names) - SHOWN} more"]
    return f": name one of its checkpoints, {listed(names)}"


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; tensors of today's format stay on disk until used.

    Raises:
        UserError: as `examine` does; or if it holds no tensors of a model, or does not say of
            which, and for which task.
    """
    state = examine(path)
    model = state.get("model")
    if not isinstance(model, dict) or not all(isinstance(x, Tensor) for x in model.values()):
        raise UserError(f"{path} is not a fairseq checkpoint: it has no 'model' of named tensors")
    refuse_without_arguments(path, state)
    return state


def examine(path: Path) -> dict[str, Any]:
    """What is in a checkpoint in which nothing would run.

    Raises:
        UserError: if the file is missing, empty, truncated or no fairseq checkpoint; or if it holds
            a class that is not allowed, or a program among its arguments (nothing in it runs).
    """
    allow_safe_globals()
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder{in_folder(path)}")
        if not path.is_file():
            raise UserError(f"{path}: no such checkpoint")
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:  # of a folder that may not be searched, and of a name too long, too
        raise UserError(f"cannot read {str(path)[:200]}: {error.strerror}") from error
    if is_empty:
        raise UserError(f"{path} is empty: {RECOVER}")
    try:
        # PyTorch maps no file whose name is not UTF-8, which Python shows so.
        mmap = zipfile.is_zipfile(path) and not re.search("[\udc80-\udcff]", str(path))
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except MemoryError:
        raise
    except Exception as error:  # what is not a checkpoint, or a part of one, can raise anything
        raise UserError(f"{path} {explain(error)}") from error
    if not isinstance(state, dict):
        raise UserError(f"{path} is not a fairseq checkpoint: it has no 'model' of named tensors")
    for name, kind in (("args", Namespace | Mapping | None), ("cfg", Mapping | None)):
        if not isinstance(state.get(name), kind):
            raise UserError(f"{path} is not a fairseq checkpoint: its '{name}' is not a table")
    try:
        for part in (state.get("args"), state.get("cfg")):
            refuse_program(path, part)
    except RecursionError as error:
        raise UserError(f"{path} is not a fairseq checkpoint: its arguments have no end") from error
    except UserError:
        raise
    except Exception as error:  # a forged class of omegaconf's can raise anything
        raise UserError(f"{path} is not a fairseq checkpoint: {in_a_line(error)}") from error
    return state


def refuse_program(path: Path, options: Any, name: str = "") -> None:
    """Raise a `UserError` if fairseq would run more than literals of a checkpoint's arguments.

    Args:
        path: of the checkpoint.
        options: all arguments, or the value of one.
        name: of that one.
    """
    if isinstance(options, ValueNode):
        options = options._value()
    if OmegaConf.is_config(options):  # as it is, and not as omegaconf would complete it here
        options = OmegaConf.to_container(options, resolve=False)
    if isinstance(options, list | tuple):
        for value in options:
            refuse_program(path, value, name)
    elif isinstance(options, Namespace | Mapping):
        for name, value in mapping(options).items():
            refuse_program(path, value, str(name))
    elif is_program(name, options):
        shown = " ".join(repr(options).split())[:80]
        raise UserError(
            f"{path} has the argument {name} = {shown}, which fairseq would run: it was not loaded"
        )


def is_program(name: str, value: Any) -> bool:
    """Whether fairseq, given an argument, may run something."""
    if isinstance(value, str):
        # omegaconf would put another argument in its place. fairseq saves none such.
        return "${" in value or (name in EVALUATED and not is_literal(value))
    # Python also evaluates bytes, and whatever holds some, such as an array.
    return name in EVALUATED and not isinstance(value, bool | int | float | None)


def is_literal(text: str) -> bool:
    """Whether evaluating a text can run nothing: it is made of `LITERALS`, or is no Python."""
    try:
        # Stripped as `eval` does: what follows a last backslash makes Python of it, or does not.
        parsed = ast.parse(text.lstrip(" \t"), mode="eval")
        return all(isinstance(x, LITERALS) for x in ast.walk(parsed))
    except SyntaxError:
        return True
    except (ValueError, MemoryError, RecursionError):
        return False


def refuse_without_arguments(path: Path, state: dict[str, Any]) -> None:
    """Raise a `UserError` if a checkpoint does not say what fairseq builds a model from.

    fairseq ends in a traceback then. It takes a model without a task for one of translation, as old
    ones are. No language model is.
    """
    args, cfg = state.get("args"), state.get("cfg")
    if args is None and cfg is None:
        raise UserError(f"{path} does not say which model it holds: use one of fairseq-train")
    task = (cfg or {}).get("task") if args is None else getattr(args, "task", None)
    arch = model_arguments(state)["arch"]
    if task is None and ARCHITECTURES_OF_LANGUAGE_MODELS.match(arch or ""):
        raise UserError(
            f"{path} does not say which task its model, {arch}, is for: use one of fairseq-train"
        )


def refuse_other_task(path: Path | str, state: dict[str, Any], task: str | None) -> None:
    """Raise a `UserError` if a model is not of the task's kind; other tasks are left alone.

    fairseq would report that no parameter fits, or look for data of another kind.
    """
    trained = named(state, "task")
    if len({KIND_OF_TASK[name] for name in (trained, task) if name in KIND_OF_TASK}) > 1:
        raise UserError(f"{path} was trained for {trained}, and is not a model for {task}")


def is_reversed(state: dict[str, Any], args: Namespace, folder: Path | None) -> bool:
    """Whether a model translates from the flags' target language to their source language.

    A checkpoint names no language where fairseq took the pair from the data's files, and then
    `folder`, of the data, counts.
    """
    asked = args.target_lang, args.source_lang
    if None in asked or asked[0] == asked[1]:
        return False
    saved = options(state, "task")
    trained = saved.get("source_lang"), saved.get("target_lang")
    if None in trained and folder:
        trained = tuple(data_utils.infer_language_pair(str(folder)))
    return trained == asked


def load_checked(path: Path) -> dict[str, Any]:
    """Read a checkpoint as `load` does, and check its bytes and parameters too.

    Raises:
        UserError: as `load` does; or if bytes have changed, or a parameter holds NaN or infinity.
    """
    state = load(path)
    refuse_changed(path)
    for name, tensor in state["model"].items():
        if tensor.is_floating_point() and tensor.numel():
            least, greatest = map(float, torch.aminmax(tensor))  # NaN where there is one
            if not (isfinite(least) and isfinite(greatest)):
                what = "NaN" if isnan(least) else "infinity"
                raise UserError(
                    f"{path} holds {what} in '{name}': its training diverged, so use an earlier "
                    "checkpoint"
                )
    return state


def refuse_changed(path: Path) -> None:
    """Raise a `UserError` if bytes of a checkpoint are not those that PyTorch wrote.

    PyTorch writes checksums, but does not check them. Its old format has none.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            if not any(member.CRC for member in archive.infolist()):  # written without checksums
                return
            damaged = archive.testzip() is not None
    except Exception:  # changed bytes can mean anything: another compression, a password
        damaged = True
    if damaged:
        raise UserError(
            f"{path} is damaged: its bytes have changed since it was saved, so copy it again or "
            "use another checkpoint"
        )


def explain(error: Exception) -> str:
    """Say in one clause why PyTorch could not load a file."""
    refused = re.search(
        r"GLOBAL (\S+)|Trying to (?:instantiate|call reduce for \S+) (\S+)", str(error)
    )
    if refused:
        return (
            f"holds {refused[1] or refused[2]}, which no fairseq checkpoint needs: it was not "
            "loaded, since it could run any code"
        )
    return f"is truncated or not a checkpoint: {RECOVER}"


def model_arguments(state: dict[str, Any]) -> Mapping[str, Any]:
    """The model's arguments, as fairseq-train, fairseq-hydra-train or old fairseq saved them."""
    arguments = options(state, "model")
    return {"arch": arguments.get("_name"), **arguments}


def last_history(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a checkpoint says of its training when it was saved; empty if it says nothing."""
    return (state.get("optimizer_history") or [{}])[-1]


def options(state: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """What fairseq saved of a part, as "task" or "checkpoint".

    Old fairseq has one namespace for all parts.
    """
    return mapping(state.get("args") or (state.get("cfg") or {}).get(part))


def named(state: Mapping[str, Any], part: str) -> str | None:
    """Which "task" or "optimizer" a checkpoint was trained with; None if it does not say."""
    return options(state, part).get("_name" if state.get("args") is None else part)


def mapping(options: Any) -> Mapping[str, Any]:
    """What fairseq saved of a task or model; where it has no dataclass, that is a namespace."""
    found = vars(options) if isinstance(options, Namespace) else options
    return found if isinstance(found, Mapping) else {}
