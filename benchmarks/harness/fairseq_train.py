"""fairseq-train as a process: how many updates of it are measured, and what its log says."""

import argparse
import shlex
import tempfile
from collections.abc import Sequence

import torch

from harness import measuring, program
from harness.measuring import Device, Figures
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import number
from macaron_fairseq.evaluation.training import training_log

ONLY_TRAIN = ["--disable-validation", "--no-save", "--log-format", "json", "--log-interval", "1"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is trained, and how many updates."""
    add = parser.add_argument
    text = "more flags of fairseq-train for all sides; they win"
    add("--flags", type=program.flags, default="", help=text)
    add("--skip", type=positive, metavar="N", help="updates left out (default: 5, GPU: 50)")
    add("--updates", type=positive, metavar="N", help="measured (default: 20, GPU: 200)")


def completed(args: argparse.Namespace, quick: str) -> argparse.Namespace:
    """The same with as many updates as the device needs, or with little work if --quick."""
    if args.quick:
        args.repetitions, args.skip, args.updates = 1, 1, 3
        args.flags = f"{quick} {args.flags}"
    has_gpu = torch.cuda.is_available() and not args.cpu  # whose updates take milliseconds
    skip, updates = (50, 200) if has_gpu else (5, 20)
    args.skip, args.updates = args.skip or skip, args.updates or updates
    return args


def tokens_of_updates(args: argparse.Namespace, max_tokens: int) -> int:
    """Twice the tokens of all updates; a batch has `max_tokens`, unless --flags say it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--max-tokens", type=int, default=max_tokens)
    parser.add_argument("--update-freq", type=int, default=1)
    flags = parser.parse_known_args(shlex.split(args.flags))[0]
    return 2 * (args.skip + args.updates) * flags.max_tokens * flags.update_freq


def measure(flags: Sequence[str], skip: int, updates: int, device: Device) -> Figures:
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


def columns_of(
    repetitions: Sequence[Figures], side: str, base: str, tokens: str = "tokens"
) -> dict[str, str]:
    """The cells of a table that any training has, by their titles.

    Args:
        repetitions: of all sides.
        side: whose row it is.
        base: what it is compared with.
        tokens: what they are called.
    """
    speed = measuring.ratios(repetitions, side, base, "tokens_per_second")
    gpu = measuring.median(repetitions, side, "peak_gpu_memory_mib")
    peak = "peak_memory_mib" if gpu is None else "peak_gpu_memory_mib"
    first = next(x for x in repetitions if x["side"] == side)
    return {
        "side": side,
        "parameters": f"{first['parameters']:,}",
        f"{tokens}/s": number(measuring.median(repetitions, side, "tokens_per_second"), ",.0f"),
        f"speed / {base}": measuring.with_range(speed),
        f"time / {base}": measuring.with_range([1 / x for x in reversed(speed)]),
        "peak MiB": number(measuring.median(repetitions, side, "peak_memory_mib"), ",.0f"),
        f"memory / {base}": measuring.with_range(measuring.ratios(repetitions, side, base, peak)),
        "peak GPU MiB": number(gpu, ",.0f"),
        "loss": f"{first['loss']:.3f}",
    }
