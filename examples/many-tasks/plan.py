"""The plan as data: which runs it announces, and what its rule says of a comparison."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import benchmark
import tasks as tasks_file
import yaml
from tasks import Task

from macaron_fairseq.evaluation.evidence import Overall
from macaron_fairseq.evaluation.records import Run

FILE = Path(__file__).with_name("plan.yaml")
MOST_NAMED = 5  # runs that a sentence names
RunKey = tuple[str, str, int]


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
    least_tasks: int
    p: float
    equal_within: dict[str, float]  # by metric


def read(path: Path = FILE) -> Plan:
    """The plan."""
    found: Plan = benchmark.typed(Plan, yaml.safe_load(path.read_text("utf-8")), "")
    return found


def announced(plan: Plan, known: Mapping[str, Task]) -> list[RunKey]:
    """The runs of the plan that are of these tasks."""
    every = tasks_file.read()
    return [
        (task.name, tasks_file.variant(scheme).name, seed)
        for some in plan.runs
        for task in tasks_file.chosen(every, some.tasks, "plan.yaml")
        if task.name in known
        for scheme in some.schemes
        for seed in some.seeds
    ]


def departures(plan: Plan, known: Mapping[str, Task], runs: Iterable[Run]) -> list[str]:
    """How far runs of these tasks are from the plan, a line each."""
    wanted, done = announced(plan, known), {run.key for run in runs}
    missing = [key for key in wanted if key not in done]
    others = sorted(done - {*wanted})
    notes = []
    if missing:
        count = len(wanted) - len(missing)
        notes.append(f"of the plan's {len(wanted)} runs of these tasks {count} are done")
    if others:
        notes.append(f"{len(others)} runs are not in the plan: {named(others)}")
    return notes


def named(keys: Sequence[RunKey]) -> str:
    """The first of them, in words."""
    words = [f"{task} {scheme} seed {seed}" for task, scheme, seed in keys[:MOST_NAMED]]
    return ", ".join(words) + " and so on" * (len(keys) > MOST_NAMED)


def verdict(plan: Plan, one: Overall) -> str:
    """What the plan's rule says of a scheme over a family's tasks."""
    low, high = one.effect.low, one.effect.high
    margin = plan.equal_within.get(one.metric)
    leaves_out_0 = low > 0 or high < 0
    if one.tasks < plan.least_tasks:
        reason = "the tests cannot find a difference with so few tasks; the interval alone is told"
    elif leaves_out_0 and one.wilcoxon_holm is not None and one.wilcoxon_holm < plan.p:
        reason = "a difference is shown"
    elif margin is not None and -margin <= low and high <= margin:
        reason = f"equal for practical purposes, within {margin:g} points"
    else:
        reason = "these runs do not tell"
    return f"{one.scheme} on {one.family}: {reason}"
