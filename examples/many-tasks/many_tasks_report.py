"""The stages report and page: what is done so far, compared."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import many_tasks_plan as plan
import many_tasks_records as known
from common import tasks as tasks_file
from common.tasks import Setting, Task
from many_tasks_variants import BASELINE, HALF_DEPTH

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import NOTHING, number, table
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.evidence import evidence_report
from macaron_fairseq.evaluation.evidence.evidence_report import Comparison
from macaron_fairseq.evaluation.evidence.records import Key, Run

PAGE = "many-tasks"


def report(
    tasks: Mapping[str, Task],
    schemes: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    out: Path,
) -> None:
    """Write the report of all that is done of these tasks, and print it.

    Args:
        tasks: by name.
        schemes: that were asked for; the report says what of them is missing.
        seeds: likewise.
        folder: of the records.
        out: of the report.

    Raises:
        UserError: if nothing is done.
    """
    runs = known.read([*tasks], folder)
    if not runs:
        raise UserError(f"{folder} has no records of {', '.join(tasks)} yet: run the stage run")
    wanted = [(task, scheme, seed) for task in tasks for scheme in schemes for seed in seeds]
    done = {run.key for run in runs} | plan.diverged(plan.read())
    missing = [key for key in wanted if key not in done]
    partial = (
        f"{len(missing)} of the {len(wanted)} runs asked for are not done yet: this is partial"
    )
    notes = [f"{partial} ({plan.named(missing)})"] * bool(missing)
    files.show(evidence_report.write(compared(runs, tasks, notes), out))


def compared(runs: Sequence[Run], tasks: Mapping[str, Task], notes: Sequence[str]) -> Comparison:
    """The comparison of these runs, with what departs from the plan and what its rule says."""
    families = {name: task.family for name, task in tasks.items()}
    announced = plan.on_machines(plan.read(), runs)
    wanted = {*plan.announced(announced, tasks)}
    of_plan = plan.schemes_of(announced, tasks)  # by family
    done = with_planned_settings(runs, wanted)
    others = [run for run in runs if run not in done]
    judged_runs = [run for run in done if run.key in wanted]
    every = [*notes, *(plan.departures(announced, tasks, done, others) if runs else [])]
    if of_plan:
        every += [f"changed after the first scores, {change}" for change in announced.changes]
    every += [SUBSTEPS] * any("/" in run.scheme for run in runs)
    found = evidence_report.compare(
        runs,
        families,
        BASELINE,
        every,
        tasks_file.published(tasks.values()),
        schemes=of_plan,
        is_missed=lambda key: key in wanted or families[key[0]] not in of_plan,
    )
    # Runs that the plan does not announce are shown, and decide nothing.
    judged = evidence_report.compare(judged_runs, families, BASELINE, schemes=of_plan)
    verdicts = [plan.verdict(announced, tasks, judged_runs, one) for one in judged.overall]
    return replace(found, verdicts=verdicts)


def with_planned_settings(runs: Sequence[Run], wanted: Collection[Key]) -> list[Run]:
    """The runs without those that the plan announces and that were made with other settings."""
    planned = tasks_file.read()  # and not those of --tasks-file
    return [
        run for run in runs if run.key not in wanted or known.as_planned(run, planned[run.task])
    ]


SUBSTEPS = (
    "a scheme with a sub-step has the baseline's parameters and a multiple of its operations; "
    f"{HALF_DEPTH} halves the layers, so that the operations are equal"
)


# --- A page of the documentation -----------------------------------------------------------------

PLAN = "examples/many-tasks/plan.md"
COMMAND = "examples/many-tasks/reproduce.sh"

HEAD = f"""\
# Schemes over many tasks

