"""Sides that train translation models: their flags, and those that all of them get."""

import argparse
from pathlib import Path
from shlex import join, split

from harness import corpora, measuring, program
from harness.measuring import Device
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model import bf16

# What differs; "{size}" stands for --size with "_" before it.
STOCK = ["--arch", "transformer{size}_pre_norm", "--criterion", "label_smoothed_cross_entropy"]
CRITERION = ["--criterion", "chunked_label_smoothed_cross_entropy"]
OURS = ["--arch", "macaron_transformer{size}", *CRITERION]
SIDES = {
    "stock": STOCK,
    "ours": OURS,
    "ours-stock-path": [*OURS[:2], *STOCK[2:], "--macaron-kernels", "fairseq"],
    "ours-bf16": [*OURS, "--macaron-matmul", "bf16"],
    "lie-trotter": [*OURS, "--macaron-scheme", "lie-trotter"],
}

# What does not.
COMMON = split(
    "--optimizer adam --adam-betas (0.9,0.98) --weight-decay 0.0001 --lr 0.0005 "
    "--lr-scheduler inverse_sqrt --warmup-updates 4000 --label-smoothing 0.1 "
    "--max-tokens 4096 --seed 1"
)
QUICK = join([*measuring.SMALL, "--max-tokens", "400"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that defines a side."""
    parser.add_argument(
        "--side",
        type=program.flags,
        action="append",
        default=[],
        metavar="NAME=FLAGS",
        help="define another side by what it gives to fairseq-train",
    )


def flags_of_sides(args: argparse.Namespace, device: Device) -> dict[str, list[str]]:
    """The flags of the sides that were asked for.

    Raises:
        UserError: if --side or --sides is not understood, or a side is not for this device.
    """
    sides = dict(SIDES)
    for side in args.side:
        name, equals, flags = side.partition("=")
        if not equals:
            raise UserError(f"--side {side} has no '=': write --side 'NAME=FLAGS'")
        sides[name] = split(flags)
    if "ours-bf16" in args.sides:
        refuse_bf16(device)
    return {
        name: [flag.replace("{size}", f"_{args.size}") for flag in flags]
        for name, flags in measuring.chosen(args.sides, sides).items()
    }


def refuse_bf16(device: Device) -> None:
    """Raise a `UserError` where the products of one side alone should not be in bf16."""
    if device.gpu:
        raise UserError("ours-bf16 is for CPUs: on a GPU give --precision bf16 for all sides")
    if not bf16.is_fast_here():
        raise UserError("ours-bf16 is not for this CPU, which multiplies bf16 too slowly")


def common_flags(data: Path, more: str) -> list[str]:
    """What all sides give to fairseq-train.

    Raises:
        UserError: if the folder holds no training data.
    """
    folder = corpora.data_bin(data)
    if not any(folder.glob("train.*-*.*.idx")):
        raise UserError(f"{folder} holds no set 'train': prepare it with fairseq-preprocess")
    shared = "--share-all-embeddings"
    if not corpora.shares_dictionary(folder):
        shared = "--share-decoder-input-output-embed"
    return [str(folder), shared, *COMMON, *split(more)]
