"""A checkpoint whose optimizer's state is that of another training, or its best score.

fairseq answers the first with a traceback. A student may have maps to its teacher's layers only
before or only now: then fairseq would give the state to other parameters. Scores of two metrics it
would compare with each other. Each check can go when fairseq says it in a sentence.
"""

import logging
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass import configs
from fairseq.optim import OPTIMIZER_REGISTRY

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.preflight import restored_parameters

logger = logging.getLogger(__name__)

WITHOUT_BEST = "fixed", "manual", "pass_through"  # schedules that need no best loss of before
FINETUNE, RESTORE = "--finetune-from-model", "--restore-file"


def warn_without_state(path: Path, state: dict[str, Any]) -> None:
    """Say what fairseq-train makes of a checkpoint without the optimizer's state, as of a mean."""
    if not state.get("last_optimizer_state"):
        logger.warning(
            "%s has no state of an optimizer: training goes on in its epoch, but from update 0, "
            "with another warm-up; give it by %s to begin anew",
            *(path, FINETUNE),
        )


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
        is_own = args.restore_file == configs.CheckpointConfig().restore_file
        # With the first flag alone the epoch goes on, which is right in a run's own folder.
        advice = "add --reset-optimizer" if is_own else f"give it by {FINETUNE} and not {RESTORE}"
        raise UserError(
            f"{path} has the optimizer's state of another training, since {reason}: {advice}, or "
            "give the same flags as before"
        )


def refuse_other_count(path: Path, state: dict[str, Any], given: Namespace) -> None:
    """Raise a `UserError` if the optimizer's state is of more or fewer parameters than the model.

    So it is where the flags let embeddings share weights that did not, or the other way. States in
    which all parameters are one, or are divided among processes, say nothing of it.
    """
    is_known = restored_parameters.is_known(given)
    if not is_known or given.ddp_backend == "fully_sharded" or given.zero_sharding != "none":
        return
    groups = (state.get("last_optimizer_state") or {}).get("param_groups", [])
    saved = [len(group["params"]) for group in groups]
    has_more = state.get("criterion") or getattr(given, "load_checkpoint_heads", False)
    if len(saved) != 1 or saved[0] < 2 or has_more:  # a criterion's, or heads that fairseq adds
        return
    if model := restored_parameters.shapes_of_model(given):
        own = sum(x.requires_grad for x in model.parameters())
        if own != saved[0]:
            raise UserError(
                f"{path} has the optimizer's state of {saved[0]} parameters, and the model has "
                f"{own}: give the same flags as before, such as those that share embeddings"
            )


def refuse_other_schedule(path: Path, state: dict[str, Any], args: Namespace) -> None:
    """Raise a `UserError` if fairseq cannot give the schedule of before to that of the flags."""
    if not state.get("last_optimizer_state") or args.reset_lr_scheduler:
        return
    saved = checkpoints.last_history(state).get("lr_scheduler_state")
    # PyTorch's compares the next loss with it, and cannot with none.
    is_plateau = args.lr_scheduler == "reduce_lr_on_plateau"
    lacks_best = saved is not None and (
        "best" not in saved or (is_plateau and saved["best"] is None)
    )
    if lacks_best and args.lr_scheduler not in WITHOUT_BEST:
        raise UserError(
            f"{path} was trained with another schedule than --lr-scheduler {args.lr_scheduler}: "
            "add --reset-lr-scheduler, or give the same flags as before"
        )


def refuse_other_metric(path: Path, state: dict[str, Any], args: Namespace) -> None:
    """Raise a `UserError` if the best score was of another metric, or the other end of it."""
    cfg = checkpoints.mapping((state.get("cfg") or {}).get("checkpoint"))
    metric = cfg.get("best_checkpoint_metric")
    is_known = metric is not None and "best" in (state.get("extra_state") or {})
    before = metric, cfg.get("maximize_best_checkpoint_metric")
    now = args.best_checkpoint_metric, args.maximize_best_checkpoint_metric
    if is_known and before != now and not args.reset_meters:
        names = [
            f"the {'highest' if highest else 'lowest'} {name}" for name, highest in (before, now)
        ]
        raise UserError(
            f"the best checkpoint of {path.parent} was that of {names[0]}, and now it is to be "
            f"that of {names[1]}: add --reset-meters, or give the same flags as before"
        )


def other_in_optimizer(
    state: dict[str, Any], args: Namespace, given: Namespace | None = None
) -> Iterator[str]:
    """Why the state of a checkpoint's optimizer is not for these flags."""
    last = checkpoints.last_history(state)
    before = checkpoints.named(state, "optimizer")
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
