"""A check of the command line of fairseq's commands, before anything is loaded or trained.

fairseq imports a user directory before it parses the flags. That is the moment to refuse what it
would not notice, or would answer with a traceback, for Macaron and baseline.
`tests/preflight/test_checks.py` shows each fault in the installed fairseq. Where such a test
fails, fairseq has mended the fault, and the check here can go.
"""

import ast
import logging
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.dataclass import configs

from macaron_fairseq.common import files, names
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import bf16
from macaron_fairseq.preflight import (
    binarised,
    command_line,
    gpus,
    ranks,
    restored_optimizer,
    restored_parameters,
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


def check_training(line: CommandLine, gpu_count: int) -> None:
    """Refuse what fairseq-train cannot start from, or learn; see `check`."""
    args, given = line.args, line.given
    refuse_below_1(args, "update_freq")
    if not args.batch_size:  # else there is no limit of tokens
        refuse_below_1(args, "max_tokens")
    if args.log_interval == 0:
        refuse_below_1(args, "log_interval")
    folder = command_line.first_folder(given, line.others)
    check_optimizer(args)
    refuse_lost_buckets(args)
    ranks.check(args, os.environ, gpu_count)
    ranks.refuse_several_on_a_cpu(args)
    refuse_two_beginnings(args)
    for path in command_line.to_restore(args):
        check_restored(path, checkpoints.load(path), args, given, folder)
        checkpoints.refuse_changed(path)
    binarised.refuse_truncated_folders(line.others, args.train_subset, args.valid_subset)
    if folder:
        samples.refuse_too_few(folder, args)
    if given and given.store_ema:
        refuse_lost_norms(given)
    if gpu_count:
        refuse_other_recomputation(args)
    if given:
        warn_of_shared_types(given)


def check_built(line: CommandLine, given: Namespace) -> None:
    """Refuse a checkpoint of another network, as `check` does for architectures that it knows.

    Args:
        line: the command line.
        given: all flags, see `command_line.with_defaults`.
    """
    if getattr(given, "store_ema", False):
        refuse_lost_norms(given)
    folder = command_line.first_folder(given, line.others)
    for path in command_line.to_restore(line.args):
        check_restored(path, checkpoints.load(path), line.args, given, folder)


def check_restored(
    path: Path, state: dict[str, Any], args: Namespace, given: Namespace | None, folder: Path | None
) -> None:
    """Refuse a checkpoint that fairseq-train cannot go on from, or begin with; see `check`.

    Args:
        path: of the checkpoint.
        state: what it holds.
        args: of a `CommandLine`.
        given: all flags, see `command_line.with_defaults`.
        folder: of the data, the first one if there are several.
    """
    is_begun_anew = args.reset_optimizer or path == Path(args.finetune_from_model or "")
    checkpoints.refuse_other_task(path, state, args.task)
    if checkpoints.is_reversed(state, args, folder) and not is_begun_anew:
        raise UserError(
            f"{path} was trained from {args.target_lang} to {args.source_lang}: give -s and -t as "
            f"before, or another --save-dir and --finetune-from-model {path}"
        )
    if given:
        restored_parameters.refuse_other_model(path, state, given, folder, is_begun_anew)
    if not is_begun_anew:
        restored_optimizer.warn_without_state(path, state)
        restored_optimizer.refuse_other_optimizer(path, state, args, given)
        restored_optimizer.refuse_other_schedule(path, state, args)
        if given:
            restored_optimizer.refuse_other_count(path, state, given)
        restored_optimizer.refuse_other_metric(path, state, args)


def refuse_other_recomputation(args: Namespace) -> None:
    """Raise a `UserError` if layers would be computed again in another precision.

    fairseq does so without autocast. Then dropout is drawn in another order, and the gradients
    belong to other masks than the loss.
    """
    for name in ("checkpoint", "offload"):
        if args.amp and getattr(args, f"{name}_activations"):
            raise UserError(
                f"--amp and --{name}-activations do not go together in fairseq, which computes the "
                "layers again in another precision: use --fp16 or --bf16"
            )


def refuse_lost_norms(given: Namespace) -> None:
    """Raise a `UserError` if fairseq's moving average would lose the norms after the last layers.

    It restores the average without the version of encoder and decoder. So fairseq takes it for an
    old one, which had no such norms. This can go when `test_fairseqs_average_loses_norms` fails.
    """
    if not restored_parameters.is_known(given):
        return
    if any(getattr(given, f"{side}_normalize_before", False) for side in ("encoder", "decoder")):
        raise UserError(
            "--store-ema loses the norms after the last layers of a pre-norm model in fairseq: "
            "leave it out, and average checkpoints by macaron-fairseq average"
        )


def warn_of_shared_types(given: Namespace) -> None:
    """Say that a language model predicts more types than it was asked to.

    fairseq projects by all embeddings then, and its search ends in a traceback.
    """
    size = getattr(given, "output_dictionary_size", -1)
    shares = getattr(given, "share_decoder_input_output_embed", False)
    if size >= 0 and shares and not getattr(given, "adaptive_softmax_cutoff", None):
        logger.warning(
            "with --share-decoder-input-output-embed the model predicts all types that it reads, "
            "and not the %d of --output-dictionary-size",
            size,
        )


def refuse_two_beginnings(args: Namespace) -> None:
    """Raise a `UserError` if --finetune-from-model comes with what it stands for."""
    if args.finetune_from_model is None:
        return
    others = ["restore_file"] * (args.restore_file != configs.CheckpointConfig().restore_file)
    resets = "reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader"
    for name in [*others, *(x for x in resets if getattr(args, x))]:
        raise UserError(
            f"--finetune-from-model begins anew from the parameters: leave out {names.flag(name)}"
        )


def check_decoding(line: CommandLine) -> None:
    """Refuse models and data that the commands cannot decode or score; see `check`."""
    command, args = line.command, line.args
    refuse_below_1(args, "beam")
    if command != "interactive":  # which opens no data set
        subset = args.valid_subset if command == "validate" else args.gen_subset
        binarised.refuse_truncated_folders(line.others, subset)
    if command in ("generate", "validate") and args.required_batch_size_multiple != 1:
        logger.warning(
            "fairseq leaves out the last batch if the number of its sentences is not a multiple of "
            "--required-batch-size-multiple (default: %d): set it to 1 for all sentences",
            configs.DatasetConfig().required_batch_size_multiple,
        )
    for path in command_line.to_decode_with(args, command):
        state = checkpoints.load_checked(path)
        checkpoints.refuse_other_task(path, state, args.task)
        if checkpoints.is_reversed(state, args, command_line.first_folder(None, line.others)):
            logger.warning(
                "%s was trained from %s to %s, and not the other way",
                *(path, args.target_lang, args.source_lang),
            )
        if command == "eval-lm" and args.sample_break_mode != "eos":  # a line, however long
            samples.refuse_too_long(line, state)
    if args.lm_path and not files.is_remote(args.lm_path):
        checkpoints.load_checked(Path(args.lm_path))


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
        bf16.refuse_where_slow("--macaron-matmul bf16")
    return count


def check_optimizer(args: Namespace) -> None:
    """Raise a `UserError` if optimizer or schedule could not make an update."""
    refuse_bad_betas(args.adam_betas)
    refuse_cosine_without_a_period(args)
    refuse_root_without_warmup(args)


def refuse_below_1(args: Namespace, name: str) -> None:
    """Raise a `UserError` if that number, or one of those numbers, is less than 1."""
    value = getattr(args, name)
    for number in value if isinstance(value, list) else [value]:
        if number is not None and number < 1:
            raise UserError(f"{names.flag(name)} is {number}: give 1 or more")


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
    """Raise a `UserError` if fairseq's cosine has no updates to fall in, by which it divides.

    A run that ends before, within its warm-up, asks for none.
    """
    warmup = args.warmup_updates or 0
    has_period = args.lr_period_updates > 0 or args.max_update not in (0, warmup)
    if args.lr_scheduler == "cosine" and not has_period:
        raise UserError(
            f"--lr-scheduler cosine falls after --warmup-updates {warmup} until "
            f"--max-update {args.max_update}: give a greater one, or --lr-period-updates"
        )


def refuse_root_without_warmup(args: Namespace) -> None:
    """Raise a `UserError` if fairseq's inverse square root would divide by a warm-up of 0."""
    if args.lr_scheduler == "inverse_sqrt" and args.warmup_updates == 0:
        raise UserError("--lr-scheduler inverse_sqrt needs --warmup-updates of 1 or more")


def refuse_lost_buckets(args: Namespace) -> None:
    """Raise a `UserError` at a flag for which fairseq calls what numpy has had no more since 2.

    This can go when `test_fairseq_makes_no_buckets` fails.
    """
    if args.num_batch_buckets and not hasattr(np, "compat"):
        raise UserError("--num-batch-buckets needs a numpy below 2: leave it out")
