"""Averaging the parameters of checkpoints of one training (`macaron-fairseq average`)."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.wording import counted
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import same_network

State = dict[str, Any]

# checkpoint7.pt (an epoch's), checkpoint_7_5000.pt (an update's), checkpoint.best_loss_4.1230.pt
SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|\.best_.+)\.pt")
BEST, LAST = "checkpoint_best.pt", "checkpoint_last.pt"


def select(
    paths: Sequence[Path], last_n: int | None = None, best_n: int | None = None
) -> list[Path]:
    """The checkpoints to average: those named, or some of one folder.

    Args:
        paths: checkpoints; with `last_n` or `best_n` one folder.
        last_n: see `last`.
        best_n: see `best`.

    Raises:
        UserError: if it is not clear which are meant, one is named twice, or the folder has fewer.
    """
    if n := last_n or best_n:
        if len(paths) > 1:
            raise UserError("--last and --best choose from one folder: name that folder alone")
        return (last if last_n else best)(paths[0], n)
    if any(path.is_dir() for path in paths):
        raise UserError("to average a folder's checkpoints, say which: --last N or --best N")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("a checkpoint is named twice: each counts once in a mean")
    return list(paths)


def last(folder: Path, n: int) -> list[Path]:
    """The n checkpoints of the folder with the most updates, the oldest first."""
    return choose(folder, n, updates)


def best(folder: Path, n: int) -> list[Path]:
    """The n checkpoints of the folder with the best validation metric, the best last."""

    def quality(state: State) -> float:
        metric = (state.get("extra_state") or {}).get("val_loss")
        if metric is None:
            return -float("inf")
        options = checkpoints.options(state, "checkpoint")
        maximize = options.get("maximize_best_checkpoint_metric", False)
        return metric if maximize else -metric

    return choose(folder, n, quality, also=[BEST])  # whose epoch may be kept no more


def choose(
    folder: Path, n: int, rank: Callable[[State], float], also: Sequence[str] = ()
) -> list[Path]:
    """The n checkpoints of highest rank, of those of epochs and updates and of some other names.

    Of several at the same update, one counts.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    paths = sorted(path for path in folder.iterdir() if SAVED.fullmatch(path.name))
    # First: of several at the same update the last one counts.
    paths[:0] = [folder / name for name in also if (folder / name).is_file()]
    ranked: dict[int, tuple[float, Path]] = {}
    for path in bar("reading", " checkpoints", items=paths, leave=False):
        state = checkpoints.load(path)
        if (value := rank(state)) > -float("inf"):
            ranked[updates(state)] = (value, path)
    if len(ranked) < n:
        raise UserError(
            f"{folder} holds {counted(len(ranked), 'checkpoint')} to choose from, fewer than {n}: "
            "ask for fewer, or let --save-interval or --save-interval-updates keep more in training"
        )
    order = sorted(ranked.items(), key=lambda item: (item[1][0], item[0]))
    return [path for _, (_, path) in order[-n:]]


def updates(state: State) -> int:
    """How many updates the checkpoint's model has had."""
    return checkpoints.last_history(state).get("num_updates", 0)


def average(paths: Sequence[Path]) -> State:
    """A checkpoint with the mean of the parameters, computed in fp64 and stored as they were.

    Parameters that share memory, as tied embeddings do, share it in the result. What is not a
    floating-point number must be equal. The rest of the state is the last file's, without its
    optimizer state, which does not belong to the mean.

    Raises:
        UserError: if a file is bad, a parameter is NaN or infinite, or the models differ.
    """
    if not paths:
        raise UserError("there is no checkpoint to average: name one")
    first = checkpoints.load(paths[0])
    tied = tied_names(first["model"])
    sums: dict[str, Tensor] = {}
    for path in bar("averaging", " checkpoints", items=paths, leave=False):
        state = checkpoints.load_checked(path)
        refuse_different(paths[0], first, path, state)
        for name in set(tied.values()):
            tensor = state["model"][name]
            if tensor.is_floating_point():
                sums[name] = tensor.double() + sums.get(name, 0)
            elif not torch.equal(tensor, first["model"][name]):
                raise UserError(f"{paths[0]} and {path} differ in '{name}', which has no mean")
    means = {
        name: (total / len(paths)).to(first["model"][name].dtype) for name, total in sums.items()
    }
    model = {name: means.get(tied[name], tensor) for name, tensor in state["model"].items()}
    return {**state, "model": model, "last_optimizer_state": None}


def tied_names(model: dict[str, Tensor]) -> dict[str, str]:
    """For each parameter the first name among those that share its memory."""
    names: dict[tuple, str] = {}
    return {name: names.setdefault(place(tensor), name) for name, tensor in model.items()}


def place(tensor: Tensor) -> tuple:
    """Where a tensor is: two that share memory and shape are in one place."""
    start = tensor.untyped_storage().data_ptr()
    return start, tensor.storage_offset(), tensor.shape, tensor.stride()


def kind(tensor: Tensor) -> str:
    """Its shape, and whether it has a mean."""
    return f"{list(tensor.shape)}" + ("" if tensor.is_floating_point() else " of whole numbers")


def refuse_different(first: Path, one: State, second: Path, other: State) -> None:
    """Raise a `UserError` if the two files hold different models."""
    shapes, other_shapes = ({n: kind(t) for n, t in s["model"].items()} for s in (one, other))
    for name in [*shapes, *other_shapes]:
        if shapes.get(name) != other_shapes.get(name):
            sizes = [
                f"{s[name]} in {p}" if name in s else f"not in {p}"
                for s, p in ((shapes, first), (other_shapes, second))
            ]
            raise UserError(
                f"these are different models, which have no mean: '{name}' is {' and '.join(sizes)}"
            )
    if tied_names(one["model"]) != tied_names(other["model"]):
        raise UserError(
            f"these are different models, which have no mean: {first} and {second} do not tie the "
            "same parameters"
        )
    arguments, other_arguments = map(checkpoints.model_arguments, (one, other))
    if differing := same_network.difference(arguments, other_arguments):
        name, value, other_value = differing
        raise UserError(
            f"these are different models, which have no mean: {name} is {value} in {first} "
            f"and {other_value} in {second}"
        )


def save(state: State, path: Path) -> None:
    """Write a checkpoint under its name only once it is complete and on the disk.

    Raises:
        UserError: if it cannot be written; a file that had the name is left as it was.
    """
    try:
        with files.written(path) as file:
            torch.save(state, file)
    except RuntimeError as error:  # PyTorch's word for a full disk
        raise UserError(f"cannot write {path}: {error}") from error
