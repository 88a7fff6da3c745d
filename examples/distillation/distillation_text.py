"""The table of a task's systems in Markdown, and a plot of quality against speed."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from common.tasks import Task
from distillation_differences import GREEDY, METRICS
from distillation_systems import TEACHER

from macaron_fairseq.common.markdown import NOTHING, number, spread, table
from macaron_fairseq.evaluation.scores import failures

LIMITS = (
    "All students learn from one teacher, so the intervals leave out the teacher's variance. Where "
    "a student's checkpoints are not averaged, the one with the least loss on the original "
    "references is scored, though it may learn from translations."
)
HEAD = ["system", "seeds", "BLEU", "difference", "chrF", "difference", GREEDY, "difference"]
HEAD += ["int8 BLEU", "parameters", "int8 MB", "fairseq-generate", "translate"]
HEAD += ["CTranslate2 int8", "training"]
FP32 = "BLEU in fp32"
OWN_SPEED = "fairseq-generate speed"
SPEEDS = (OWN_SPEED, "fairseq speed", "int8 speed", "training")


@dataclass(frozen=True)
class Report:
    """What the table of a task says.

    Differences are those of `distillation_differences.compared`, by system.
    """

    task: Task
    baseline: str  # the system that all are compared with
    rows: Sequence[dict[str, Any]]  # of each system, see `distillation_report.summary`
    differences: dict[str, dict[str, dict[str, Any]]]
    against_own: dict[str, dict[str, Any]]  # to another baseline, which each names
    planned: dict[str, dict[str, Any]]  # see `distillation_differences.main_comparisons`
    notes: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """What report.json holds."""
        return {
            "task": self.task.name,
            "systems": self.rows,
            "differences": self.differences,
            "against_own_baselines": self.against_own,
            "main": self.planned,
            "notes": self.notes,
        }


def as_text(report: Report, has_picture: bool) -> str:
    """The report in Markdown."""
    rows = report.rows
    parts = [
        f"# Distillation: {report.task.name}, {report.task.kind.test}",
        table(HEAD, [row_of(row, report.differences.get(row["system"], {})) for row in rows]),
        about_columns(report),
        LIMITS,
        *own_baselines(report.against_own),
        *as_planned(report.planned),
        looped(rows),
        *exports(rows),
        trained(rows),
    ]
    if has_picture:
        parts.append("![Quality against speed.](quality-speed.png)")
    signatures = rows[0]["signatures"].items()
    parts.append("\n".join(f"- {name}: `{signature}`" for name, signature in signatures))
    parts.append(f"- machine: {rows[0]['machine']['cpu']}")
    return "\n\n".join([*parts, *(f"- {note}" for note in report.notes)]) + "\n"


def row_of(row: dict[str, Any], found: dict[str, dict[str, Any]]) -> list[str]:
    """The cells of a system in the main table; `found` are its differences by metric."""
    scores = [(spread(row["scores"][name]), difference(found.get(name))) for name in METRICS]
    scores.append((spread(row["greedy"]), difference(found.get(GREEDY))))
    size = row["bytes"] and row["bytes"] / 1e6
    return [
        row["system"],
        " ".join(map(str, row["seeds"])),
        *(cell for pair in scores for cell in pair),
        number(row["int8"], ".2f"),
        number(row["parameters"], ","),
        number(size, ".1f"),
        *(number(row[name], ".0f") for name in SPEEDS),
    ]


def about_columns(report: Report) -> str:
    """What the main table's columns are."""
    baseline = report.baseline
    if any(row["system"] == baseline for row in report.rows):
        said = f"Differences are to {baseline}."
    else:
        said = f"No differences to {baseline}, the baseline, which has no results that belong here."
    return (
        f"{said} A difference has the p values of the paired bootstrap over sentences, the least "
        "and the greatest of the seeds. They are sacreBLEU's, about half of two-sided ones. In "
        "brackets is the 95 % interval over seeds of both, which share their teacher. "
        "BLEU and chrF are of fairseq with the task's beam, greedy BLEU with beam 1. "
        "int8 is the export to CTranslate2 with beam 1. Speeds are sentences a second on one core. "
        "In fp32 with the task's beam they are of fairseq-generate with its own search, and of "
        "macaron-fairseq translate; then of the export. Training: target tokens a second, the "
        "median of the log."
    )


