"""What fine-tuning gave: rates chosen on dev, the table, comparisons, answers to upload."""

import io
import math
import statistics
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from glue_tasks import AX, DIAGNOSTIC, TASKS, Task

from macaron_fairseq.common import files, markdown
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.evidence import estimates
from macaron_fairseq.evaluation.scores import intervals, p_values

WNLI = "WNLI"


@dataclass(frozen=True)
class Result:
    """One run."""

    task: str
    seed: int
    rate: str  # the learning rate
    scores: dict[str, float]  # on dev, by metric
    answers: dict[str, list[str]] = field(default_factory=dict)  # by split

    @property
    def score(self) -> float:
        """GLUE's score of a task: the mean of its metrics."""
        return statistics.mean(self.scores.values())


@dataclass(frozen=True)
class System:
    """A model that is fine-tuned: an architecture, pre-trained or not."""

    arch: str
    is_pretrained: bool

    @property
    def name(self) -> str:
        """For the table."""
        return f"`{self.arch}`" + ("" if self.is_pretrained else " from scratch")

    @property
    def file(self) -> str:
        """For a file."""
        return self.arch.replace("/", "-") + ("" if self.is_pretrained else "-from-scratch")


Runs = Mapping[System, Sequence[Result]]
Scores = dict[str, dict[int, Result]]  # by task and seed, with the learning rate that was chosen


# --- Choosing ------------------------------------------------------------------------------------


def best_rate(results: Sequence[Result]) -> str:
    """The learning rate of the best mean score on dev; of equal ones the first.

    The mean is over the seeds that all rates have, where there are any: a single seed may be lucky.
    """
    by_rate: dict[str, dict[int, float]] = {}
    for one in results:
        by_rate.setdefault(one.rate, {})[one.seed] = one.score
    shared = set.intersection(*({*scores} for scores in by_rate.values()))

    def mean(rate: str) -> float:
        scores = by_rate[rate]
        return statistics.mean(scores[seed] for seed in shared or scores)

    return max(by_rate, key=mean)


def chosen(results: Sequence[Result]) -> Scores:
    """Of each task and seed the run with the task's best learning rate."""
    found: Scores = {}
    for task in TASKS:
        own = [one for one in results if one.task == task]
        if own:
            rate = best_rate(own)
            found[task] = {one.seed: one for one in own if one.rate == rate}
    return found


def averages(scores: Scores, without: str = "") -> dict[int, float]:
    """GLUE's average over tasks, for each seed that all of them have."""
    kept = [by_seed for task, by_seed in scores.items() if task != without]
    if not kept:
        return {}
    seeds = [seed for seed in kept[0] if all(seed in by_seed for by_seed in kept)]
    return {seed: statistics.mean(by_seed[seed].score for by_seed in kept) for seed in seeds}


# --- Comparing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """One system less another, in per cent, paired by task and seed."""

    one: System
    other: System
    tasks: int
    pairs: int
    difference: float  # of the averages
    over_seeds: intervals.Interval | None  # of that, by Student's t
    effect: estimates.Effect  # over tasks, by a mixed-effects model where one could be fitted
    wilcoxon: float | None  # p value, over the mean differences of tasks
    holm: float | None = None  # the same, corrected for all comparisons of a report


def compare(one: System, other: System, runs: Mapping[System, Scores]) -> Comparison | None:
    """The paired difference of two systems; None where they share no task and seed.

    The interval is that of a mixed-effects model with a random intercept for each task
    (`estimates.mixed_effects`); Wilcoxon's signed-rank test is over tasks.
    """
    differences: dict[str, list[float]] = {}
    for task, by_seed in runs[one].items():
        seeds = [seed for seed in by_seed if seed in runs[other].get(task, {})]
        if seeds:
            base = runs[other][task]
            differences[task] = [by_seed[seed].score - base[seed].score for seed in seeds]
    if not differences:
        return None
    effect = estimates.mixed_effects(differences)
    means = [statistics.mean(values) for values in differences.values()]
    sides = [averages({task: runs[x][task] for task in differences}) for x in (one, other)]
    paired = [sides[0][seed] - sides[1][seed] for seed in sides[0] if seed in sides[1]]
    return Comparison(
        one=one,
        other=other,
        tasks=len(differences),
        pairs=sum(map(len, differences.values())),
        difference=statistics.mean(paired) if paired else statistics.mean(means),
        over_seeds=intervals.over_seeds(paired),
        effect=effect,
        wilcoxon=p_values.signed_rank(means),
    )