Does the order of attention and FFN matter, and for whom? The plan, `{PLAN}`,
was written before the first run was scored. It names tasks, schemes and seeds, and the tests that
decide. `lie-trotter` is the Transformer, the baseline, and `strang-marchuk` is Macaron. [All
schemes](../reference/architectures.md#schemes).

Each run leaves a small record. This page is drawn from the records in `docs/results/records`, to
which `--records docs/results/records` adds the runs that it finishes:
"""

NOTHING_YET = """\
No run has been scored on a test set yet. What will stand here is a table with a row for each task
and scheme: score, interval, signature, parameters, updates, hours, machine and command. Differences
to the baseline will follow, then the estimate over tasks, a forest plot, and how many translations
loop.
"""

TUNING = """\
Batch and dropout of the grapheme-to-phoneme tasks are tuned on development sets, with one seed that
no scored run has. Lower is better. A row has a mean once all its runs are done, and the lowest mean
of both schemes is chosen. No test set was decoded for it. One seed says nothing of schemes. The
command is `examples/many-tasks/reproduce.sh tune --tasks g2p --cpu` (2026-11-24 to 26, AMD EPYC).
"""


def page(tasks: Mapping[str, Task], words: Sequence[str], folder: Path, out: Path) -> None:
    """Write many-tasks.md and the forest plot to a folder, from whatever records there are.

    Args:
        tasks: that the page is about.
        words: what --tasks names them, for the page's command.
        folder: of the records.
        out: of the page.
    """
    names = f'--tasks "{" ".join(words)}"'
    drawn = f"{COMMAND} page {names} --records docs/results/records --output docs/results"
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of records")
    runs = known.read([*tasks], folder)
    comparison = compared(runs, tasks, [])
    picture = evidence_report.forest(comparison)
    parts = [HEAD, f"```bash\n{drawn}\n```\n", extent(runs)]
    announced = plan.on_machines(plan.read(), runs)
    done = with_planned_settings(runs, {*plan.announced(announced, tasks)})
    parts.append(plan.progress(announced, tasks, done) + "\n")
    if body := evidence_report.body(comparison, f"{PAGE}.png" if picture else "").strip():
        parts.append(body + "\n")
    if tuning := tuning_tables(tasks, folder):
        parts += ["## Tuning\n", TUNING, tuning]
    contents: dict[Path, str | bytes] = {out / f"{PAGE}.md": "\n".join(filter(None, parts))}
    if picture:
        contents[out / f"{PAGE}.png"] = picture
    files.write_all(contents)
    if not picture:
        (out / f"{PAGE}.png").unlink(missing_ok=True)
    print(f"wrote {out / PAGE}.md of {len(runs)} records")


def extent(runs: Sequence[Run]) -> str:
    """How much there is, in words."""
    if not runs:
        return NOTHING_YET
    dates = sorted(run.date for run in runs)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    names, schemes = {run.task for run in runs}, {run.scheme for run in runs}
    of = f"{counted(len(names), 'task')} and {counted(len(schemes), 'scheme')}"
    return f"Runs so far: {len(runs)}, of {of} ({when}).\n"


def tuning_tables(tasks: Mapping[str, Task], folder: Path) -> str:
    """The scores of tuning that are kept, a table for each family that is tuned."""
    found = []
    for family in dict.fromkeys(task.family for task in tasks.values()):
        kind = tasks_file.kind_of(family, tasks)
        entries = known.read_tuning(folder / "tuning" / f"{family}.json")
        if entries:
            found.append(tuning_table(entries, kind.metric, kind.chosen) + "\n")
    return "\n".join(found)


def tuning_table(
    entries: Sequence[Mapping[str, Any]], metric: str, chosen: Setting | None = None
) -> str:
    """A row for each point and scheme, with a column for each task."""
    names = sorted({x["task"] for x in entries})
    scores = {
        (x["tokens"], x["dropout"], x["scheme"], x["task"]): one["score"]
        for x in entries
        for one in x["scores"]
        if one["metric"] == metric
    }
    rows = []
    for point in sorted({x[:3] for x in scores}):
        own = [scores.get((*point, name)) for name in names]
        known = [score for score in own if score is not None]
        setting = Setting(*point[:2])
        mean = f"{statistics.mean(known):.2f}" if len(known) == len(names) else NOTHING
        cells = [number(score, ".2f") for score in own]
        rows.append([f"{setting}{' (chosen)' * (setting == chosen)}", point[2], *cells, mean])
    return table(["setting", "scheme", *(f"{name}, {metric}" for name in names), "mean"], rows)
