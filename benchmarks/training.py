"""Speed and memory of fairseq-train: sides with the same data, seed and flags, taken in turn.

  python benchmarks/training.py --data DATA --size tiny --json training.json
  python benchmarks/training.py --synthetic --size wmt_en_de_big --precision bf16
  python benchmarks/training.py --data DATA --sides lie-trotter ours
  python benchmarks/training.py --data DATA --sides stock mine \\
    --side 'mine=--arch transformer{size}_pre_norm --criterion label_smoothed_cross_entropy'

Each measurement starts fairseq-train anew. Its first updates are left out; speed is target tokens
over seconds of the rest, from its log, reading and logging included. Memory is the most that the
process had resident, or on a GPU the most of the GPU's. `ceiling` is the share of this machine's
fastest matrix product: only the products of the model count (macaron_fairseq/analysis/flops.py),
without padding, and the time is the whole update's. Ratios are those of each repetition, their
median and range.
"""

import argparse
import shlex
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from harness import corpora, in_process, measuring
from harness.measuring import Ceiling, Device, Figures

from macaron_fairseq.analysis import flops
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import number, table
from macaron_fairseq.evaluation.training import training_log
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
COMMON = [
    *("--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--weight-decay", "0.0001"),
    *("--lr", "0.0005", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4000"),
    *("--label-smoothing", "0.1", "--max-tokens", "4096", "--seed", "1"),
]
ONLY_TRAIN = ["--disable-validation", "--no-save", "--log-format", "json", "--log-interval", "1"]
QUICK = shlex.join([*measuring.SMALL, "--max-tokens", "400"])


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    sides = flags_of_sides(args, device)
    ceiling = Ceiling(device, largest=256 if args.quick else None)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        lengths = corpora.SYNTHETIC_LENGTHS
        data = args.data or synthetic(Path(folder, "data"), args.types, args, lengths)
        repetitions = compare(data, sides, args, device, ceiling)
        about = corpora.about(data)
    header, rows = rows_of(repetitions, list(sides), ceiling)
    measuring.report(
        args,
        device,
        table(header, rows),
        notes(args, ceiling),
        data=about,
        sides=sides,
        ceiling=ceiling.products,
        repetitions=repetitions,
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    corpora.add_arguments(parser)
    parser.add_argument(
        "--types",
        type=positive,
        default=10000,
        metavar="N",
        help="vocabulary of --synthetic (default: %(default)s)",
    )
    args = parser.parse_args()
    if not (args.data or args.synthetic or args.quick):
        raise UserError("what should be trained on? Give --data DATA or --synthetic")
    return completed(args)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what does not depend on the data."""
    measuring.add_arguments(parser, SIDES, ["stock", "ours"])
    add = parser.add_argument
    add(
        "--side",
        action="append",
        default=[],
        metavar="NAME=FLAGS",
        help="define another side by what it gives to fairseq-train",
    )
    add("--flags", default="", help="more flags of fairseq-train for all sides; they win")
    add("--skip", type=positive, metavar="N", help="updates left out (default: 5, GPU: 50)")
    add("--updates", type=positive, metavar="N", help="measured (default: 20, GPU: 200)")


def completed(args: argparse.Namespace, quick: str = QUICK) -> argparse.Namespace:
    """The same with as many updates as the device needs, or with little work if --quick."""
    if args.quick:
        args.repetitions, args.skip, args.updates = 1, 1, 3
        args.flags = f"{quick} {args.flags}"
    has_gpu = torch.cuda.is_available() and not args.cpu  # whose updates take milliseconds
    skip, updates = (50, 200) if has_gpu else (5, 20)
    args.skip, args.updates = args.skip or skip, args.updates or updates
    return args


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
        sides[name] = shlex.split(flags)
    if "ours-bf16" in args.sides:
        if device.gpu:
            raise UserError("ours-bf16 is for CPUs: on a GPU give --precision bf16 for all sides")
        if not bf16.is_fast_here():
            raise UserError("ours-bf16 is not for this CPU, which multiplies bf16 too slowly")
    return {
        name: [flag.replace("{size}", f"_{args.size}") for flag in flags]
        for name, flags in measuring.chosen(args.sides, sides).items()
    }


def synthetic(data: Path, types: int, args: argparse.Namespace, lengths: tuple[int, int]) -> Path:
    """A synthetic data folder with enough sentences for the updates, and as many again."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--update-freq", type=int, default=1)
    flags = parser.parse_known_args(shlex.split(args.flags))[0]
    tokens = 2 * (args.skip + args.updates) * flags.max_tokens * flags.update_freq
    corpora.write_synthetic(data, types, lengths, 2 * tokens // sum(lengths) + 8, test=1)
    return data


def compare(
    data: Path,
    sides: Mapping[str, Sequence[str]],
    args: argparse.Namespace,
    device: Device,
    ceiling: Ceiling,
) -> list[Figures]:
    """Measure all sides on a data folder, in turn; the ceiling once in each repetition.

    Raises:
        UserError: if the folder holds no training data, or a training fails.
    """
    common = common_flags(data, args.flags)
    work: dict[str, flops.Work] = {}
    for name, flags in sides.items():
        measuring.say(f"counting the operations of {name}")
        trainer = in_process.build_trainer([*common, *flags])
        work[name] = flops.of_model(trainer.model)
    lengths = in_process.lengths_of_updates(trainer, args.skip, args.updates)

    def measure(name: str, _: int) -> Figures:
        if name == next(iter(sides)):
            ceiling.measure()
        figures = measure_training([*common, *sides[name]], args.skip, args.updates, device)
        if figures["tokens"] != sum(target for _, target in lengths):
            raise UserError(
                f"{name} was trained on other sentences than were counted: did the gradients "
                "overflow (--fp16-init-scale) in an update, which is then left out?"
            )
        gflops = work[name].training(lengths) / 1e9 / figures["seconds"]
        precision = "bf16" if "bf16" in sides[name] else device.precision
        return {**figures, "precision": precision, "gflops": gflops}

    return measuring.interleave(list(sides), args.repetitions, measure)


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
    return [str(folder), shared, *COMMON, *shlex.split(more)]


def measure_training(flags: Sequence[str], skip: int, updates: int, device: Device) -> Figures:
    """Run fairseq-train for skip + updates updates; figures of the latter."""
    with tempfile.TemporaryDirectory() as folder:
        run = measuring.run(
            device,
            "fairseq-train",
            *(*flags, *measuring.USER_DIR, *ONLY_TRAIN, *device.flags),
            *("--save-dir", folder, "--max-update", skip + updates),
        )
    return {**read_log(run.output, skip, updates), **run.costs}


def read_log(log: str, skip: int, updates: int) -> Figures:
    """Target tokens, seconds, speed, loss and parameters from a log with a line for each update.

    Raises:
        UserError: if it does not hold that many updates.
    """
    logged = [training_log.parse(line) for line in log.split("\n")]
    lines = [
        tuple(float(line.figures[name]) for name in ("wpb", "wps", "loss"))
        for line in logged
        if line and line.kind == "train_inner" and line.update > skip
    ]
    parameters = training_log.PARAMETERS.search(log)
    if len(lines) != updates or not parameters:
        raise UserError(f"fairseq-train logged {len(lines)} of {updates} updates to measure")
    tokens = round(sum(tokens for tokens, _, _ in lines))
    seconds = sum(tokens / speed for tokens, speed, _ in lines)
    return {
        "parameters": int(parameters[1].replace(",", "")),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "loss": lines[-1][2],
    }


def rows_of(
    repetitions: Sequence[Figures], sides: Sequence[str], ceiling: Ceiling
) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each side, which is compared with the first one."""
    base = sides[0]
    header = ["side", "parameters", "words/s", f"speed / {base}", f"time / {base}", "ceiling"]
    header += ["peak MiB", f"memory / {base}", "peak GPU MiB", "loss"]
    rows = []
    for side in sides:
        of_side = [x for x in repetitions if x["side"] == side]
        speed = measuring.ratios(repetitions, side, base, "tokens_per_second")
        gpu = measuring.median(repetitions, side, "peak_gpu_memory_mib")
        peak = "peak_memory_mib" if gpu is None else "peak_gpu_memory_mib"
        memory = measuring.ratios(repetitions, side, base, peak)
        share = statistics.median(x["gflops"] for x in of_side) / ceiling.gflops(
            of_side[0]["precision"]
        )
        rows.append(
            [
                side,
                f"{of_side[0]['parameters']:,}",
                number(measuring.median(repetitions, side, "tokens_per_second"), ",.0f"),
                measuring.with_range(speed),
                measuring.with_range([1 / x for x in reversed(speed)]),
                f"{share:.0%} of {of_side[0]['precision']}",
                number(measuring.median(repetitions, side, "peak_memory_mib"), ",.0f"),
                measuring.with_range(memory),
                number(gpu, ",.0f"),
                f"{of_side[0]['loss']:.3f}",
            ]
        )
    return header, rows


def notes(args: argparse.Namespace, ceiling: Ceiling) -> list[str]:
    """What a reader of the table must know."""
    best = {x["precision"]: ceiling.gflops(x["precision"]) for x in ceiling.products}
    products = ", ".join(f"{name} {gflops:,.0f}" for name, gflops in best.items())
    return [
        f"{args.repetitions} repetitions in turn, of {args.updates} updates after {args.skip}; "
        "medians (and range); words are target tokens; loss of the last update",
        f"ceiling, GFLOP/s of the fastest matrix product: {products}",
    ]


if __name__ == "__main__":
    measuring.start(main)
