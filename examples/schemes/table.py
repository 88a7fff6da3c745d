"""Trained variants of a layer side by side: scores, loss, speed, size and operations."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq
from macaron_fairseq.analysis import description, empty_models
from macaron_fairseq.common import environment, files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import spread, table
from macaron_fairseq.evaluation.scores import failures
from macaron_fairseq.evaluation.training import runs, training_flags
from macaron_fairseq.evaluation.training.runs import Run

TOKENS = 30
LIMIT = "--max-update"


@dataclass
class Row:
    """One variant; lists have a figure for each seed."""

    variant: str
    seeds: list[int]
    scores: dict[str, dict[str, list[float]]]  # by test set and metric
    loss: list[float]
    words_per_second: list[float]
    updates: list[int]
    parameters: int
    operations: float  # forward, for a source and a target token, in millions
    signatures: dict[str, str]  # by metric
    looping: dict[str, list[int]]  # translations that loop, by test set


def read(variant: str, found: Sequence[Run]) -> Row:
    """What the runs of a variant gave.

    Raises:
        UserError: if one of them was not trained to its end.
    """
    for run in found:
        if run.training.best_valid_loss is None or run.training.words_per_second is None:
            raise UserError(f"{run.folder} was not trained to its end: run run.sh again")
    args, task = empty_models.of_checkpoint(found[0].folder / "checkpoint_best.pt")
    size = description.size(empty_models.build(Namespace(**vars(args)), task), "", TOKENS)
    tests = found[0].tests
    return Row(
        variant,
        [run.seed for run in found],
        {
            test: {metric: [run.tests[test].scores[metric] for run in found] for metric in x.scores}
            for test, x in tests.items()
        },
        [run.training.best_valid_loss or 0.0 for run in found],
        [run.training.words_per_second or 0.0 for run in found],
        [run.training.updates or 0 for run in found],
        size.parameters,
        size.operations / 1e6,
        {name: signature for x in tests.values() for name, signature in x.signatures.items()},
        {test: [loops(run, test) for run in found] for test in tests},
    )


def loops(run: Run, test: str) -> int:
    """How many of its translations loop."""
    texts = runs.read_texts([run], test)
    return len(failures.looping(texts.hypotheses[run.key], texts.references))


def refuse_different(found: Sequence[Run]) -> None:
    """Raise a `UserError` if the runs have not the same data, scoring and limit of updates."""
    parsed = [training_flags.parse(run.manifest["flags"]) for run in found]
    limits = [training_flags.show(LIMIT, flags) for flags in parsed]
    for run, limit in zip(found[1:], limits[1:], strict=True):
        difference = runs.data_difference(found[0], run) or runs.score_difference(found[0], run)
        if limit != limits[0]:
            difference = f"{limits[0]} and {limit}"
        if difference:
            raise UserError(f"{found[0].folder} and {run.folder} cannot be compared, {difference}")


def markdown(rows: Sequence[Row]) -> str:
    """The table, or one for each of several test sets and one of the rest; and what scores are."""
    tests = list(rows[0].scores)
    tables = [(f"{test}:\n\n", scores(rows, test)) for test in tests] + [("", training(rows))]
    if len(tests) == 1:
        tables = [("", {**scores(rows, tests[0]), **training(rows)})]
    names = [row.variant for row in rows]
    parts = [
        title + table(["variant", *columns], list(zip(names, *columns.values(), strict=True)))
        for title, columns in tables
    ]
    seeds = ", ".join(map(str, rows[0].seeds))
    notes = [f"- {metric}: `{signature}`" for metric, signature in rows[0].signatures.items()]
    notes += [
        f"- seeds {seeds}" + "; after ± the standard deviation" * (len(rows[0].seeds) > 1),
        f"- operations: of matrix products forward, for a source and a target token in sentences "
        f"of {TOKENS}",
        f"- loop: translations of each seed. {failures.DEFINITION}",
        "- words/s: of the log. The runs did not take turns on the machine, so speeds of variants "
        "cannot be compared",
    ]
    return "\n\n".join([*parts, "\n".join(notes)]) + "\n"


def scores(rows: Sequence[Row], test: str) -> dict[str, list[str]]:
    """A column for each metric of a test set, and how many translations loop, for each seed."""
    columns = {
        metric: [spread(row.scores[test][metric]) for row in rows]
        for metric in rows[0].scores[test]
    }
    return {**columns, "loop": [" ".join(map(str, row.looping[test])) for row in rows]}


def training(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The columns of what the variants are and how they were trained."""
    return {
        "best validation loss": [spread(row.loss, ".3f") for row in rows],
        "words/s": [spread(row.words_per_second, ",.0f") for row in rows],
        "updates": [
            spread(row.updates if len({*row.updates}) > 1 else row.updates[:1], ",.0f")
            for row in rows
        ],
        "parameters": [f"{row.parameters:,}" for row in rows],
        "million operations": [f"{row.operations:.2f}" for row in rows],
    }


def write(folders: Mapping[str, Sequence[Path]], out: Path) -> None:
    """Read the runs of each variant, write table.md and table.json, print the table.

    Raises:
        UserError: if they cannot be compared.
    """
    found = {name: [runs.read(folder) for folder in those] for name, those in folders.items()}
    refuse_different(list(chain.from_iterable(found.values())))
    rows = [read(name, of_variant) for name, of_variant in found.items()]
    text = markdown(rows)
    content = {"versions": environment.versions(), "rows": [asdict(row) for row in rows]}
    files.write(out / "table.md", text)
    files.write(out / "table.json", json.dumps(content, indent=1) + "\n")
    print(text, end="")
