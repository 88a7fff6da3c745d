"""The command line of fairseq's commands, as it is checked before fairseq reads it.

It knows the flags that a check needs, with fairseq's defaults, and the files that they name.
"""

import io
import logging
import os
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fairseq import options
from fairseq.checkpoint_utils import get_maybe_sharded_checkpoint_filename
from fairseq.dataclass import configs
from fairseq.dataclass.utils import gen_parser_from_dataclass

from macaron_fairseq.common import files

SAMPLE_OF_EVAL_LM = 1024  # tokens, where fairseq-eval-lm is not told
TASK_OF_COMMAND = {"eval-lm": "language_modeling", "validate": None}  # others: translation
COMMANDS = {"train", "generate", "interactive", "validate", "eval-lm"}


@dataclass(frozen=True)
class CommandLine:
    """What was typed."""

    command: str  # such as "train"
    flags: Sequence[str]  # all words after it
    args: Namespace  # the flags that are checked, with fairseq's defaults
    others: Sequence[str]  # all other words, such as the data folder

    @cached_property
    def given(self) -> Namespace | None:
        """What fairseq-train makes of the flags; see `with_defaults`."""
        return with_defaults(self.flags)


def read(argv: Sequence[str]) -> CommandLine | None:
    """One of fairseq's command lines.

    None if another program runs, if help is asked for, or if a value has the wrong type, which
    fairseq reports itself.
    """
    command = command_name(argv[0]) if argv else None
    if command not in COMMANDS or {"-h", "--help"} & {*argv}:
        return None
    try:
        args, others = parse(argv[1:], command)
    except ArgumentError:
        return None
    return CommandLine(command, argv[1:], args, others)


def command_name(program: str) -> str | None:
    """Which of fairseq's commands runs: `fairseq-train` or `python -m fairseq_cli.train`."""
    path = Path(program)
    if path.parent.name == "fairseq_cli":
        return path.stem.replace("_", "-")
    return path.name.removeprefix("fairseq-") if path.name.startswith("fairseq-") else None


def parse(flags: Sequence[str], command: str = "train") -> tuple[Namespace, list[str]]:
    """The flags that are checked, with fairseq's defaults, and all other words.

    World size and warm-up are None where they are not given.

    Args:
        flags: of a command line.
        command: which of fairseq's commands it is.

    Raises:
        argparse.ArgumentError: if a value is not of its flag's type.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for group in (
        configs.CommonConfig,
        configs.DatasetConfig,
        configs.CheckpointConfig,
        configs.DistributedTrainingConfig,
        configs.CommonEvalConfig,
        configs.OptimizationConfig,
    ):
        gen_parser_from_dataclass(parser, group())
    for action in parser._actions:
        if action.dest in ("max_tokens_valid", "batch_size_valid"):  # left without a type
            action.type = int
    parser.set_defaults(distributed_world_size=None)
    for name in ("checkpoint", "offload"):
        parser.add_argument(f"--{name}-activations", action="store_true")
    parser.add_argument("--macaron-matmul")
    parser.add_argument("-a", "--arch")
    parser.add_argument("--beam", type=int, default=configs.GenerationConfig().beam)
    parser.add_argument("--lm-path")
    parser.add_argument("--task", default=TASK_OF_COMMAND.get(command, "translation"))
    parser.add_argument("--num-classes", type=int, default=-1)
    parser.add_argument("--regression-target", action="store_true")
    parser.add_argument("-s", "--source-lang")
    parser.add_argument("-t", "--target-lang")
    parser.add_argument("--criterion", default="cross_entropy")
    parser.add_argument("--optimizer")
    parser.add_argument("--adam-betas", default="(0.9, 0.999)")
    parser.add_argument("--lr-scheduler", default="fixed")
    parser.add_argument("--warmup-updates", type=int)
    parser.add_argument("--lr-period-updates", type=float, default=-1)
    modes = "none", "complete", "complete_doc", "eos"
    parser.add_argument("--sample-break-mode", choices=modes)
    parser.add_argument("--tokens-per-sample", type=int, default=SAMPLE_OF_EVAL_LM)
    parser.add_argument("--context-window", type=int, default=0)
    parser.add_argument("--eval-bleu", action="store_true")
    parser.add_argument("--report-accuracy", action="store_true")
    parser.add_argument("--num-batch-buckets", type=int, default=0)
    parser.add_argument("--buffer-size", type=int, default=0)
    parser.add_argument("--input", default="-")
    return parser.parse_known_args(flags)


def with_defaults(flags: Sequence[str]) -> Namespace | None:
    """What fairseq-train makes of its flags; None where it refuses them.

    It will say so, unless what they name is registered later, as architectures and criteria of
    other packages are.
    """
    try:
        with unlogged(), redirect_stderr(io.StringIO()):
            return options.parse_args_and_arch(options.get_training_parser(), [*flags])
    except (Exception, SystemExit):  # the second of the parser
        return None


@contextmanager
def unlogged() -> Iterator[None]:
    """Log nothing: fairseq-train will do the same once more, and log it."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


# --- The files that it names ---------------------------------------------------------------------


def first_folder(given: Namespace | None, others: Sequence[str]) -> Path | None:
    """The first data folder, which has the dictionary; None where it is none of this machine.

    Args:
        given: see `with_defaults`.
        others: the words that `parse` leaves. After the first one there may be values of flags that
            it does not know.
    """
    name = getattr(given, "data", None) or next(iter(others), "")
    first = name.split(os.pathsep)[0]
    return Path(first) if not files.is_remote(name) and first and is_folder(first) else None


def is_folder(word: str) -> bool:
    """Whether a word names a folder; many are no names, and some too long for one."""
    try:
        return Path(word).is_dir()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Whether there is a file of that name; one that cannot be looked at is taken for one."""
    try:
        return path.is_file()
    except OSError:
        return True


def to_restore(args: Namespace) -> Iterator[Path]:
    """The files that training will start from.

    A file that the user names is among them even if it is missing: fairseq would start afresh.
    """
    default = configs.CheckpointConfig().restore_file
    if args.restore_file != default:
        path = Path(with_suffix(args.restore_file, args))
        is_sharded = is_folder(str(path.parent)) and any(
            path.parent.glob(f"{path.stem}-shard*{path.suffix}")
        )
        if not files.is_remote(args.restore_file) and (is_file(path) or not is_sharded):
            yield path
        return
    last = Path(args.save_dir, with_suffix(default, args))
    named = args.finetune_from_model if args.continue_once is None else args.continue_once
    if is_file(last):
        yield last
    elif named and not files.is_remote(named):  # which fairseq takes as it is
        yield Path(named)


def with_suffix(name: str, args: Namespace) -> str:
    """The name of a checkpoint to go on from as fairseq-train completes it."""
    return name.replace(".pt", args.checkpoint_suffix + ".pt")


def to_decode_with(args: Namespace, command: str) -> Iterator[Path]:
    """The files of the models that decode; fairseq answers a missing one with a traceback."""
    if not args.path or files.is_remote(args.path) or args.model_parallel_size > 1:
        return
    shards = args.checkpoint_shard_count
    takes_several = command in ("generate", "interactive")
    for name in args.path.split(os.pathsep) if takes_several else [args.path]:
        for shard in range(shards):
            yield Path(
                get_maybe_sharded_checkpoint_filename(name, args.checkpoint_suffix, shard, shards)
            )
