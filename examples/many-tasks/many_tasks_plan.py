"""The plan as data: which runs it announces, and what its rule says of a comparison."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common import benchmark
from common import tasks as tasks_file
from common.tasks import Task
from many_tasks_variants import BASELINE, Variant

from macaron_fairseq.common.markdown import table
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.evidence import evidence_report
from macaron_fairseq.evaluation.evidence.estimates import Overall
from macaron_fairseq.evaluation.evidence.records import Key, Run
from macaron_fairseq.evaluation.scores.metrics import LOWER_IS_BETTER

FILE = Path(__file__).with_name("plan.yaml")
MOST_NAMED = 5  # runs that a sentence names


@dataclass(frozen=True)
class Runs:
    """Tasks x schemes x seeds."""

    tasks: list[str]
    schemes: list[str]
    seeds: list[int]


@dataclass(frozen=True)
class Plan:
    """All that plan.yaml says."""

    runs: list[Runs]
    changes: list[str]  # of the plan, after the first run was scored
    diverged: list[str]  # task, scheme and seed of runs without a score
    gpu_seeds: list[int]  # that the plan's runs may have on a GPU
    p: float
    equal_within: dict[str, float]  # by metric

    def __post_init__(self) -> None:
        """Raise a ValueError where a run is not named as it should be."""
        for run in self.diverged:
            if not re.fullmatch(r"\S+ \S+ \d+", run):
                raise ValueError(f"diverged should name TASK SCHEME SEED, not {run}")


def read(path: Path = FILE) -> Plan:
    """The plan; ends the program with a sentence where the file is not as it should be."""
    return benchmark.read_as(Plan, path)


def on_machines(plan: Plan, runs: Iterable[Run]) -> Plan:
    """The plan with its seeds for a GPU, of the tasks that have been trained on one."""
    every, lines = tasks_file.read(), []
    on_gpu = {(run.task, run.scheme) for run in runs if run.environment["gpus"]}
    for some in plan.runs:
        names = [task.name for task in tasks_file.chosen(every, some.tasks, "plan.yaml")]
        schemes = [Variant.parse(scheme).name for scheme in some.schemes]
        moved = [name for name in names if on_gpu & {(name, scheme) for scheme in schemes}]
        if moved:
            lines.append(replace(some, tasks=moved, seeds=plan.gpu_seeds))
        if left := [name for name in names if name not in moved]:
            lines.append(replace(some, tasks=left if moved else some.tasks))
    return replace(plan, runs=lines)


def announced(plan: Plan, known: Mapping[str, Task]) -> list[Key]:
    """The runs of the plan that are of these tasks."""
    return [key for key, _ in of_families(plan, known) if key[0] in known]


def of_families(plan: Plan, known: Mapping[str, Task]) -> list[tuple[Key, str]]:
    """The runs of the plan that are of these tasks' families, and the family of each."""
    every, families = tasks_file.read(), {task.family for task in known.values()}
    return [
        ((task.name, Variant.parse(scheme).name, seed), task.family)
        for some in plan.runs
        for task in tasks_file.chosen(every, some.tasks, "plan.yaml")
        if task.family in families
        for scheme in some.schemes
        for seed in some.seeds
    ]


def departures(
    plan: Plan, known: Mapping[str, Task], runs: Sequence[Run], others: Sequence[Run] = ()
) -> list[str]:
    """How far runs of these tasks are from the plan, a line each; nothing of other families.

    Args:
        plan: the plan.
        known: the tasks, by name.
        runs: what is done with the plan's settings, or is not in the plan.
        others: runs in the plan that were made with other settings.
    """
    wanted, of_plan = announced(plan, known), schemes_of(plan, known)
    done = {run.key for run in runs if known[run.task].family in of_plan}
    without_score = diverged(plan)
    lost = [key for key in wanted if key in without_score]
    missing = [key for key in wanted if key not in done | without_score]
    unplanned = sorted(done - {*wanted})
    notes = []
    if missing:
        left = f": {named(missing)} are missing" if len(missing) <= MOST_NAMED else ""
        count = len(done & {*wanted})
        notes.append(f"of the plan's {len(wanted)} runs of these tasks {count} are done{left}")
    if lost:
        notes.append(f"{counted(len(lost), 'run')} diverged, without a score: {named(lost)}")
    if unplanned:
        notes.append(
            f"{counted(len(unplanned), 'run')} not in the plan, which no verdict counts: "
            f"{named(unplanned)}"
        )
    if others:
        keys = sorted(run.key for run in others)
        notes.append(
            f"{counted(len(keys), 'run')} with other settings than the plan's: {named(keys, 3)}"
        )
    return notes


def diverged(plan: Plan) -> set[Key]:
    """The runs that have no score and get none."""
    words = [text.split() for text in plan.diverged]
    return {(task, Variant.parse(scheme).name, int(seed)) for task, scheme, seed in words}


