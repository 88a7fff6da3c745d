"""Versions of the code, or of a model, that translate the same batches in turn on a CPU.

  git worktree add ../before HEAD~1
  python benchmarks/versions.py --data DATA --model MODEL.pt before=../before now=.
  python benchmarks/versions.py --data DATA stock=.,translation,BASELINE.pt ours=.,,MACARON.pt

A side is NAME=CHECKOUT, NAME=CHECKOUT,TASK or NAME=CHECKOUT,TASK,MODEL. Each is a process that has
loaded its model and takes every batch right after the others took it. That shows smaller
differences than whole commands do, minutes apart. How small, `one=. other=.` tells. What is done
once for a command, such as loading, is left out. Of each batch the least time counts, and the
median.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness import corpora, measuring, program
from harness.measuring import Device, Figures

from macaron_fairseq.commands.arguments import new_file, positive
from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import table
from macaron_fairseq.fast.task import NAME

WORKER = Path(__file__).parent / "harness" / "worker.py"


class Side:
    """A version, and the process that translates with it."""

    def __init__(self, text: str, args: argparse.Namespace, device: Device) -> None:
        """Start the process.

        Raises:
            UserError: if the text names no checkout, or no model.
        """
        self.name, _, rest = text.partition("=")
        checkout, task, model = (*rest.split(","), "", "")[:3]
        task, model = task or NAME, model or args.model
        if not checkout or not Path(checkout, "macaron_fairseq", "__init__.py").is_file():
            raise UserError(f"{text}: give NAME=CHECKOUT, a folder that holds macaron_fairseq")
        if not model or not Path(model).is_file():
            raise UserError(f"{self.name} has no model: give --model FILE or {text},TASK,FILE")
        code = environment.code(Path(checkout, "macaron_fairseq").resolve())
        self.about = {"task": task, "model": Path(model).name, "code": code}
        data = corpora.data_bin(args.data)
        results, descriptor = os.pipe()
        words = data, model, task, args.beam, args.batch_size, device.threads, descriptor
        said = None if args.verbose else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, WORKER, *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(Path(checkout).resolve())},
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            pass_fds=[descriptor],
            text=True,
        )
        os.close(descriptor)
        self.results = os.fdopen(results)

    def read(self) -> str:
        """The process' next line.

        Raises:
            UserError: if it has ended.
        """
        if line := self.results.readline():
            return line
        raise UserError(f"{self.name} ended with status {self.process.wait()}: --verbose shows why")

    def translate(self, batch: int) -> float:
        """Seconds that a batch takes."""
        if self.process.stdin:
            with suppress(BrokenPipeError):  # `read` says that it has ended
                print(batch, file=self.process.stdin, flush=True)
        return float(self.read())


@contextmanager
def started(args: argparse.Namespace, device: Device) -> Iterator[list[Side]]:
    """The sides, whose processes end with the block."""
    sides: list[Side] = []
    try:
        for text in args.sides:
            sides.append(Side(text, args, device))
        yield sides
    finally:
        for side in sides:
            side.process.kill()
            side.process.wait()


def measure(sides: Sequence[Side], batches: int, repetitions: int) -> list[Figures]:
    """Seconds of each side, batch and repetition; who is first changes."""
    by_name = {side.name: side for side in sides}

    def translate(side: str, batch: int) -> Figures:
        return {"seconds": by_name[side].translate(batch - 1), "batch": batch - 1}

    found: list[Figures] = []
    for repetition in range(1 + repetitions):
        title = f"repetition {repetition}/{repetitions}, batch"
        turn = measuring.interleave(list(by_name), batches, translate, title, repetition)
        if repetition:  # a shape's first time is slower
            found += [{**x, "repetition": repetition} for x in turn]
    return found


def rows_of(found: Sequence[Figures], names: Sequence[str]) -> list[list[str]]:
    """A row of the table for each side."""
    times = {
        name: [
            [x["seconds"] for x in found if (x["side"], x["batch"]) == (name, batch)]
            for batch in sorted({x["batch"] for x in found})
        ]
        for name in names
    }
    base = times[names[0]]
    rows = []
    for name, own in times.items():
        row = [name]
        for statistic in (min, statistics.median):
            seconds, of_base = (sum(map(statistic, x)) for x in (own, base))
            row += [f"{seconds:.2f}", f"{of_base / seconds:.2f}"]
        pairs = (zip(*x, strict=True) for x in zip(base, own, strict=True))
        row.append(f"{statistics.median(one / other for x in pairs for one, other in x):.2f}")
        rows.append(row)
    return rows


def main() -> None:
    """Measure and report."""
    args = parse()
    device = measuring.device(args)
    with started(args, device) as sides:
        about = {side.name: side.about for side in sides}
        batches = min([int(side.read()) for side in sides] + [args.batches or sys.maxsize])
        found = measure(sides, batches, args.repetitions)
    args.sides = names = [*about]  # their folders are nobody's business
    header = ["side", "least seconds", f"{names[0]} / it", "medians", f"{names[0]} / it"]
    rows = rows_of(found, names)
    text = table([*header, "median of the batches' ratios"], rows)
    note = (
        f"{batches} batches of {args.batch_size} sentences, beam {args.beam}, "
        f"{args.repetitions} repetitions in turn"
    )
    measuring.report(args, device, text, [note], sides=about, repetitions=found)


def parse() -> argparse.Namespace:
    """Parse the command line.

    Raises:
        UserError: if two sides have the same name.
    """
    parser = program.parser(__doc__)
    add = parser.add_argument
    add("sides", nargs="+", metavar="NAME=CHECKOUT[,TASK[,MODEL]]")
    add("--data", type=Path, required=True, help="what fairseq-preprocess wrote")
    add("--model", type=Path, metavar="FILE", help="checkpoint of the sides that name none")
    add("--beam", type=positive, default=5, metavar="N", help="(default: %(default)s)")
    add("--batch-size", type=positive, default=64, metavar="N", help="(default: %(default)s)")
    add("--batches", type=positive, metavar="N", help="the first N (default: all)")
    add("--repetitions", type=positive, default=3, metavar="N", help="(default: %(default)s)")
    add("--threads", type=positive, metavar="N", help="of each process (default: all cores)")
    add("--json", type=new_file, metavar="FILE", help="write all figures there")
    add("--verbose", action="store_true", help="show what the processes say")
    parser.set_defaults(cpu=True, precision="fp32")
    args = parser.parse_args()
    names = [text.partition("=")[0] for text in args.sides]
    if len(set(names)) < len(names):
        raise UserError("two sides have the same name")
    return args


if __name__ == "__main__":
    program.start(main)
