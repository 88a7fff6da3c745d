"""The table of what is done."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from tasks import Task

from macaron_fairseq.common.markdown import table
from macaron_fairseq.evaluation import records


def report(tasks: Sequence[Task], schemes: Sequence[str], work: Path) -> None:
    """Print the mean score of each task and scheme over the seeds that are done."""
    folder = work / "records"
    found = records.read([folder]) if folder.is_dir() else []
    rows = []
    for task in tasks:
        of_task = [run for run in found if run.task == task.name]
        if not of_task:
            continue
        records.refuse_different(of_task)
        cells = []
        for scheme in schemes:
            scores = [run.score for run in of_task if run.scheme == scheme]
            deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
            cells.append(
                f"{statistics.mean(scores):.2f}{deviation} ({len(scores)})" if scores else ""
            )
        rows.append([task.name, of_task[0].metric, *cells])
    print(table(["task", "metric", *schemes], rows))
