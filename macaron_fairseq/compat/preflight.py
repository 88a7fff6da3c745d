"""A check of the command line of fairseq's commands, before anything is loaded or trained.

fairseq imports a user directory before it parses the flags. That is the moment to refuse what it
would not notice, or would answer with a traceback, for Macaron and baseline.
`tests/test_preflight.py` shows each fault in the installed fairseq. Where such a test fails,
fairseq has mended the fault, and the check here can go.
"""

import logging
import os
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.checkpoint_utils import get_maybe_sharded_checkpoint_filename
from fairseq.dataclass import configs
from fairseq.dataclass.utils import gen_parser_from_dataclass

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import (
    bf16,
    binarised,
    checkpoints,
    compiling,
    gpus,
    liger,
    pretrained,
    ranks,
    samples,
)

logger = logging.getLogger(__name__)

SAMPLE_OF_EVAL_LM = 1024  # tokens, where fairseq-eval-lm is not told
TASKS = {"eval-lm": "language_modeling", "validate": None}  # of commands; others: translation
COMMANDS = {"train", "generate", "interactive", "validate", "eval-lm"}


def check(argv: Sequence[str]) -> None:
    """If argv is one of fairseq's commands, refuse what would fail or silently go wrong.

    That is what the GPUs here cannot do, or `--macaron-matmul bf16`, `--macaron-compile` and
    `--loss-kernel liger` where they cannot work. It is a checkpoint that is missing, bad or does
    not fit, or processes that would train apart. It is data that was cut short, or has no batch.

    Raises:
        UserError: naming what to change.
    """
    command = command_name(argv[0]) if argv else None
    if command not in COMMANDS:
        return
    try:
        args, others = parse(argv[1:], command)
    except ArgumentError:  # fairseq will say it
        return
    count = check_devices(args, command)
    if command == "train":
        ranks.check(args, os.environ, count)
        for path in to_restore(args):
            state = checkpoints.load(path)
            checkpoints.refuse_other_task(path, state, args.task)
            pretrained.refuse_other(path, state["model"], argv[1:], first_data(others))
            checkpoints.refuse_changed(path)
            refuse_other_maps(path, args)
        refuse_truncated_data(others, args.train_subset, args.valid_subset)
        if folder := first_data(others):
            samples.refuse_too_few(folder, args)
        return
    if command in ("generate", "validate") and args.required_batch_size_multiple != 1:
        logger.warning(
            "fairseq leaves out the last batch if the number of its sentences is no multiple of "
            "--required-batch-size-multiple (default: %d): set it to 1 for all sentences",
            configs.DatasetConfig().required_batch_size_multiple,
        )
    for path in to_decode_with(args):
        state = checkpoints.load_checked(path)
        checkpoints.refuse_other_task(path, state, args.task)
        if command == "eval-lm" and args.sample_break_mode != "eos":  # a line, however long
            refuse_long_samples(args.tokens_per_sample, state)
    if command != "interactive":  # which opens no data set
        subset = args.valid_subset if command == "validate" else args.gen_subset
        refuse_truncated_data(others, subset)


def check_devices(args: Namespace, command: str) -> int:
    """The number of GPUs that there are to use.

    Args:
        args: of `parse`.
        command: which of fairseq's commands it is.

    Raises:
        UserError: if they, or their absence, rule out what the flags ask for.
    """
    count = 0 if args.cpu else torch.cuda.device_count()
    gpus.check(args, command, count)
    if command == "train":
        if args.macaron_matmul == "bf16":
            bf16.refuse_where_wrong(args, on_gpu=count > 0)
            bf16.refuse_where_slow()
        if args.macaron_compile:
            compiling.refuse_where_wrong(args)
            compiling.refuse_where_impossible(count)
        if args.loss_kernel == "liger":
            liger.refuse_where_impossible(on_gpu=count > 0)
    return count


def command_name(program: str) -> str | None:
    """Which of fairseq's commands runs: `fairseq-train` or `python -m fairseq_cli.train`."""
    path = Path(program)
    if path.parent.name == "fairseq_cli":
        return path.stem.replace("_", "-")
    return path.name.removeprefix("fairseq-") if path.name.startswith("fairseq-") else None