def comparisons(runs: Mapping[System, Scores]) -> list[Comparison]:
    """Each architecture against the first, and each pre-trained one against itself from scratch."""
    pairs: list[tuple[System, System]] = []
    for is_pretrained in (True, False):
        systems = [system for system in runs if system.is_pretrained == is_pretrained]
        pairs += [(system, systems[0]) for system in systems[1:]]
    scratch = {x.arch: x for x in systems if not x.is_pretrained}
    pairs += [(x, scratch[x.arch]) for x in runs if x.is_pretrained and x.arch in scratch]
    found = [one for pair in pairs if (one := compare(*pair, runs))]
    corrected = p_values.holm({str(i): one.wilcoxon for i, one in enumerate(found)})
    return [replace(one, holm=corrected[str(i)]) for i, one in enumerate(found)]


# --- The table -----------------------------------------------------------------------------------


def cell(task: Task, by_seed: Mapping[int, Result]) -> str:
    """The mean of each metric, and the standard deviation of the score over seeds."""
    results = list(by_seed.values())
    means = [statistics.mean(one.scores[metric] for one in results) for metric in task.metrics]
    return "/".join(f"{x:.1f}" for x in means) + deviation([one.score for one in results])


def deviation(values: Sequence[float]) -> str:
    """± the sample standard deviation, of several values."""
    return f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""


def mean(values: Mapping[int, float]) -> str:
    """An average over seeds, with its standard deviation."""
    return markdown.spread([*values.values()], ".1f") if values else markdown.NOTHING


def tasks_of(runs: Mapping[System, Scores]) -> list[str]:
    """The tasks that any system has."""
    return [task for task in TASKS if any(task in scores for scores in runs.values())]


def both_averages(
    scores: Scores, tasks: Sequence[str]
) -> tuple[dict[int, float], dict[int, float]]:
    """A system's averages with WNLI and without it, by seed; none where it lacks one of the tasks.

    Without that task there is none with it.
    """
    if not all(task in scores for task in tasks):
        return {}, {}
    return averages(scores) if WNLI in tasks else {}, averages(scores, WNLI)


def table(runs: Mapping[System, Scores], published: Sequence[Mapping[str, Any]]) -> str:
    """Systems as rows and tasks as columns; below them what others published."""
    tasks = tasks_of(runs)
    header = ["system", *tasks, "average with WNLI", "without WNLI"]
    rows = []
    for system, scores in runs.items():
        cells = [
            cell(TASKS[task], scores[task]) if task in scores else markdown.NOTHING
            for task in tasks
        ]
        rows.append([system.name, *cells, *map(mean, both_averages(scores, tasks))])
    for one in published:
        cells = [
            "/".join(f"{x:.1f}" for x in one["scores"].get(task, [])) or markdown.NOTHING
            for task in tasks
        ]
        own = [one["scores"].get(task) for task in tasks if task != WNLI]
        without = statistics.mean(map(statistics.mean, own)) if own and all(own) else None
        of_all = one["average"] if len(tasks) == len(TASKS) else None
        averaged = markdown.number(of_all, ".1f"), markdown.number(without, ".1f")
        rows.append([one["name"], *cells, *averaged])
    return markdown.table(header, rows)


