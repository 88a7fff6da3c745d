"""A check of the command line of fairseq's commands, before anything is loaded or trained.

fairseq imports a user directory before it parses the flags. That is the moment to refuse what it
would not notice, or would answer with a traceback, for Macaron and baseline.
`tests/test_preflight.py` shows each fault in the installed fairseq. Where such a test fails,
fairseq has mended the fault, and the check here can go.
"""

import ast
import logging
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass import configs
from fairseq.optim import OPTIMIZER_REGISTRY

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints, pretrained
from macaron_fairseq.preflight import (
    bf16,
    binarised,
    command_line,
    gpus,
    ranks,
    samples,
)
from macaron_fairseq.preflight.command_line import CommandLine

logger = logging.getLogger(__name__)


def check(line: CommandLine) -> None:
    """Refuse what would fail or silently go wrong.

    GPUs here may not do what the flags ask for. `--macaron-matmul bf16` may not work here. A
    checkpoint may be missing, bad, or of another model, task or optimizer. Processes may train
    apart. Data may be cut short, or make no batch.

    Raises:
        UserError: naming what to change.
    """
    count = check_devices(line.args, line.command)
    if line.command == "train":
        check_training(line, count)
    else:
        check_decoding(line)


def check_training(line: CommandLine, gpus: int) -> None:
    """Refuse what fairseq-train cannot start from, or learn; see `check`."""
    args, folder = line.args, command_line.first_data(line.others)
    check_optimizer(args)
    ranks.check(args, os.environ, gpus)
    for path in command_line.to_restore(args):
        state = checkpoints.load(path)
        checkpoints.refuse_other_task(path, state, args.task)
        refuse_other_model(path, state, line, folder)
        checkpoints.refuse_changed(path)
        refuse_other_optimizer(path, state, args)
    refuse_truncated_data(line.others, args.train_subset, args.valid_subset)
    if folder:
        samples.refuse_too_few(folder, args)


def check_decoding(line: CommandLine) -> None:
    """Refuse models and data that the commands cannot decode or score; see `check`."""
    command, args = line.command, line.args
    if command in ("generate", "validate") and args.required_batch_size_multiple != 1:
        logger.warning(
            "fairseq leaves out the last batch if the number of its sentences is no multiple of "
            "--required-batch-size-multiple (default: %d): set it to 1 for all sentences",
            configs.DatasetConfig().required_batch_size_multiple,
        )
    for path in command_line.to_decode_with(args):
        state = checkpoints.load_checked(path)
        checkpoints.refuse_other_task(path, state, args.task)
        if command == "eval-lm" and args.sample_break_mode != "eos":  # a line, however long
            refuse_long_samples(args.tokens_per_sample, state)
    if command != "interactive":  # which opens no data set
        subset = args.valid_subset if command == "validate" else args.gen_subset
        refuse_truncated_data(line.others, subset)


def check_devices(args: Namespace, command: str) -> int:
    """The number of GPUs that there are to use.

    Args:
        args: of a `CommandLine`.
        command: which of fairseq's commands it is.

    Raises:
        UserError: if they, or their absence, rule out what the flags ask for.
    """
    count = 0 if args.cpu else torch.cuda.device_count()
    gpus.check(args, command, count)
    if command == "train" and args.macaron_matmul == "bf16":
        bf16.refuse_where_wrong(args, on_gpu=count > 0)
        bf16.refuse_where_slow()
    return count


def check_optimizer(args: Namespace) -> None:
    """Raise a `UserError` if optimizer or schedule could not make an update."""
    refuse_bad_betas(args.adam_betas)
    refuse_cosine_without_a_period(args)


def refuse_bad_betas(text: str) -> None:
    """Raise a `UserError` if these are no betas of Adam, which would fail at the first update."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = None
    is_pair = isinstance(found, (tuple, list)) and len(found) == 2
    if not is_pair or not all(type(x) in (int, float) and 0 <= x < 1 for x in found):
        raise UserError(
            f"--adam-betas {text} should be two numbers from 0 to below 1, such as '(0.9, 0.98)'"
        )


def refuse_cosine_without_a_period(args: Namespace) -> None:
    """Raise a `UserError` if fairseq's cosine has no updates to fall in, by which it divides."""
    falls = args.lr_period_updates > 0 or args.max_update > args.warmup_updates
    if args.lr_scheduler == "cosine" and not falls:
        raise UserError(
            f"--lr-scheduler cosine falls after --warmup-updates {args.warmup_updates} until "
            f"--max-update {args.max_update}: give a greater one, or --lr-period-updates"
        )


