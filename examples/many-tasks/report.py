"""The stages report and collect: what is done so far, compared; and its records in few files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks import BASELINE, Task

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.files import show
from macaron_fairseq.evaluation import evidence_report, records
from macaron_fairseq.evaluation.records import Run


def found(tasks: Mapping[str, Task], folder: Path) -> list[Run]:
    """The records of these tasks in a folder; a `UserError` if there are none."""
    runs = records.read([folder]) if folder.is_dir() else []
    kept = [run for run in runs if run.task in tasks]
    if not kept:
        raise UserError(f"{folder} has no records of {', '.join(tasks)} yet: run the stage run")
    return kept


def report(
    tasks: Mapping[str, Task],
    schemes: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    out: Path,
) -> None:
    """Write the report of what is done of that, and print it."""
    runs = [run for run in found(tasks, folder) if run.scheme in schemes and run.seed in seeds]
    wanted = [(task, scheme, seed) for task in tasks for scheme in schemes for seed in seeds]
    missing = len(set(wanted) - {run.key for run in runs})
    partial = f"{missing} of {len(wanted)} runs are not done yet: this is partial"
    notes = [partial] * bool(missing)
    families = {name: task.family for name, task in tasks.items()}
    show(evidence_report.write(runs, families, BASELINE, out, notes))


def collect(tasks: Mapping[str, Task], folder: Path, out: Path) -> None:
    """Write the records of each task to one file, for keeping."""
    runs = found(tasks, folder)
    for task in dict.fromkeys(run.task for run in runs):
        records.write(out / f"{task}.json", [run for run in runs if run.task == task])
    print(f"wrote {len(runs)} records to {out}")