def own_baselines(against_own: dict[str, dict[str, Any]]) -> list[str]:
    """The systems that have another baseline, less that; nothing without any."""
    rows = [
        [name, found["baseline"], *(difference(found[x]) for x in (*METRICS, GREEDY))]
        for name, found in against_own.items()
    ]
    return [table(["system", "minus its baseline", *METRICS, GREEDY], rows)] if rows else []


def as_planned(planned: dict[str, dict[str, Any]]) -> list[str]:
    """The comparisons that were planned, with corrected p values; nothing without any."""
    head = ["planned", "minus its baseline", "seeds", GREEDY, "greatest p", "by Holm", "same sign"]
    rows = [
        [
            name,
            one["baseline"],
            " ".join(map(str, one["seeds"])),
            difference(one),
            f"{one['greatest']:.3f}",
            number(one["holm"], ".3f"),
            one["one sign"],
        ]
        for name, one in planned.items()
    ]
    return [table(head, rows)] if rows else []


def exports(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The exports against the teacher; nothing where it was not timed."""
    deployed = against_teacher(rows)
    if not deployed:
        return []
    head = ["int8, greedy", "times as fast", "share of BLEU", "times as fast as the teacher's"]
    return [
        table(head, deployed),
        "Against the teacher in fp32 with the task's beam: the speed of fairseq-generate, and "
        "BLEU as it was measured with the speeds. The last column is against the teacher's own "
        "export, in the same engine and search.",
    ]


def looped(rows: Sequence[dict[str, Any]]) -> str:
    """How many translations of each system loop, seed by seed: they move its score by points."""
    cells = [
        [row["system"], *(" ".join(map(str, counts)) for counts in row["looping"].values())]
        for row in rows
    ]
    found = table(["translations that loop, by seed", "with the beam", "greedily"], cells)
    return f"{found}\n\n{failures.DEFINITION}"


def trained(rows: Sequence[dict[str, Any]]) -> str:
    """How long each system was trained, but for a teacher that was given."""
    known = [row for row in rows if None not in row["updates"] + row["hours"]]
    cells = [[x["system"], spread(x["updates"], ",.0f"), spread(x["hours"])] for x in known]
    return table(["trained", "updates", "hours"], cells)


def against_teacher(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Each export against the teacher by fairseq-generate: speed and BLEU; and its own export."""
    teacher = next((row for row in rows if row["system"] == TEACHER), None)
    if not teacher or not teacher[OWN_SPEED]:
        return []
    best, exported = teacher[FP32], teacher["int8 speed"]
    return [
        [
            row["system"],
            f"{row['int8 speed'] / teacher[OWN_SPEED]:.1f}",
            f"{100 * row['int8'] / best:.1f} %" if best else NOTHING,
            f"{row['int8 speed'] / exported:.1f}" if exported else NOTHING,
        ]
        for row in rows
        if row["int8 speed"]
    ]


def difference(found: dict[str, Any] | None) -> str:
    """A difference with its interval and p values."""
    if not found or found["mean"] is None:
        return NOTHING
    interval, p = found["interval"], sorted({f"{x:.3f}" for x in found["p"]})
    over_seeds = f" [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else ""
    values = p[0] if len(p) == 1 else f"{p[0]} to {p[-1]}"
    return f"{found['mean']:+.2f}{over_seeds} (p {values})"


def plot(rows: Sequence[dict[str, Any]]) -> bytes | None:
    """BLEU against sentences a second: a PNG picture; None without speeds or matplotlib."""
    points = {
        row["system"]: [
            (row[speed], quality, marker)
            for speed, quality, marker in (
                ("fairseq speed", row[FP32], "s"),
                ("int8 speed", row["int8"], "o"),
            )
            if row[speed] and quality is not None
        ]
        for row in rows
    }
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    if not any(points.values()):
        return None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (system, theirs) in enumerate(points.items()):
        for k, (x, y, marker) in enumerate(theirs):
            axes.plot(x, y, f"C{i}{marker}", label=None if k else system)
    axes.set_xscale("log")
    axes.set_title("squares: fairseq in fp32; circles: int8, greedy", fontsize=10)
    figure.legend(loc="outside right upper")
    axes.set_xlabel("sentences a second on one core")
    axes.set_ylabel("BLEU")
    axes.grid(alpha=0.3)
    image = BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()