def named(keys: Sequence[Key], most: int = MOST_NAMED) -> str:
    """The first of them, in words."""
    words = [f"{task} {scheme} seed {seed}" for task, scheme, seed in keys[:most]]
    return ", ".join(words) + " and so on" * (len(keys) > most)


def progress(plan: Plan, known: Mapping[str, Task], runs: Iterable[Run]) -> str:
    """A row for each line of the plan with these tasks: how many of its runs are done.

    The last one is of runs that the plan does not have.

    Args:
        plan: the plan, `on_machines`.
        known: the tasks, by name.
        runs: with the plan's settings.
    """
    done, rows = {run.key for run in runs}, []
    beyond = {*done}
    for some in plan.runs:
        wanted = announced(replace(plan, runs=[some]), known)
        if wanted:
            number = sum(key in done for key in wanted)
            tasks, seeds = " ".join(some.tasks), " ".join(map(str, some.seeds))
            rows.append([tasks, ", ".join(some.schemes), seeds, f"{number} of {len(wanted)}"])
            beyond -= {*wanted}
    if beyond:
        names = [dict.fromkeys(str(key[i]) for key in sorted(beyond)) for i in range(3)]
        tasks, schemes, seeds = " ".join(names[0]), ", ".join(names[1]), " ".join(names[2])
        rows.append([f"beyond the plan: {tasks}", schemes, seeds, str(len(beyond))])
    return table(["tasks", "schemes", "seeds", "runs done"], rows)


def schemes_of(plan: Plan, known: Mapping[str, Task]) -> dict[str, set[str]]:
    """The schemes that the plan compares with the baseline, in each family of these tasks."""
    found: dict[str, set[str]] = {}
    for (_, scheme, _), family in of_families(plan, known):
        found.setdefault(family, set()).add(scheme)
    return {family: schemes - {BASELINE} for family, schemes in found.items()}


def pairs_of(plan: Plan, known: Mapping[str, Task], one: Overall) -> set[Key]:
    """The runs that the plan announces for a comparison: the scheme's, and those they pair with.

    Where one of a pair diverged, the other is left out.
    """
    keys, lost = of_families(plan, known), diverged(plan)
    found = set()
    for (task, scheme, seed), family in keys:
        pair = {(task, one.scheme, seed), (task, BASELINE, seed)}
        if scheme == one.scheme and family == one.family and not pair & lost:
            found |= pair
    return found


def verdict(plan: Plan, known: Mapping[str, Task], runs: Iterable[Run], one: Overall) -> str:
    """What the plan's rule says of a scheme over a family's tasks; nothing before all are done.

    Args:
        plan: the plan.
        known: some tasks of the family, by name.
        runs: those in the plan.
        one: what they give.
    """
    wanted = pairs_of(plan, known, one)
    if missing := wanted - {run.key for run in runs}:
        own = {key for key in wanted if key[1] == one.scheme}
        said = f"{len(own - missing)} of its {len(own)} runs are done"
        if not own & missing:
            said = f"its baseline lacks {counted(len(missing), 'run')}"
        return f"{one.scheme} on {one.family}: {said}, so there is no verdict yet"
    interval = evidence_report.interval(one.effect.low, one.effect.high)
    over = " over seeds" if one.tasks == 1 else ""
    said = rule(plan, one, len(schemes_of(plan, known)[one.family]))
    own = {key for key, family in of_families(plan, known) if family == one.family}
    if lost := {key for key in own & diverged(plan) if key[1] in (one.scheme, BASELINE)}:
        said += f", without {counted(len(lost), 'run')} that diverged"
    estimate = f"{one.effect.estimate:+.2f} {one.metric}, 95 % interval{over} {interval}"
    return f"{one.scheme} on {one.family}: {said} ({estimate})"


def rule(plan: Plan, one: Overall, comparisons: int) -> str:
    """The plan's rule for a finished comparison, one of so many that Holm's correction is for."""
    low, high = one.effect.low, one.effect.high
    margin = plan.equal_within.get(one.metric)
    leaves_out_0 = low > 0 or high < 0
    if comparisons * 2 ** (1 - one.tasks) >= plan.p:  # where the scheme is ahead on each task
        return "too few tasks for the tests, so the interval alone is reported"
    said = []
    if leaves_out_0 and one.wilcoxon_holm is not None and one.wilcoxon_holm < plan.p:
        is_better = (high < 0) == (one.metric in LOWER_IS_BETTER)
        points = f"{abs(one.effect.estimate):.2f} points of {one.metric}"
        said.append(f"{'better' if is_better else 'worse'}, by {points}")
    if margin is not None and -margin <= low and high <= margin:
        said.append(f"equal for practical purposes, within {margin:g} point{'s' * (margin != 1)}")
    return ", and ".join(said) or "these runs do not tell"
