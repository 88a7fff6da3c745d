"""A look at the command line that imports the plugin.

fairseq imports a user directory before it parses anything else. Here is therefore the place to
refuse, for Macaron and baseline alike, what fairseq's commands would end in an obscure traceback.
"""

import logging
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import bf16, checkpoints, ranks

logger = logging.getLogger(__name__)

HALF_PRECISIONS = ("fp16", "memory_efficient_fp16", "bf16", "memory_efficient_bf16")
COMMANDS = {"train", "generate", "interactive", "validate", "eval-lm"}


def check(argv: Sequence[str]) -> None:
    """Refuse, if argv is one of fairseq's commands, what would fail or silently go wrong.

    That is half precision on a CPU, a CPU's precision on a GPU or on a CPU without it, bad
    checkpoints, and ranks that would train separately.

    Raises:
        UserError: naming what to change.
    """
    command = command_name(argv[0]) if argv else None
    if command not in COMMANDS:
        return
    args = parse(argv[1:])
    gpus = 0 if args.cpu else torch.cuda.device_count()
    if not gpus:
        for precision in HALF_PRECISIONS:
            if getattr(args, precision):
                raise UserError(
                    f"--{precision.replace('_', '-')} needs a GPU, and "
                    f"{'--cpu rules it out' if args.cpu else 'PyTorch finds none here'}: "
                    "leave it out to compute in fp32 on the CPU"
                )
    if command == "train":
        if args.macaron_matmul == "bf16":
            bf16.refuse_where_wrong(args, on_gpu=gpus > 0)
            bf16.refuse_where_slow()
        ranks.check(args, os.environ, gpus)
    if command in ("generate", "validate") and args.required_batch_size_multiple != 1:
        logger.warning(
            "fairseq leaves out the last batch if the number of its sentences is no multiple of "
            "--required-batch-size-multiple (default: 8): set it to 1 for all sentences"
        )
    for path in checkpoints_to_load(args, training=command == "train"):
        checkpoints.load(path)


def command_name(program: str) -> str | None:
    """Which of fairseq's commands runs: `fairseq-train` or `python -m fairseq_cli.train`."""
    path = Path(program)
    if path.parent.name == "fairseq_cli":
        return path.stem.replace("_", "-")
    return path.name.removeprefix("fairseq-") if path.name.startswith("fairseq-") else None


def parse(flags: Sequence[str]) -> Namespace:
    """The few flags that matter here, with fairseq's defaults."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for name in (*HALF_PRECISIONS, "cpu", "checkpoint_activations", "offload_activations"):
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
    parser.add_argument("--required-batch-size-multiple", type=int, nargs="?", default=8)
    parser.add_argument("--distributed-world-size", type=int, nargs="?")
    parser.add_argument("--distributed-port", type=int, nargs="?", default=-1)
    parser.add_argument("--distributed-init-method", nargs="?")
    parser.add_argument("--macaron-matmul", nargs="?")
    parser.add_argument("--path", nargs="?")
    parser.add_argument("--save-dir", nargs="?", default="checkpoints")
    parser.add_argument("--restore-file", nargs="?", default="checkpoint_last.pt")
    parser.add_argument("--finetune-from-model", nargs="?")
    return parser.parse_known_args(flags)[0]


def checkpoints_to_load(args: Namespace, training: bool) -> Iterator[Path]:
    """The files that the command will load, as far as they exist; fairseq reports missing ones."""
    if training:
        # Only this name is looked up in the save folder.
        in_folder = args.restore_file == "checkpoint_last.pt"
        restored = Path(args.save_dir if in_folder else "", args.restore_file)
        paths = [restored, Path(args.finetune_from_model or "")]
    else:
        paths = [Path(name) for name in (args.path or "").split(os.pathsep)]
    return (path for path in paths if path.is_file())
