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
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import corpora, fairseq_train, in_process, measuring, program, sides
from harness.measuring import Ceiling, Device, Figures

from macaron_fairseq.analysis import flops
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    chosen = sides.flags_of_sides(args, device)
    ceiling = Ceiling(device, largest=256 if args.quick else None)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        lengths = corpora.SYNTHETIC_LENGTHS
        data = args.data or synthetic(Path(folder, "data"), args.types, args, lengths)
        repetitions = compare(data, chosen, args, device, ceiling)
        about = corpora.about(data)
    header, rows = rows_of(repetitions, list(chosen), ceiling)
    measuring.report(
        args,
        device,
        table(header, rows),
        notes(args, ceiling),
        data=about,
        sides=chosen,
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
    return fairseq_train.completed(args, sides.QUICK)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what does not depend on the data."""
    measuring.add_arguments(parser, sides.SIDES, ["stock", "ours"])
    sides.add_arguments(parser)
    fairseq_train.add_arguments(parser)


def synthetic(data: Path, types: int, args: argparse.Namespace, lengths: tuple[int, int]) -> Path:
    """A synthetic data folder with enough sentences for the updates, and as many again."""
    tokens = fairseq_train.tokens_of_updates(args, 4096)
    corpora.write_synthetic(data, types, lengths, 2 * tokens // sum(lengths) + 8, test=1)
    return data


def compare(
    data: Path,
    chosen: Mapping[str, Sequence[str]],
    args: argparse.Namespace,
    device: Device,
    ceiling: Ceiling,
) -> list[Figures]:
    """Measure all sides on a data folder, in turn; the ceiling once in each repetition.

    Raises:
        UserError: if the folder holds no training data, or a training fails.
    """
    common = sides.common_flags(data, args.flags)
    work: dict[str, flops.Work] = {}
    for name, flags in chosen.items():
        measuring.say(f"counting the operations of {name}")
        trainer = in_process.build_trainer([*common, *flags])
        work[name] = flops.of_model(trainer.model)
    lengths = in_process.lengths_of_updates(trainer, args.skip, args.updates)

    def measure(name: str, _: int) -> Figures:
        if name == next(iter(chosen)):
            ceiling.measure()
        figures = fairseq_train.measure([*common, *chosen[name]], args.skip, args.updates, device)
        if figures["tokens"] != sum(target for _, target in lengths):
            raise UserError(
                f"{name} was trained on other sentences than were counted: did the gradients "
                "overflow (--fp16-init-scale) in an update, which is then left out?"
            )
        gflops = work[name].training(lengths) / 1e9 / figures["seconds"]
        precision = "bf16" if "bf16" in chosen[name] else device.precision
        return {**figures, "precision": precision, "gflops": gflops}

    return measuring.interleave(list(chosen), args.repetitions, measure)


def rows_of(
    repetitions: Sequence[Figures], chosen: Sequence[str], ceiling: Ceiling
) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each side, which is compared with the first one."""
    rows = []
    for side in chosen:
        columns = fairseq_train.columns_of(repetitions, side, chosen[0], "words")
        of_side = [x for x in repetitions if x["side"] == side]
        precision = of_side[0]["precision"]
        share = statistics.median(x["gflops"] for x in of_side) / ceiling.gflops(precision)
        rows.append({**columns, "ceiling": f"{share:.0%} of {precision}"})
    return [*rows[0]], [[*row.values()] for row in rows]


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
    program.start(main)
