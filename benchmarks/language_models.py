"""Speed and memory of training language models: sides with the same data and seed, taken in turn.

  python benchmarks/language_models.py --data DATA --size tiny --json language-models.json
  python benchmarks/language_models.py --data DATA --causal --sides stock ours
  python benchmarks/language_models.py --synthetic --size small

Each measurement starts fairseq-train anew. Its first updates are left out; speed is tokens read
over seconds of the rest, from its log. Memory is the most that the process had resident, or on a
GPU the most of the GPU's. Ratios are those of each repetition, their median and range.
"""

import argparse
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import corpora, fairseq_train, measuring, program
from harness import sides as sides_of_training
from harness.measuring import Device, Figures

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table
from macaron_fairseq.model.architectures import ROBERTA_SIZES

# What differs, by the task's name; "{size}" stands for --size with "_" before it.
MASKED = {
    "stock": "--arch roberta{size}_pre_norm --criterion masked_lm",
    "ours": "--arch macaron_roberta{size} --criterion chunked_masked_lm",
    "ours-bf16": "--arch macaron_roberta{size} --criterion chunked_masked_lm --macaron-matmul bf16",
    "ours-stock-path": "--arch macaron_roberta{size} --criterion masked_lm "
    "--macaron-kernels fairseq",
}
CHUNKED = "--criterion chunked_label_smoothed_cross_entropy --label-smoothing 0"
CAUSAL = {
    "stock": "--arch transformer_lm{size}_pre_norm --criterion cross_entropy",
    "ours": f"--arch macaron_transformer_lm{{size}} {CHUNKED}",
    "ours-bf16": f"--arch macaron_transformer_lm{{size}} {CHUNKED} --macaron-matmul bf16",
    "ours-stock-path": "--arch macaron_transformer_lm{size} --criterion cross_entropy "
    "--macaron-kernels fairseq",
}

# What does not.
COMMON = (
    "--sample-break-mode none --tokens-per-sample 128 --max-tokens 8192 --seed 1 "
    "--optimizer adam --adam-betas (0.9,0.999) --adam-eps 1e-6 --weight-decay 0.01 "
    "--lr 0.001 --lr-scheduler inverse_sqrt --warmup-updates 4000"
)
QUICK = "--tokens-per-sample 16 --max-tokens 64"


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    task = "language_modeling" if args.causal else "masked_lm"
    if "ours-bf16" in args.sides:
        sides_of_training.refuse_bf16(device)
    sides = sides_of(args.sides, args.causal, args.size)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        data = args.data or synthetic(Path(folder, "data"), args)
        common = [str(data_bin(data)), "--task", task, *shlex.split(f"{COMMON} {args.flags}")]
        repetitions = compare(common, sides, args, device)
        about = corpora.about(data)
    notes = [
        f"{task}, {args.size}, {args.repetitions} repetitions in turn, of {args.updates} updates "
        f"after {args.skip}; medians (and range); loss of the last update"
    ]
    measuring.report(
        args,
        device,
        table(*rows_of(repetitions, list(sides))),
        notes,
        data=about,
        sides=sides,
        repetitions=repetitions,
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    measuring.add_arguments(parser, MASKED, ["stock", "ours"], ROBERTA_SIZES)
    corpora.add_arguments(parser)
    parser.add_argument(
        "--causal", action="store_true", help="causal language models; otherwise masked ones"
    )
    fairseq_train.add_arguments(parser)
    args = parser.parse_args()
    if not (args.data or args.synthetic or args.quick):
        raise UserError("what should be trained on? Give --data DATA or --synthetic")
    return fairseq_train.completed(args, QUICK)


def sides_of(names: Sequence[str], causal: bool, size: str) -> dict[str, list[str]]:
    """The flags of the sides of these names."""
    suffix = "" if causal and size == "base" else f"_{size}"  # see architectures.LM_SIZES
    return {
        name: shlex.split(flags.replace("{size}", suffix))
        for name, flags in measuring.chosen(names, CAUSAL if causal else MASKED).items()
    }


def synthetic(data: Path, args: argparse.Namespace) -> Path:
    """Random text for all updates, and as much again."""
    tokens = fairseq_train.tokens_of_updates(args, 8192)
    corpora.write_synthetic_text(data, 100 if args.quick else 10000, tokens)
    return data


def data_bin(data: Path) -> Path:
    """The folder of fairseq-preprocess.

    Raises:
        UserError: if it holds no text to train a language model on.
    """
    folder = corpora.data_bin(data)
    if not (folder / "train.idx").is_file():
        raise UserError(f"{folder} holds no train.idx: give what a language model's recipe wrote")
    return folder


def compare(
    common: Sequence[str],
    sides: Mapping[str, Sequence[str]],
    args: argparse.Namespace,
    device: Device,
) -> list[Figures]:
    """Measure all sides in turn.

    Raises:
        UserError: if a training run fails, or the sides read other tokens.
    """

    def measure(name: str, _: int) -> Figures:
        return fairseq_train.measure([*common, *sides[name]], args.skip, args.updates, device)

    found = measuring.interleave(list(sides), args.repetitions, measure)
    if len({x["tokens"] for x in found}) > 1:
        raise UserError("the sides read other tokens: did gradients overflow (--fp16-init-scale)?")
    return found


def rows_of(
    repetitions: Sequence[Figures], sides: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each side, which is compared with the first one."""
    rows = [fairseq_train.columns_of(repetitions, side, sides[0]) for side in sides]
    return [*rows[0]], [[*row.values()] for row in rows]


if __name__ == "__main__":
    program.start(main)