def refuse_other_model(
    path: Path, state: dict[str, Any], line: CommandLine, folder: Path | None
) -> None:
    """Raise a `UserError` if training would go on with another network than a checkpoint's.

    Of a scheme with the same parameters fairseq would notice nothing. Where training begins anew
    from the parameters, it may be meant: a warning.
    """
    reason, is_same, given = "", True, pretrained.completed(line.flags)
    if given and pretrained.is_known(given.arch):
        trained = checkpoints.model_arguments(state)
        reason = checkpoints.other_network(trained, vars(given))
        is_same = trained["arch"] == given.arch
    is_refused = reason and not is_begun_anew(path, line.args)
    if not (is_refused and is_same):  # else its flag says more than what parameters it lacks
        pretrained.refuse_other(path, state["model"], line.flags, folder)
    if is_refused:
        raise UserError(f"{path} {reason}: give the same flags, or another --save-dir")
    if reason:
        logger.warning("%s %s", path, reason)


def is_begun_anew(path: Path, args: Namespace) -> bool:
    """Whether training starts from a checkpoint's parameters alone."""
    return args.reset_optimizer or path == Path(args.finetune_from_model or "")


def refuse_other_optimizer(path: Path, state: dict[str, Any], args: Namespace) -> None:
    """Raise a `UserError` if a checkpoint's state of the optimizer is that of another training."""
    if is_begun_anew(path, args) or not state.get("last_optimizer_state"):
        return
    if reason := next(other_in_optimizer(state, args), ""):
        raise UserError(
            f"{path} has the optimizer's state of another training, since {reason}: add "
            "--reset-optimizer, or give the same flags as before"
        )


def other_in_optimizer(state: dict[str, Any], args: Namespace) -> Iterator[str]:
    """Why the state of a checkpoint's optimizer is not for these flags.

    fairseq would end with a traceback. Where a student has maps to its teacher in training or
    before, not in both, it would give the state to other parameters.
    """
    last, before = (state.get("optimizer_history") or [{}])[-1], checkpoints.optimizer_of(state)
    for flag, was, now in (
        ("--criterion", last.get("criterion_name"), name_of(CRITERION_REGISTRY, args.criterion)),
        ("--optimizer", name_of(OPTIMIZER_REGISTRY, before), optimizer_of(args)),
        ("the optimizer's precision", last.get("optimizer_name"), wrapper_of(args)),
    ):
        if was and now and was != now:
            yield f"{flag} was {was}, and now it is {now}"
    learns = {
        "distilled_label_smoothed_cross_entropy": args.trajectory_weight > 0,
        "cross_vocabulary_label_smoothed_cross_entropy": args.distill_weight > 0
        and args.cross_vocabulary_loss == "sra",
    }.get(args.criterion)
    if learns is not None and learns != bool(state.get("criterion")):
        does = "begins to follow its teacher's layers" if learns else "no longer follows layers"
        yield f"the student now {does}"


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


def refuse_long_samples(tokens: int, state: dict[str, Any]) -> None:
    """Raise a `UserError` if samples are longer than a causal model: fairseq would skip all."""
    model = checkpoints.model_arguments(state)
    # fairseq's own models say it only where a flag did, and else have the samples' size.
    positions = model.get("max_target_positions") or model.get("tokens_per_sample")
    if positions is not None and tokens > positions:
        raise UserError(
            f"--tokens-per-sample {tokens} is more than the model's {positions} positions, and "
            f"fairseq-eval-lm would score nothing: give --tokens-per-sample {positions}"
        )


def refuse_truncated_data(words: Sequence[str], *subsets: str) -> None:
    """Check the data folders, which are among the words that are no flags."""
    names = {name for subset in subsets for name in subset.split(",")}
    for word in words:
        for folder in word.split(os.pathsep):
            if not command_line.is_remote(word) and command_line.is_folder(folder):
                binarised.refuse_truncated(Path(folder), names)
