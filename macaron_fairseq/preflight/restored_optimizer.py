"""A checkpoint whose optimizer's state is that of another training.

fairseq answers it with a traceback. A student may have maps to its teacher's layers only before or
only now: then fairseq would give the state to other parameters. Each check can go when
fairseq says it in a sentence.
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints


def refuse_other_optimizer(
    path: Path, state: dict[str, Any], args: Namespace, given: Namespace | None
) -> None:
    """Raise a `UserError` if a checkpoint's state of the optimizer is that of another training.

    Args:
        path: of the checkpoint.
        state: what it holds.
        args: of a `CommandLine`.
        given: the same flags and all others, see `command_line.with_defaults`.
    """
    if not state.get("last_optimizer_state"):
        return
    if reason := next(other_in_optimizer(state, args, given), ""):
        raise UserError(
            f"{path} has the optimizer's state of another training, since {reason}: add "
            "--reset-optimizer, or give the same flags as before"
        )


def other_in_optimizer(
    state: dict[str, Any], args: Namespace, given: Namespace | None = None
) -> Iterator[str]:
    """Why the state of a checkpoint's optimizer is not for these flags."""
    last, before = (state.get("optimizer_history") or [{}])[-1], checkpoints.optimizer_of(state)
    for flag, was, now in (
        ("--criterion", last.get("criterion_name"), name_of(CRITERION_REGISTRY, args.criterion)),
        ("--optimizer", name_of(OPTIMIZER_REGISTRY, before), optimizer_of(args)),
        ("the optimizer's precision", last.get("optimizer_name"), wrapper_of(args)),
    ):
        if was and now and was != now:
            yield f"{flag} was {was}, and now it is {now}"
    learns_maps = getattr(CRITERION_REGISTRY.get(args.criterion), "learns_maps", None)
    if given and learns_maps and learns_maps(given) != bool(state.get("criterion")):
        begins, ends = "begins to follow its teacher's layers", "no longer follows layers"
        yield f"the student now {begins if learns_maps(given) else ends}"


def name_of(registry: dict[str, Any], key: str | None) -> str:
    """The name of a class that fairseq knows, or ""."""
    return registry[key].__name__ if key in registry else ""


def optimizer_of(args: Namespace) -> str:
    """The class that makes the updates; "" if the flags do not tell."""
    return name_of(OPTIMIZER_REGISTRY, args.optimizer)


def wrapper_of(args: Namespace) -> str:
    """The class of the optimizer as fairseq names it in a checkpoint; "" if unknown."""
    if args.ddp_backend == "fully_sharded":
        return ""
    if args.use_bmuf:
        return "FairseqBMUF"
    if args.memory_efficient_fp16 or args.memory_efficient_bf16:
        return "MemoryEfficientFP16Optimizer"
    if args.amp:
        return "AMPOptimizer"
    return "FP16Optimizer" if args.fp16 or args.bf16 else optimizer_of(args)