def parse(flags: Sequence[str], command: str = "train") -> tuple[Namespace, list[str]]:
    """The flags that are checked, with fairseq's defaults, and all other words.

    The world size is None where it is not given.

    Args:
        flags: of a command line.
        command: which of fairseq's commands it is.

    Raises:
        argparse.ArgumentError: if a value is not of its flag's type.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for group in (
        *(configs.CommonConfig, configs.DatasetConfig, configs.CheckpointConfig),
        *(configs.DistributedTrainingConfig, configs.CommonEvalConfig),
        configs.OptimizationConfig,
    ):
        gen_parser_from_dataclass(parser, group())
    parser.set_defaults(distributed_world_size=None)
    for name in ("checkpoint", "offload"):
        parser.add_argument(f"--{name}-activations", action="store_true")
    for name in ("scalar", "pq"):
        parser.add_argument(f"--quant-noise-{name}", type=float, default=0)
    for name in ("matmul", "kernels"):
        parser.add_argument(f"--macaron-{name}")
    parser.add_argument("--macaron-compile", action="store_true")
    parser.add_argument("--loss-kernel")
    parser.add_argument("--task", default=TASKS.get(command, "translation"))
    parser.add_argument("--num-classes", type=int, default=-1)
    parser.add_argument("--regression-target", action="store_true")
    parser.add_argument("-s", "--source-lang")
    parser.add_argument("-t", "--target-lang")
    parser.add_argument("--criterion", default="cross_entropy")
    parser.add_argument("--trajectory-weight", type=float, default=0)
    parser.add_argument("--distill-weight", type=float, default=0.5)
    parser.add_argument("--cross-vocabulary-loss", default="sra")
    parser.add_argument("--sample-break-mode")
    parser.add_argument("--tokens-per-sample", type=int, default=SAMPLE_OF_EVAL_LM)
    return parser.parse_known_args(flags)


def to_restore(args: Namespace) -> Iterator[Path]:
    """The files that training will start from.

    A file that the user names is among them even if it is missing: fairseq would start afresh.
    """
    default = configs.CheckpointConfig().restore_file
    if args.restore_file != default:
        path = Path(with_suffix(args.restore_file, args))
        is_sharded = any(path.parent.glob(f"{path.stem}-shard*{path.suffix}"))
        if not is_remote(args.restore_file) and (path.is_file() or not is_sharded):
            yield path
        return
    last = Path(args.save_dir, with_suffix(default, args))
    named = args.finetune_from_model if args.continue_once is None else args.continue_once
    if last.is_file():
        yield last
    elif named and not is_remote(named):  # which fairseq takes as it is
        yield Path(named)


def refuse_other_maps(path: Path, args: Namespace) -> None:
    """Raise a `UserError` if a student has maps to its teacher in training or before, not in both.

    fairseq would give the optimizer's state to other parameters, and fail.
    """
    learns = {
        "distilled_label_smoothed_cross_entropy": args.trajectory_weight > 0,
        "cross_vocabulary_label_smoothed_cross_entropy": args.distill_weight > 0
        and args.cross_vocabulary_loss == "sra",
    }.get(args.criterion)
    is_begun_anew = args.reset_optimizer or path == Path(args.finetune_from_model or "")
    state = checkpoints.load(path)
    if learns is None or is_begun_anew or not state.get("last_optimizer_state"):
        return
    if learns != bool(state.get("criterion")):
        begins = "begins to follow its teacher's layers" if learns else "no longer follows layers"
        raise UserError(
            f"{path} has the optimizer's state of another loss, since the student now {begins}: "
            "add --reset-optimizer, or give the flags of before"
        )


def with_suffix(name: str, args: Namespace) -> str:
    """The name of a checkpoint to go on from as fairseq-train completes it."""
    return name.replace(".pt", args.checkpoint_suffix + ".pt")


def to_decode_with(args: Namespace) -> Iterator[Path]:
    """The files of the models that decode; fairseq answers a missing one with a traceback."""
    if not args.path or is_remote(args.path) or args.model_parallel_size > 1:
        return
    shards = args.checkpoint_shard_count
    for name in args.path.split(os.pathsep):
        for shard in range(shards):
            yield Path(
                get_maybe_sharded_checkpoint_filename(name, args.checkpoint_suffix, shard, shards)
            )


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
    """Check the data folders, which are among the words that `parse` leaves."""
    names = {name for subset in subsets for name in subset.split(",")}
    for word in words:
        for folder in word.split(os.pathsep):
            if not is_remote(word) and Path(folder).is_dir():
                binarised.refuse_truncated(Path(folder), names)


def first_data(words: Sequence[str]) -> Path | None:
    """The first data folder among the words that `parse` leaves, which has the dictionary."""
    folders = (Path(word.split(os.pathsep)[0]) for word in words if not is_remote(word))
    return next((folder for folder in folders if folder.is_dir()), None)


def is_remote(name: str) -> bool:
    """Whether fairseq would fetch it."""
    return "://" in name
