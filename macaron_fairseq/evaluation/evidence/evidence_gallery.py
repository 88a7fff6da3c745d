"""Tables of the runs themselves: scores with their intervals, published scores, and loops."""

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from macaron_fairseq.common.markdown import NOTHING, number, spread, table
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.evidence import estimates
from macaron_fairseq.evaluation.evidence.records import Run
from macaron_fairseq.evaluation.scores import failures


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


def gallery(runs: Sequence[Run], baseline: str) -> str:
    """A row for each task and scheme: score, interval, size, time, machine and command.

    Args:
        runs: of any tasks.
        baseline: the scheme to whose runs the others are paired.
    """
    signatures = [*dict.fromkeys(f"{run.metric}: `{run.signatures[run.metric]}`" for run in runs)]
    commands = [*dict.fromkeys(map(command, runs))]
    rows = []
    for (task, scheme), theirs in by_scheme(runs).items():
        first = theirs[0]
        low, high = estimates.score_interval(theirs)
        made_by = {commands.index(command(run)) for run in theirs}
        signature = signatures.index(f"{first.metric}: `{first.signatures[first.metric]}`") + 1
        rows.append(
            [
                task,
                scheme,
                f"{first.metric} ({signature})",
                spread([run.score for run in theirs]),
                f"{low:.2f} to {high:.2f}" if math.isfinite(low) else NOTHING,
                further(theirs),
                " ".join(str(run.seed) for run in theirs),
                f"{first.parameters:,}",
                span([run.updates for run in theirs]),
                f"{sum(run.seconds for run in theirs) / 3600:.1f}",
                "; ".join(dict.fromkeys(map(machine, theirs))),
                ", ".join(map(letter, sorted(made_by))),
            ]
        )
    head = ["task", "scheme", "metric", "score", "95 % interval", "other scores", "seeds"]
    head += ["parameters", "updates", "hours", "machine", "command"]
    notes = [f"- ({i}) {signature}" for i, signature in enumerate(signatures, 1)]
    for i, text in enumerate(commands):
        notes.append(f"- command {letter(i)}, with a row's task, scheme and seeds: `{text}`")
    notes.append(
        "- Score: the mean over seeds ± their standard deviation. Its interval is a bootstrap's "
        "over seeds and test items, with one seed over items alone. Rows with other seeds are not "
        "paired. Hours are those of training, of all runs, by the clock: what else the machine did "
        "counts too."
    )
    notes += [f"- {code(runs)}", *unlike_pairs(runs, baseline)]
    return table(head, rows) + "\n\n" + "\n".join(notes)


def letter(i: int) -> str:
    """What a command is called: a to z, then a2 to z2, and so on."""
    again, place = divmod(i, len(ascii_lowercase))
    return ascii_lowercase[place] + (str(again + 1) if again else "")


def code(runs: Sequence[Run]) -> str:
    """With which code the runs were made."""
    versions: Counter[str] = Counter()
    for run in runs:
        versions[run.environment.get("versions", {}).get("torch", "of an unknown version")] += 1
    revisions = {*map(revision, runs)}
    said = [f"{counted(number, 'run')} with PyTorch {x}" for x, number in versions.most_common()]
    one = f"code {min(revisions)}"
    many = f"{len(revisions)} versions of the code, which the records name"
    text = f"{', '.join(said)}; {one if len(revisions) == 1 else many}."
    changed = sum(revision(run).endswith("+") for run in runs)
    return text + (
        f" {counted(changed, 'run')} had changes that nobody committed." if changed else ""
    )


def unlike_pairs(runs: Sequence[Run], baseline: str) -> list[str]:
    """By scheme, of how many pairs the two sides have other code, or another kind of machine."""
    base = {(run.task, run.seed): run for run in runs if run.scheme == baseline}
    pairs: dict[str, list[tuple[Run, Run]]] = {}
    for run in runs:
        if run.scheme != baseline and (run.task, run.seed) in base:
            pairs.setdefault(run.scheme, []).append((base[run.task, run.seed], run))
    said = []
    for scheme, theirs in pairs.items():
        codes, machines = (
            sum(kind(one) != kind(other) for one, other in theirs)
            for kind in (revision, processors)
        )
        if codes + machines:
            said.append(
                f"- Of {counted(len(theirs), 'pair')} of {scheme} and {baseline}, {codes} have two "
                f"versions of the code, and {machines} two kinds of machine."
            )
    return said