def report(runs: Runs, published: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The report as Markdown, and all that is in it as plain data.

    Args:
        runs: of each system all that was fine-tuned, the baseline first.
        published: rows of published.json.
    """
    picked = {system: chosen(results) for system, results in runs.items() if results}
    found = comparisons(picked)
    metrics = "; ".join(
        f"{name} {' and '.join(task.metrics)}"
        for name, task in TASKS.items()
        if any(name in scores for scores in picked.values())
    )
    seeds = sorted({one.seed for results in runs.values() for one in results})
    lines = [
        "# GLUE",
        "",
        table(picked, published),
        "",
        "Ours are of the dev sets, and the published rows of the test sets: they do not compare "
        "one to one. The paper does not print WNLI. So it has an average with WNLI only where the "
        "table has all nine tasks: its 79.7, in which WNLI counts as 65.1.",
        f"Metrics: {metrics}. A task's score is the mean of its metrics, and the average is over "
        f"the tasks of the table. Seeds of fine-tuning: {', '.join(map(str, seeds))}; ± is the "
        "standard deviation over them.",
        "",
        "## Differences",
        "",
    ]
    lines += [said(one) for one in found] or ["There is nothing to compare."]
    if len(found) > 1:
        lines += [
            "",
            f"{len(found)} differences are looked at, each with intervals for itself. Holm's "
            "correction of Wilcoxon's p is for all of them.",
        ]
    if found and len(seeds) == 1:
        lines += ["", "One seed: this says nothing about the architecture."]
    if any(len({one.rate for one in results}) > 1 for results in runs.values()):
        lines += [
            "",
            "Learning rates were chosen by these dev sets, so the scores are a little too high.",
        ]
    lines += ["", "## Learning rates", "", "The best on dev, by the mean over seeds:", ""]
    for system, scores in picked.items():
        rates = [f"{task} {next(iter(x.values())).rate}" for task, x in scores.items()]
        lines.append(f"- {system.name}: {', '.join(rates)}")
    return "\n".join(lines) + "\n", as_data(picked, found)


def said(one: Comparison) -> str:
    """A comparison as a line."""
    over_seeds, p = "", ""
    if one.over_seeds:
        low, high = one.over_seeds
        over_seeds = f", 95 % interval over seeds {low:+.2f} to {high:+.2f}"
    if one.wilcoxon is not None:
        p = f"; Wilcoxon over tasks p = {one.wilcoxon:.3f}, {one.holm:.3f} by Holm"
    where = f"{counted(one.pairs, 'pair')} of runs on {counted(one.tasks, 'task')}"
    effect = one.effect
    interval = f"{effect.low:+.2f} to {effect.high:+.2f}"
    if not math.isfinite(effect.low):
        interval = "none, with one run" if one.pairs == 1 else "none, since all are equal"
    what = "Mean" if effect.between_tasks is None else "Mixed-effects model"
    return (
        f"- {one.one.name} less {one.other.name}: {one.difference:+.2f}{over_seeds}. {what} of "
        f"{where}: {effect.estimate:+.2f}, 95 % interval {interval}{p}."
    )


def as_data(runs: Mapping[System, Scores], found: Sequence[Comparison]) -> dict[str, Any]:
    """The same for a file."""
    both = {system: both_averages(scores, tasks_of(runs)) for system, scores in runs.items()}
    return {
        "systems": [
            {
                "arch": system.arch,
                "pretrained": system.is_pretrained,
                "tasks": {
                    task: {
                        "learning_rate": next(iter(by_seed.values())).rate,
                        "scores": {seed: one.scores for seed, one in by_seed.items()},
                    }
                    for task, by_seed in scores.items()
                },
                "average": both[system][0],
                "average_without_wnli": both[system][1],
            }
            for system, scores in runs.items()
        ],
        "differences": [
            {
                "one": one.one.file,
                "other": one.other.file,
                "difference": one.difference,
                "over_seeds": one.over_seeds,
                "estimate": one.effect.estimate,
                "interval": (
                    [one.effect.low, one.effect.high] if math.isfinite(one.effect.low) else None
                ),
                "wilcoxon": one.wilcoxon,
                "wilcoxon_holm": one.holm,
                "tasks": one.tasks,
                "pairs": one.pairs,
            }
            for one in found
        ],
    }


# --- For the server ------------------------------------------------------------------------------


def submission(scores: Scores, examples: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The zip that GLUE's server takes: a file of each task, `index` and `prediction`.

    Of each task the run with the best score on dev is taken.

    Args:
        scores: of a system.
        examples: of each task what `glue_data.examples` gives.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, by_seed in scores.items():
            task, best = TASKS[name], max(by_seed.values(), key=lambda one: one.score)
            sets = dict(zip((split.name for split in task.test), task.answers, strict=True))
            sets |= {DIAGNOSTIC.name: AX} if DIAGNOSTIC.name in best.answers else {}
            for split, title in sets.items():
                indices = examples[name][split]["indices"]
                pairs = zip(indices, best.answers[split], strict=True)
                lines = ["index\tprediction", *(f"{i}\t{answer}" for i, answer in pairs)]
                info = zipfile.ZipInfo(f"{title}.tsv")  # with one date for all: equal, if equal
                archive.writestr(info, "".join(line + "\n" for line in lines))
    return content.getvalue()


def missing(scores: Scores) -> list[str]:
    """The files that the server wants and a submission lacks."""
    wanted = [title for task in TASKS.values() for title in task.answers] + [AX]
    has = [title for name in scores for title in TASKS[name].answers]
    if "MNLI" in scores and any(DIAGNOSTIC.name in x.answers for x in scores["MNLI"].values()):
        has.append(AX)
    return [title for title in wanted if title not in has]


def write(runs: Runs, examples: Mapping[str, Mapping[str, Any]], published: Path, out: Path) -> str:
    """Write report.md, report.json and a zip for each system; returns what is to be printed."""
    hint = "it should hold a list of rows"
    text, data = report(runs, files.load_json(published, hint))
    contents: dict[Path, str | bytes] = {}
    for system, results in runs.items():
        scores, archive = chosen(results), out / f"{system.file}.zip"
        if not all(one.answers for by_seed in scores.values() for one in by_seed.values()):
            text += f"\nNo `{system.file}.zip`: records of runs hold no answers.\n"
            archive.unlink(missing_ok=True)  # of other runs
            continue
        contents[archive] = submission(scores, examples)
        if lacks := missing(scores):
            text += f"\n`{system.file}.zip` lacks what was not fine-tuned: {', '.join(lacks)}.\n"
    contents |= {out / "report.md": text, out / "report.json": files.as_json(data)}
    files.write_all(contents)
    return f"\n{text}\nwritten to {out}"
