"""Trained variants of a layer side by side: scores, loss, speed, size and operations."""

import argparse
import json
import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from macaron_fairseq import (
    environment,
    files,
    plugin,  # noqa: F401 - registers the models with fairseq
)
from macaron_fairseq.describing import models, text
from macaron_fairseq.errors import UserError
from macaron_fairseq.reports import runs
from macaron_fairseq.reports.runs import Run
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


def read(variant: str, found: Sequence[Run]) -> Row:
    """What the runs of a variant gave.

    Raises:
        UserError: if one of them was not trained to its end.
    """
    for run in found:
        if run.training.best_valid_loss is None or run.training.words_per_second is None:
            raise UserError(f"{run.folder} was not trained to its end: run run.sh again")
    args, task = models.saved(found[0].folder / "checkpoint_best.pt")
    size = text.size(models.build(Namespace(**vars(args)), task), "", TOKENS)
    scored = [test for run in found for test in run.tests.values()]
    return Row(
        variant,
        [run.seed for run in found],
        {metric: [x.scores[metric] for x in scored] for metric in scored[0].scores},
        [run.training.best_valid_loss or 0.0 for run in found],
        [run.training.words_per_second or 0.0 for run in found],
        found[0].training.updates or 0,
        size.parameters,
        size.operations / 1e6,
        scored[0].signatures,
    )


def refuse_different(found: Sequence[Run]) -> None:
    """Raise a `UserError` if the runs have not the same data, scoring and updates."""
    for run in found[1:]:
        difference = runs.data_difference(found[0], run) or runs.score_difference(found[0], run)
        if found[0].training.updates != run.training.updates:
            updates = found[0].training.updates, run.training.updates
            difference = f"their updates are {updates[0]} and {updates[1]}"
        if difference:
            raise UserError(f"{found[0].folder} and {run.folder} cannot be compared, {difference}")


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
            spread(row.words_per_second, 0),
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
    mean = f"{statistics.mean(values):,.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else mean


def main() -> None:
    """Read the runs, write table.md and table.json, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="+", metavar="NAME=FOLDER", help="with seedN in FOLDER")
    parser.add_argument("--seeds", required=True, metavar='"N N"')
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split()]
    found = {
        name: [runs.read(Path(folder, f"seed{seed}")) for seed in seeds]
        for name, _, folder in (pair.partition("=") for pair in args.variants)
    }
    refuse_different(list(chain.from_iterable(found.values())))
    rows = [read(name, of_variant) for name, of_variant in found.items()]
    text = markdown(rows)
    content = {"versions": environment.versions(), "rows": [asdict(row) for row in rows]}
    files.write(args.output / "table.md", text)
    files.write(args.output / "table.json", json.dumps(content, indent=1) + "\n")
    print(text, end="")


if __name__ == "__main__":
    main()
