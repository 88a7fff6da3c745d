"""What many runs say of the schemes, as text, data and a forest plot."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import NOTHING, number, p_value, table
from macaron_fairseq.evaluation.evidence import estimates, evidence_gallery, records
from macaron_fairseq.evaluation.evidence.estimates import Overall, TaskDifference
from macaron_fairseq.evaluation.evidence.evidence_gallery import Published
from macaron_fairseq.evaluation.evidence.records import Key, Run
from macaron_fairseq.evaluation.scores.metrics import LOWER_IS_BETTER

Families = dict[str, str]  # of each task


@dataclass(frozen=True)
class Comparison:
    """Runs, and what they say of the schemes."""

    runs: Sequence[Run]
    families: Families
    baseline: str
    tasks: list[TaskDifference]
    overall: list[Overall]
    notes: list[str]  # what has no counterpart, a line each
    published: Sequence[Published]
    verdicts: Sequence[str] = ()  # of a plan's rule, a line for each of `overall`


def compare(
    runs: Sequence[Run],
    families: Families,
    baseline: str,
    notes: Sequence[str] = (),
    published: Sequence[Published] = (),
    schemes: Mapping[str, Collection[str]] | None = None,
    is_missed: Callable[[Key], bool] = lambda key: True,
) -> Comparison:
    """Compare schemes task by task, and over the tasks of each family.

    Args:
        runs: of any tasks, schemes and seeds; a task's must be comparable.
        families: the family of each task; over its tasks a scheme is judged.
        baseline: the scheme to which the others are compared.
        notes: what departs from the plan, a line each.
        published: scores of others for these tasks.
        schemes: of each family, those that are to be compared in the end.
        is_missed: whether a run (task, scheme, seed) is named where the other side has it.

    Raises:
        UserError: if runs of one task are of different settings or data, or a task has no family.
    """
    for run in runs:
        if run.task not in families:
            raise UserError(f"the task {run.task} is in no family: leave out its records")
    found, missing = differences(runs, baseline, is_missed)
    overall = [
        one
        for family in dict.fromkeys(families.values())
        if (theirs := [x for x in found if families[x.task] == family])
        for one in estimates.over_tasks(family, theirs, (schemes or {}).get(family, ()))
    ]
    return Comparison(runs, families, baseline, found, overall, [*missing, *notes], published)


def write(comparison: Comparison, out: Path) -> str:
    """Write report.md, report.json and forest.png to a folder; return the text.

    Raises:
        UserError: if a file cannot be written.
    """
    picture = forest(comparison)
    text = "# Schemes over many tasks\n\n" + body(comparison, "forest.png" if picture else "")
    tasks = [{**asdict(one), "difference": one.difference} for one in comparison.tasks]
    content = {
        "baseline": comparison.baseline,
        "tasks": tasks,
        "overall": [asdict(one) for one in comparison.overall],
        "notes": comparison.notes,
        "verdicts": [*comparison.verdicts],
    }
    contents: dict[Path, str | bytes] = {
        out / "report.md": text,
        out / "report.json": files.as_json(finite(content)),
    }
    if picture:
        contents[out / "forest.png"] = picture
    files.write_all(contents)
    return text


def differences(
    runs: Sequence[Run], baseline: str, is_missed: Callable[[Key], bool]
) -> tuple[list[TaskDifference], list[str]]:
    """The paired differences of all tasks and schemes, and what has no counterpart, in words."""
    found = []
    alone: dict[str, list[str]] = {}  # tasks by what is left out of them
    for task in dict.fromkeys(run.task for run in runs):
        of_task = [run for run in runs if run.task == task]
        records.refuse_different(of_task)
        base = [run for run in of_task if run.scheme == baseline]
        for scheme in dict.fromkeys(run.scheme for run in of_task if run.scheme != baseline):
            other = [run for run in of_task if run.scheme == scheme]
            if not {run.seed for run in base} & {run.seed for run in other}:
                words = f"{scheme}, which has no seed in common with {baseline}"
                alone.setdefault(words, []).append(task)
                continue
            one = estimates.of_task(base, other)
            found.append(one)
            for side, missing in ((other, baseline), (base, scheme)):
                own = [run.seed for run in side if run.seed in one.left_out]
                seeds = [str(seed) for seed in own if is_missed((task, missing, seed))]
                if seeds:
                    words = f"{side[0].scheme} without {missing} of seed {', '.join(seeds)}"
                    alone.setdefault(words, []).append(task)
    return found, [f"left out of {', '.join(tasks)}: {words}" for words, tasks in alone.items()]


def finite(value: Any) -> Any:
    """The same, with None for numbers that JSON has not."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list) else value


# --- Text ----------------------------------------------------------------------------------------


