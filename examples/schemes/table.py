"""Trained variants of a layer side by side: scores, loss, speed, size and operations."""

import argparse
import json
import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from macaron_fairseq import (
    describing,
    files,
    plugin,  # noqa: F401 - registers the models with fairseq
)
from macaron_fairseq.errors import UserError
from macaron_fairseq.reports import environment, runs
from macaron_fairseq.reports.tables import table

TOKENS = 30


@dataclass
class Row:
    """One variant; lists have a figure for each seed."""

    variant: str
    seeds: list[int]
    scores: dict[str, list[float]]
    loss: list[float]
    words_per_second: list[float]
    updates: int
    parameters: int
    operations: float  # forward, for a source and a target token, in millions
    signatures: dict[str, str]


def read(variant: str, folder: Path, seeds: Sequence[int]) -> Row:
    """What the runs of a variant gave.

    Raises:
        UserError: if one of them is not trained and scored.
    """
    found = [runs.read(folder / f"seed{seed}") for seed in seeds]
    ((_, scored),) = found[0].tests.items()
    trained = [run.training for run in found]
    args, task = describing.saved(found[0].folder / "checkpoint_best.pt")
    size = describing.size(describing.build(Namespace(**vars(args)), task), "", TOKENS)
    return Row(
        variant,
        [run.seed for run in found],
        {
            metric: [run.tests[name].scores[metric] for run in found for name in run.tests]
            for metric in scored.scores
        },
        [x.best_valid_loss for x in trained if x.best_valid_loss is not None],
        [x.words_per_second for x in trained if x.words_per_second is not None],
        max(x.updates or 0 for x in trained),
        size.parameters,
        size.operations / 1e6,
        scored.signatures,
    )


def markdown(rows: Sequence[Row]) -> str:
    """The table, and what the scores are."""
    metrics = list(rows[0].scores)
    header = ["variant", *metrics, "best validation loss", "words/s", "updates"]
    header += ["parameters", "million operations"]
    lines = [
        [
            row.variant,
            *(spread(row.scores[metric], 2) for metric in metrics),
            spread(row.loss, 3),
            f"{statistics.mean(row.words_per_second):,.0f}" if row.words_per_second else "-",
            f"{row.updates:,}",
            f"{row.parameters:,}",
            f"{row.operations:.2f}",
        ]
        for row in rows
    ]
    seeds = ", ".join(map(str, rows[0].seeds))
    notes = [f"- {metric}: `{signature}`" for metric, signature in rows[0].signatures.items()]
    notes += [
        f"- seeds {seeds}; after ± the standard deviation",
        f"- operations: of matrix products forward, for a source and a target token in sentences "
        f"of {TOKENS}",
    ]
    return table(header, lines) + "\n\n" + "\n".join(notes) + "\n"


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def main() -> None:
    """Read the runs, write table.md and table.json, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="+", metavar="NAME=FOLDER", help="with seedN in FOLDER")
    parser.add_argument("--seeds", required=True, metavar='"N N"')
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split()]
    pairs = [pair.partition("=") for pair in args.variants]
    rows = [read(name, Path(folder), seeds) for name, _, folder in pairs]
    if len({row.updates for row in rows}) > 1:
        raise UserError(
            "the variants were trained for different numbers of updates: give all the same "
            "--max-update and run again"
        )
    text = markdown(rows)
    content = {"versions": environment.versions(), "rows": [asdict(row) for row in rows]}
    files.write(args.output / "table.md", text)
    files.write(args.output / "table.json", json.dumps(content, indent=1) + "\n")
    print(text, end="")


if __name__ == "__main__":
    main()
