"""Tables of the runs themselves: scores with their intervals, published scores, and loops."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from macaron_fairseq.common.markdown import NOTHING, number, table
from macaron_fairseq.evaluation import evidence, failures
from macaron_fairseq.evaluation.records import Run


@dataclass(frozen=True)
class Published:
    """A score that others published for a task."""

    task: str
    test: str
    metric: str
    score: float
    model: str
    source: str


def by_scheme(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    """The runs of each task and scheme."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.task, run.scheme), []).append(run)
    return groups


def gallery(runs: Sequence[Run]) -> str:
    """A row for each task and scheme: score, interval, size, time, machine and command."""
    signatures = [*dict.fromkeys(f"{run.metric}: `{run.signatures[run.metric]}`" for run in runs)]
    rows = []
    for (task, scheme), theirs in by_scheme(runs).items():
        first = theirs[0]
        low, high = evidence.score_interval(theirs)
        signature = signatures.index(f"{first.metric}: `{first.signatures[first.metric]}`") + 1
        rows.append(
            [
                *(task, scheme, f"{first.metric} ({signature})"),
                spread([run.score for run in theirs]),
                *(f"{low:.2f} to {high:.2f}", str(len(theirs))),
                *(f"{first.parameters:,}", span([run.updates for run in theirs])),
                f"{sum(run.seconds for run in theirs) / 3600:.1f}",
                *("; ".join(dict.fromkeys(map(machine, theirs))), f"`{command(theirs)}`"),
            ]
        )
    head = ["task", "scheme", "metric", "score", "95 % interval", "runs", "parameters", "updates"]
    notes = [f"- ({i}) {signature}" for i, signature in enumerate(signatures, 1)]
    notes.append(
        "- Score: the mean over seeds ± their standard deviation. Its interval is a bootstrap's "
        "over seeds and test items. Hours are those of training, of all runs."
    )
    return table([*head, "hours", "machine", "command"], rows) + "\n\n" + "\n".join(notes)


def machine(run: Run) -> str:
    """On what a run was made."""
    where = run.environment
    return ", ".join(where["gpus"]) or f"{where['threads']} thread(s), {where['cpu']}"


def command(runs: Sequence[Run]) -> str:
    """What makes these runs of one task and scheme again."""
    first, seeds = runs[0], " ".join(str(run.seed) for run in runs)
    return first.command.replace(f"--seeds {first.seed}", f'--seeds "{seeds}"')


def spread(scores: Sequence[float]) -> str:
    """Mean and standard deviation."""
    mean = f"{statistics.mean(scores):.2f}"
    return f"{mean} ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else mean


def span(numbers: Sequence[int]) -> str:
    """The least and the greatest number."""
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def published_table(runs: Sequence[Run], published: Sequence[Published], baseline: str) -> str:
    """What others published, next to the baseline's runs in the same metric."""
    groups, rows = by_scheme(runs), []
    for one in published:
        theirs = groups.get((one.task, baseline), [])
        found = [run.scores.get(one.test, {}).get(one.metric) for run in theirs]
        scores = [score for score in found if score is not None]
        difference = statistics.mean(scores) - one.score if scores else None
        rows.append(
            [
                *(one.task, one.test, one.metric, f"{one.score:.2f}"),
                *(spread(scores) if scores else NOTHING, number(difference, "+.2f")),
                f"{one.model}: {one.source}",
            ]
        )
    head = ["task", "test set", "metric", "published", f"{baseline} here", "difference"]
    return table([*head, "of what, by whom"], rows)


def loops(runs: Sequence[Run], families: Mapping[str, str]) -> str:
    """How many translations loop: a row for each family of tasks and scheme."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.looping is not None:
            groups.setdefault((families[run.task], run.scheme), []).append(run)
    rows = []
    for (family, scheme), theirs in groups.items():
        looping, lines = sum(run.looping or 0 for run in theirs), sum(x.kinds.count for x in theirs)
        known = [run.cut_off for run in theirs if run.cut_off is not None]
        cut_off = sum(known) if len(known) == len(theirs) else None
        rows.append(
            [
                *(family, scheme, str(len(theirs)), f"{lines:,}", f"{looping:,}"),
                *(f"{1000 * looping / lines:.2f}", number(cut_off, ",")),
            ]
        )
    head = ["family", "scheme", "runs", "translations", "loop", "of 1,000", "at maximum length"]
    note = f"{failures.DEFINITION} How many reach the maximum length is not known of older records."
    return table(head, rows) + "\n\n" + note if rows else ""