def body(comparison: Comparison, picture: str = "") -> str:
    """The report without its title.

    Args:
        comparison: of runs; there may be none.
        picture: where the forest plot is, if there is one.
    """
    runs = comparison.runs
    parts = {"What the plan's rule says": "\n".join(f"- {one}" for one in comparison.verdicts)}
    if comparison.overall:
        parts["Over the tasks of a family"] = over_table(
            comparison.overall, has_rule=bool(comparison.verdicts)
        )
    if comparison.tasks:
        plot = f"![Differences and their intervals.]({picture})" if picture else ""
        parts["Task by task"] = "\n\n".join(filter(None, [task_table(comparison.tasks), plot]))
    if comparison.published:
        parts["Next to published scores"] = evidence_gallery.published_table(
            runs, comparison.published, comparison.baseline
        )
    parts["Translations that loop"] = evidence_gallery.loops(
        runs, comparison.families, comparison.baseline
    )
    if runs:
        parts["Scores"] = evidence_gallery.gallery(runs, comparison.baseline)
    parts["What is left out, or departs from the plan"] = "\n".join(
        f"- {note}" for note in comparison.notes
    )
    sections = [f"## {title}\n\n{text}" for title, text in parts.items() if text]
    return "\n\n".join(sections) + "\n"


def interval(low: float, high: float) -> str:
    """An interval; a dash if it is infinite."""
    return f"{low:+.2f} to {high:+.2f}" if math.isfinite(low) else NOTHING


def over_table(overall: Sequence[Overall], has_rule: bool) -> str:
    """The estimates, tests and power; `has_rule`: a plan says what they decide."""
    rows = [
        [
            one.family,
            one.scheme,
            one.metric,
            f"{one.effect.estimate:+.2f}",
            interval(one.effect.low, one.effect.high),
            number(one.effect.between_tasks, ".2f"),
            f"{one.better}, {one.worse}, {one.tasks - one.better - one.worse}",
            str(one.runs),
            *map(p_value, (one.wilcoxon, one.wilcoxon_holm, one.sign, one.sign_holm)),
            number(one.detectable, ".2f"),
        ]
        for one in overall
    ]
    head = ["family", "scheme", "metric", "difference", "95 % interval", "between tasks"]
    head += ["better, worse, equal", "pairs", "Wilcoxon p", "Holm", "sign p", "Holm", "detectable"]
    by_rule = "; the plan's rule asks for more" * has_rule
    note = (
        "The difference to the baseline is that of a mixed-effects model with a random intercept "
        "for each task. Between tasks stands the intercept's standard deviation. Where its fit "
        "ends at 0, that does not show that no task differs. The model takes the spread of seeds "
        "to be that of all tasks. A dash says "
        "that no model was fitted: the interval is that of the tasks' means, or of the seeds of a "
        "single task. Both tests leave out the tasks that are equal. Detectable is what a "
        f"t test over the tasks finds with a probability of 80 %, uncorrected{by_rule}. It takes "
        "the spread of these tasks for the true one. Of five tasks that may be 0.6 to 2.9 times "
        "as large. WER and PER are better when lower."
    )
    return table(head, rows) + "\n\n" + note


def task_table(found: Sequence[TaskDifference]) -> str:
    """The paired differences."""
    rows = [
        [
            one.task,
            one.scheme,
            one.metric,
            " ".join(map(str, one.seeds)),
            f"{one.baseline_score:.2f}",
            f"{one.score:.2f}",
            f"{one.difference:+.2f}",
            interval(one.low, one.high),
        ]
        for one in found
    ]
    head = ["task", "scheme", "metric", "seeds", "baseline", "score", "difference"]
    note = (
        "These intervals are bootstraps over seeds and items, which are drawn apart. So what a "
        "seed does to single items counts about twice, and most intervals are too wide. Where "
        "seeds differ much as a whole, few of them make an interval too narrow. With one seed it "
        "says nothing of seeds. No decision rests on a single task."
    )
    return table([*head, "95 % interval of seeds and items"], rows) + "\n\n" + note


# --- The picture ---------------------------------------------------------------------------------


def forest(comparison: Comparison) -> bytes | None:
    """A row for each task and scheme, and a diamond for each family.

    Returns:
        a PNG picture; None without differences, or without matplotlib.
    """
    found, overall, families = comparison.tasks, comparison.overall, comparison.families
    if not found:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    panels = [(one.family, one.scheme) for one in overall]
    heights = [sum((families[x.task], x.scheme) == panel for x in found) + 2 for panel in panels]
    figure = Figure(figsize=(7, 1 + 0.28 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, one in zip(axes, overall, strict=True):
        rows = [x for x in found if (families[x.task], x.scheme) == (one.family, one.scheme)]
        for y, row in enumerate(rows, 1):
            axis.plot([row.low, row.high], [y, y], "C0-", lw=1.5)
            axis.plot(row.difference, y, "C0s", ms=4)
        effect = one.effect
        if math.isfinite(effect.low):
            axis.plot([effect.low, effect.high], [0, 0], "C3-", lw=2)
        axis.plot(effect.estimate, 0, "C3D", ms=6)
        axis.axvline(0, color="0.5", lw=0.8)
        axis.set_yticks(range(len(rows) + 1), ["over tasks", *(row.task for row in rows)])
        axis.set_ylim(-0.7, len(rows) + 0.7)
        side = "left" if one.metric in LOWER_IS_BETTER else "right"
        axis.set_title(f"{one.scheme}: difference in {one.metric} ({side}: better)", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    image = BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()