def revision(run: Run) -> str:
    """The version of the code that made a run; "+": with changes that were not committed."""
    return run.environment.get("revision") or "unknown"


def processors(run: Run) -> tuple[str, ...]:
    """What a run was computed on."""
    return run.environment["cpu"], *run.environment["gpus"]


def further(runs: Sequence[Run]) -> str:
    """The means of the scores that are not compared."""
    first, found = runs[0], []
    for test, scores in first.scores.items():
        for metric in scores:
            values = [run.scores.get(test, {}).get(metric) for run in runs]
            known = [value for value in values if value is not None]
            if (test, metric) != (first.test, first.metric) and len(known) == len(runs):
                of_test = f" on {test}" if test != first.test else ""
                found.append(f"{metric} {statistics.mean(known):.2f}{of_test}")
    return ", ".join(found) or NOTHING


def machine(run: Run) -> str:
    """On what a run was made."""
    where = run.environment
    cpu = where["cpu"].replace("(R)", "")
    return ", ".join(where["gpus"]) or f"{counted(where['threads'], 'thread')}, {cpu}"


def command(run: Run) -> str:
    """What makes a run again, with placeholders for its task, scheme and seed."""
    words = shlex.split(run.command)
    places = {"TASK": "--tasks", "SCHEME": "--schemes", '"SEEDS"': "--seeds"}
    for name, flag in places.items():
        if flag in words:
            words[words.index(flag) + 1] = name
    return " ".join(word if word in places else shlex.quote(word) for word in words)


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
                one.task,
                one.test,
                one.metric,
                str(one.score),  # which has its own digits
                spread(scores) if scores else NOTHING,
                number(difference, "+.2f"),
                f"{one.model}: {one.source}",
            ]
        )
    head = ["task", "test set", "metric", "published", f"{baseline} here", "difference"]
    return table([*head, "of what, by whom"], rows)


def loops(runs: Sequence[Run], families: Mapping[str, str], baseline: str) -> str:
    """How many translations loop: a row for each family of tasks and scheme.

    Of the baseline there are also those of the runs to which a scheme's are paired.
    """
    known = [run for run in runs if run.looping is not None]
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in known:
        groups.setdefault((families[run.task], run.scheme), []).append(run)
    of_baseline = {(run.task, run.seed): run for run in known if run.scheme == baseline}
    rows = []
    for (family, scheme), theirs in groups.items():
        keys = [(run.task, run.seed) for run in theirs]
        paired = [of_baseline[key] for key in keys if key in of_baseline]
        is_paired = scheme != baseline and len(paired) == len(theirs)
        ends = [run.cut_off for run in theirs if run.cut_off is not None]
        cut_off = sum(ends) if len(ends) == len(theirs) else None
        lines = sum(run.kinds.count for run in theirs)
        rows.append(
            [
                family,
                scheme,
                str(len(theirs)),
                f"{lines:,}",
                f"{looping(theirs):,}",
                f"{1000 * looping(theirs) / lines:.2f}",
                number(cut_off, ","),
                f"{looping(paired):,}" if is_paired else NOTHING,
            ]
        )
    head = ["family", "scheme", "runs", "translations", "loop", "of 1,000", "at maximum length"]
    head.append(f"{baseline}'s on the same loop")
    note = f"{failures.DEFINITION} How many reach the maximum length is not known of older records."
    return table(head, rows) + "\n\n" + note if rows else ""


def looping(runs: Iterable[Run]) -> int:
    """How many of their translations loop."""
    return sum(run.looping or 0 for run in runs)
