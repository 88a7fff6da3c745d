"""Speed of single updates on a CPU: sides in one process, each update taken by all of them in turn.

  python benchmarks/single_updates.py --data DATA --size tiny --repetitions 60 --json updates.json

training.py measures whole commands, a minute apart or more. In a minute a shared machine may become
another one; here sides follow right after one another. A repetition is an update: forward,
backward and the optimizer's step, on the same batch for all sides. Reading batches and logging are
not in it, nor is memory. The first --skip updates are left out.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from harness import corpora, in_process, measuring, program, sides
from harness.in_process import Trainer
from harness.measuring import Figures

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    chosen = sides.flags_of_sides(args, device)
    common = sides.common_flags(args.data, args.flags)
    trainers = {name: in_process.build_trainer([*common, *flags]) for name, flags in chosen.items()}
    measured = take_in_turn(trainers, args.skip, args.repetitions)
    header, rows = rows_of(measured, list(trainers))
    notes = [f"{args.repetitions} updates after {args.skip}; ratios: median and quartiles"]
    about = corpora.about(args.data)
    figures = {"data": about, "sides": chosen, "repetitions": measured}
    measuring.report(args, device, table(header, rows), notes, **figures)


def take_in_turn(
    trainers: Mapping[str, Trainer],
    skip: int,
    updates: int,
    within: Callable[[str], AbstractContextManager] = lambda side: nullcontext(),
    title: str = "update",
) -> list[Figures]:
    """Seconds and loss of every side's updates after `skip` others, in the first one's batches.

    Args:
        trainers: of the sides.
        skip: updates that are not returned.
        updates: those that are.
        within: makes the context in which a side takes an update.
        title: see `measuring.interleave`.
    """
    for trainer in trainers.values():
        trainer.begin_epoch(1)
    batches = in_process.batches_of_updates(next(iter(trainers.values())))
    taken: list[list[dict]] = []

    def measure(side: str, update: int) -> Figures:
        if update > len(taken):
            taken.append(next(batches))
        with within(side):
            begin = time.perf_counter()
            log = trainers[side].train_step(taken[-1])
            seconds = time.perf_counter() - begin
        return {"seconds": seconds, "loss": (log or {}).get("loss")}

    found = measuring.interleave(list(trainers), skip + updates, measure, title)
    return [x for x in found if x["repetition"] > skip]


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    measuring.add_arguments(parser, sides.SIDES, ["stock", "ours", "lie-trotter"], may_be_gpu=False)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        required=True,
        help="what a recipe's prepare stage or fairseq-preprocess wrote",
    )
    sides.add_arguments(parser)
    add(
        "--flags",
        type=program.flags,
        default="",
        help="more flags of fairseq-train for all sides; they win",
    )
    add("--skip", type=positive, default=3, metavar="N", help="updates left out (default: 3)")
    parser.set_defaults(repetitions=60)
    args = parser.parse_args()
    if args.repetitions < 2:
        raise UserError("--repetitions 1 has no quartiles: give 2 or more")
    if args.quick:
        args.repetitions, args.skip = 2, 1
        args.flags = f"{sides.QUICK} {args.flags}"
    return args


def rows_of(found: Sequence[Figures], sides: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each side, which is compared with the first one."""
    base = sides[0]
    header = ["side", "least ms", "median ms", "seconds of all", f"{base} / it, of all"]
    header.append(f"{base} / it, update by update")
    seconds = {side: measuring.values(found, side, "seconds") for side in sides}
    rows = []
    for side in sides:
        pairs = measuring.ratios(found, base, side, "seconds")
        rows.append(
            [
                side,
                f"{1000 * min(seconds[side]):.0f}",
                f"{1000 * statistics.median(seconds[side]):.0f}",
                f"{sum(seconds[side]):.2f}",
                f"{sum(seconds[base]) / sum(seconds[side]):.2f}",
                measuring.with_quartiles(pairs),
            ]
        )
    return header, rows


if __name__ == "__main__":
    program.start(main)
