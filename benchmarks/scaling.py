"""How the cost of training and of translation grows with sentence length and vocabulary.

  python benchmarks/scaling.py training --size iwslt_de_en --json scaling.json
  python benchmarks/scaling.py generation --lengths 16 64 --types 10000
  python benchmarks/scaling.py training --size wmt_en_de_big --precision bf16 --types 37000

Each case is a synthetic corpus whose sentences all have the same length, on both sides. Training is
measured as in training.py, with sides of it, translation as in generation.py: random weights, and
as many tokens out as in, the end included.
"""

import argparse
import itertools
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import generation
import training
from harness import corpora, fairseq_train, measuring, program, sides
from harness.measuring import Ceiling, Device, Figures

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table

CASE = ("length", "types")


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    kind = Training(args, device) if args.kind == "training" else Generation(args, device)
    found: dict[tuple[int, int], list[Figures]] = {}
    cases = list(itertools.product(args.lengths, args.types))
    for case in cases:
        measuring.say("{} tokens, {} types".format(*case))
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            found[case] = kind.measure(Path(folder), *case)
    rows: list[list[str]] = []
    for case, figures in found.items():  # only now is the best product of all known
        header, of_sides = kind.rows(figures)
        rows += [[*map(str, case), *row] for row in of_sides]
    measuring.report(
        args,
        device,
        table([*CASE, *header], rows),
        kind.notes(),
        **kind.about(),
        repetitions=[dict(zip(CASE, case, strict=True)) | x for case in cases for x in found[case]],
    )


class Training:
    """fairseq-train on sentences of one length."""

    def __init__(self, args: argparse.Namespace, device: Device) -> None:
        self.args = args
        self.device = device
        self.sides = sides.flags_of_sides(args, device)
        self.ceiling = Ceiling(device, largest=256 if args.quick else None)

    def measure(self, folder: Path, length: int, types: int) -> list[Figures]:
        """All sides with one length and vocabulary."""
        data = training.synthetic(folder / "data", types, self.args, (length, length))
        return training.compare(data, self.sides, self.args, self.device, self.ceiling)

    def rows(self, figures: list[Figures]) -> tuple[list[str], list[list[str]]]:
        """The table's header and rows of one case."""
        return training.rows_of(figures, list(self.sides), self.ceiling)

    def notes(self) -> list[str]:
        """What a reader of the table must know."""
        return training.notes(self.args, self.ceiling)

    def about(self) -> dict[str, Any]:
        """What to keep next to the repetitions."""
        return {"sides": self.sides, "ceiling": self.ceiling.products}


class Generation:
    """Translation of sentences of one length into as many tokens."""

    def __init__(self, args: argparse.Namespace, device: Device) -> None:
        self.args = args
        self.device = device
        self.sides = measuring.chosen(args.sides, generation.SIDES)

    def measure(self, folder: Path, length: int, types: int) -> list[Figures]:
        """All sides with one length and vocabulary."""
        device, count = self.device, self.args.sentences
        corpora.write_synthetic(folder / "data", types, (length, length), 1, count)
        corpora.sample(folder / "data", "test", 1, folder / "one")  # what starting takes
        args = argparse.Namespace(**{**vars(self.args), "length": length - 1})
        models = generation.prepare_models(folder, self.sides, args, device)
        search = args.beam, args.batch_size
        return generation.compare(folder, models, self.sides, *search, args, device)

    def rows(self, figures: list[Figures]) -> tuple[list[str], list[list[str]]]:
        """The table's header and rows of one case."""
        return generation.rows_of(figures, list(self.sides))

    def notes(self) -> list[str]:
        """What a reader of the table must know."""
        args = self.args
        return [
            f"{args.repetitions} repetitions in turn, of {args.sentences} sentences, beam "
            f"{args.beam}, batch {args.batch_size}; medians (and range); random weights"
        ]

    def about(self) -> dict[str, Any]:
        """What to keep next to the repetitions."""
        return {"sides": {name: asdict(side) for name, side in self.sides.items()}}


def parse() -> argparse.Namespace:
    """Parse the command line.

    Raises:
        UserError: if a case cannot be measured.
    """
    parser = program.parser(__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    of_training = kinds.add_parser("training", help="fairseq-train, as in training.py")
    training.add_arguments(of_training)
    of_generation = kinds.add_parser("generation", help="translation, as in generation.py")
    generation.add_arguments(of_generation)
    add = of_generation.add_argument
    add("--sentences", type=positive, default=128, metavar="N", help="to translate (default: 128)")
    add("--beam", type=positive, default=5, metavar="N", help="(default: 5)")
    add("--batch-size", type=positive, default=64, metavar="N", help="sentences (default: 64)")
    of_generation.set_defaults(stock=None, ours=None, lines=1000)  # models with random weights
    for one in (of_training, of_generation):
        one.add_argument(
            "--lengths",
            type=positive,
            nargs="+",
            default=[16, 32, 64, 128, 256, 512],
            metavar="N",
            help="tokens of a sentence, its end included (default: 16 to 512)",
        )
        one.add_argument(
            "--types",
            type=positive,
            nargs="+",
            default=[10000, 37000],
            metavar="N",
            help="vocabularies (default: 10000 37000)",
        )
    args = parser.parse_args()
    if min(args.lengths) < 2:
        raise UserError("--lengths below 2: a word and the end of its sentence are 2 tokens")
    if args.quick:
        args.lengths, args.types = [8], [100]
    if args.kind == "training":
        return fairseq_train.completed(args, sides.QUICK)
    generation.refuse_bf16(args)
    if args.quick:
        args.repetitions, args.sentences, args.lines = 1, 8, 200
        args.batch_size, args.beam = 8, 2
    return args


if __name__ == "__main__":
    program.start(main)
