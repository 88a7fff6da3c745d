"""One table of a task's systems, and a plot of quality against speed."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import distillation_records
from common.tasks import Task
from distillation_records import Run
from distillation_speed import GENERATE
from distillation_systems import TEACHER

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.markdown import NOTHING, number, spread, table
from macaron_fairseq.evaluation.evidence import estimates
from macaron_fairseq.evaluation.scores import intervals, significance

# The average of a minute after a timing: itself, and half of another process.
BUSY = 1.5
METRICS = ("BLEU", "chrF")
GREEDY = "greedy BLEU"
LIMITS = (
    "All students learn from one teacher, so the intervals leave out the teacher's variance. Where "
    "a student's checkpoints are not averaged, the one with the least loss on the original "
    "references is scored, though it may learn from translations."
)
HEAD = ["system", "seeds", "BLEU", "difference", "chrF", "difference", GREEDY, "difference"]
HEAD += ["int8 BLEU", "parameters", "int8 MB", "fairseq-generate", "translate"]
HEAD += ["CTranslate2 int8", "training"]
FP32 = "BLEU in fp32"
SPEED, OWN_SPEED = "sentences_per_second", "fairseq-generate speed"
SPEEDS = (OWN_SPEED, "fairseq speed", "int8 speed", "training")


def report(
    task: Task,
    baseline: str,
    main: Sequence[str],
    known: Sequence[Run],
    left_out: Sequence[str],
    work: Path,
    records: Path | None = None,
) -> str:
    """Write report.md, report.json and quality-speed.png of what is done; returns the text.

    Args:
        task: the task.
        baseline: the system that all are compared with; without its results nothing is.
        main: the systems whose comparison with their own baseline was planned.
        known: its runs; of those that are not done the report says so.
        left_out: what the report says of runs that do not belong to it.
        work: the folder of the task.
        records: a folder that may have the references, see `distillation_records`.

    Raises:
        UserError: if nothing is done, or the references are not here.
    """
    done = [run for run in known if run.result]
    if not done:
        raise UserError(f"{work} has no results yet: run the stage run")
    path = distillation_records.known_references(done[0], records)
    reference = [*files.read_lines(path)]
    by_system: dict[str, list[Run]] = {}
    for run in done:
        by_system.setdefault(run.recipe.system, []).append(run)
    students = [name for name in by_system if name != TEACHER]
    differences = {
        name: compared(by_system[baseline], by_system[name], reference)
        for name in students
        if name != baseline and baseline in by_system
    }
    own = {name: by_system[name][0].recipe.baseline for name in students}
    against_own = {
        name: {"baseline": base, **compared(by_system[base], by_system[name], reference)}
        for name, base in own.items()
        if base in by_system and base not in (baseline, name)
    }
    rows = [summary(name, theirs) for name, theirs in by_system.items()]
    notes = [*left_out, *missing(known), *about_timing(done), about_training(by_system)]
    notes += about_trained_on(done)
    picture = plot(rows)
    of_baseline = {x: found for x, found in differences.items() if own[x] == baseline}
    planned = main_comparisons(main, own, {**of_baseline, **against_own})
    text = as_text(
        task, rows, differences, against_own, planned, baseline, notes, picture is not None
    )
    content = {"task": task.name, "systems": rows, "differences": differences}
    content |= {"against_own_baselines": against_own, "main": planned, "notes": notes}
    contents: dict[Path, str | bytes] = {
        work / "report" / "report.md": text,
        work / "report" / "report.json": files.as_json(content),
    }
    if picture:
        contents[work / "report" / "quality-speed.png"] = picture
    files.write_all(contents)
    return text


def missing(known: Sequence[Run]) -> list[str]:
    """What is not there yet, in words."""
    left = {
        "not done yet": [run.name for run in known if not run.result],
        "not timed": [run.name for run in known if run.result and not run.speed],
    }
    return [f"{what}: {', '.join(names)}" for what, names in left.items() if names]


def about_timing(done: Sequence[Run]) -> list[str]:
    """What makes speeds doubtful: a busy machine, or several machines."""
    timed = [run for run in done if run.speed]
    notes = []
    if busy := [run for run in timed if run.speed["load"]["after"] > BUSY]:
        most = max(run.speed["load"]["after"] for run in busy)
        notes.append(
            f"timed on a busy machine, with up to {most:.1f} processes, so that speeds may be too "
            f"low: {', '.join(run.name for run in busy)}"
        )
    if cpus := several(timed, lambda run: run.speed["machine"]["cpu"]):
        notes.append(f"speeds cannot be compared between CPUs, and were timed on several: {cpus}")
    return notes


def several(runs: Sequence[Run], kind: Callable[[Run], str]) -> str:
    """Which runs are of which kind, where there is more than one; else ""."""
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(kind(run), []).append(run.name)
    listed = "; ".join(f"{x} ({', '.join(names)})" for x, names in found.items())
    return listed if len(found) > 1 else ""


def about_training(by_system: Mapping[str, Sequence[Run]]) -> str:
    """How many processes ran while each system was trained: runs at a time slow one another."""
    said = []
    for system, runs in by_system.items():
        loads = [run.result["load"] for run in runs if run.result.get("load") is not None]
        said.append(f"{system} {statistics.mean(loads):.1f}" if loads else f"{system} unknown")
    return (
        "training speeds compare where as many processes ran on the machine; "
        f"in the last 15 minutes of training these were: {', '.join(said)}"
    )


def about_trained_on(done: Sequence[Run]) -> list[str]:
    """What keeps runs from being compared: several machines or codes, or other tokens."""
    notes = []
    if machines := several(done, lambda run: called(run.result["machine"])):
        notes.append(
            f"training speeds do not compare between machines, and are of several: {machines}"
        )
    if codes := several(done, lambda run: run.result.get("revision") or "unknown"):
        notes.append(f"runs were made with several states of the code: {codes}")
    if own := dict.fromkeys(run.recipe.system for run in done if run.recipe.has_own_bpe):
        notes.append(
            f"training speeds of {', '.join(own)} count tokens of other merges, of which a "
            "sentence has other numbers"
        )
    return notes


def called(machine: Mapping[str, Any]) -> str:
    """Processor, GPUs and PyTorch of a machine."""
    torch = machine.get("versions", {}).get("torch")
    said = [machine["cpu"], *machine.get("gpus", ()), *[f"PyTorch {torch}"] * bool(torch)]
    return ", ".join(said)


def summary(system: str, runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of a system, means over its seeds; of speeds, of the seeds that were timed."""
    test = runs[0].recipe.test
    results = [run.result for run in runs]
    speeds = [run.speed for run in runs if run.speed]

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.mean(known) if known else None

    def timed(name: str, figure: str) -> float | None:
        return mean([x[name][figure] for x in speeds])

    return {
        "system": system,
        "seeds": [x["seed"] for x in results],
        "scores": {name: [x["scores"][test][name] for x in results] for name in METRICS},
        "greedy": [x["greedy"]["BLEU"] for x in results],
        "int8": timed("int8, greedy", "BLEU"),
        # Scores are of the precision that the training job translated in, fp16 on GPUs.
        FP32: timed("fairseq, beam", "BLEU"),
        "parameters": results[0]["parameters"],
        "bytes": mean([x["bytes"] for x in speeds]),
        OWN_SPEED: timed(GENERATE, SPEED),
        "fairseq speed": timed("fairseq, beam", SPEED),
        "int8 speed": timed("int8, greedy", SPEED),
        "training": mean([x["words_per_second"] for x in results]),
        "updates": [x["updates"] for x in results],
        "hours": [x["hours"] for x in results],
        "signatures": results[0]["signatures"],
        "machine": (speeds or results)[0]["machine"],
    }


# --- Differences ---------------------------------------------------------------------------------


def compared(
    base: Sequence[Run], other: Sequence[Run], reference: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """A system against a baseline, by the seeds that both have, on a test set's references.

    Returns:
        by metric the differences, their mean and its interval over seeds (Student's t). The p
        values are those of sacreBLEU's paired bootstrap over sentences, one for each seed.
    """
    sides = [{run.recipe.seeds[0]: run for run in side} for side in (base, other)]
    seeds = sorted({*sides[0]} & {*sides[1]})
    found: dict[str, dict[str, Any]] = {
        name: {"seeds": [], "differences": [], "p": []} for name in (*METRICS, GREEDY)
    }
    for seed in seeds:
        one, two = (side[seed] for side in sides)
        for name, of_metric in found.items():
            search, metric = ("greedy", "BLEU") if name == GREEDY else ("beam", name)
            difference, p = bootstrap(one, two, reference, search, metric)
            of_metric["seeds"].append(seed)
            of_metric["differences"].append(difference)
            of_metric["p"].append(p)
    for of_metric in found.values():
        values = of_metric["differences"]
        of_metric["mean"] = statistics.mean(values) if values else None
        of_metric["interval"] = intervals.over_seeds(values)
    return found


def main_comparisons(
    main: Sequence[str], baselines: Mapping[str, str], found: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The planned comparisons that can be made: greedy BLEU less that of the baseline.

    Args:
        main: all that were planned.
        baselines: of each system.
        found: by system what `compared` finds against its baseline.

    Returns:
        By system the figures of `compared`, and its baseline. There is the greatest of the seeds' p
        values, and what Holm's correction for all planned comparisons makes of it. "one sign" says
        whether all seeds have the same.
    """
    made = {x: found[x][GREEDY] for x in main if x in found and found[x][GREEDY]["p"]}
    greatest = {name: max(one["p"]) for name, one in made.items()}
    corrected = estimates.holm(greatest, len(main))
    return {
        name: {
            "baseline": baselines[name],
            **one,
            "greatest": greatest[name],
            "holm": corrected[name],
            "one sign": one_sign(one["differences"]),
        }
        for name, one in made.items()
    }


def one_sign(differences: Sequence[float]) -> str:
    """Whether several differences have the same sign, in a word; a dash for one alone."""
    if len(differences) < 2:
        return NOTHING
    return "yes" if min(differences) > 0 or max(differences) < 0 else "no"


def bootstrap(
    base: Run, other: Run, reference: Sequence[str], search: str, name: str
) -> tuple[float, float]:
    """The difference in a metric on the task's test set, and its p value.

    Args:
        base: a run of the baseline.
        other: the run that is compared with it.
        reference: of each sentence.
        search: how both translated, beam or greedy.
        name: BLEU or chrF.
    """
    from sacrebleu.metrics import CHRF

    from macaron_fairseq.evaluation.scores.metrics import detokenised_bleu

    lowercase = "--lowercase" in base.recipe.score_flags
    metrics = {
        "BLEU": detokenised_bleu(base.recipe.target, lowercase),
        "chrF": CHRF(lowercase=lowercase),
    }
    texts = [distillation_records.unpack(run.result["hypotheses"][search]) for run in (base, other)]
    results, _ = significance.paired_bootstrap(texts, reference, metrics[name])
    (first, _), (second, p) = results
    return second - first, p


# --- Text and picture ----------------------------------------------------------------------------


def as_text(
    task: Task,
    rows: Sequence[dict[str, Any]],
    differences: dict[str, dict[str, dict[str, Any]]],
    against_own: dict[str, dict[str, Any]],
    planned: dict[str, dict[str, Any]],
    baseline: str,
    notes: Sequence[str],
    has_picture: bool,
) -> str:
    """The report."""
    cells = []
    for row in rows:
        found = differences.get(row["system"], {})
        scores = [
            cell
            for name in METRICS
            for cell in (spread(row["scores"][name]), difference(found.get(name)))
        ]
        size = row["bytes"] and row["bytes"] / 1e6
        cells.append(
            [
                *(row["system"], " ".join(map(str, row["seeds"])), *scores),
                *(spread(row["greedy"]), difference(found.get(GREEDY))),
                number(row["int8"], ".2f"),
                *(number(row["parameters"], ","), number(size, ".1f")),
                *(number(row[name], ".0f") for name in SPEEDS),
            ]
        )
    parts = [f"# Distillation: {task.name}, {task.kind.test}", table(HEAD, cells)]
    if any(row["system"] == baseline for row in rows):
        said = f"Differences are to {baseline}."
    else:
        said = f"No differences to {baseline}, the baseline, which has no results that belong here."
    parts.append(
        f"{said} A difference has the p values of the paired bootstrap over sentences, the least "
        "and the greatest of the seeds. In brackets is the 95 % interval over seeds of both. "
        "BLEU and chrF are of fairseq with the task's beam, greedy BLEU with beam 1. "
        "int8 is the export to CTranslate2 with beam 1. Speeds are sentences a second on one core. "
        "In fp32 with the task's beam they are of fairseq-generate with its own search, and of "
        "macaron-fairseq translate; then of the export. Training: target tokens a second, the "
        "median of the log."
    )
    parts.append(LIMITS)
    if against_own:
        compared_with_own = [
            [name, found["baseline"], *(difference(found[x]) for x in (*METRICS, GREEDY))]
            for name, found in against_own.items()
        ]
        parts.append(table(["system", "less its baseline", *METRICS, GREEDY], compared_with_own))
    if planned:
        compared_as_planned = [
            [
                *(name, one["baseline"], " ".join(map(str, one["seeds"])), difference(one)),
                *(f"{one['greatest']:.3f}", f"{one['holm']:.3f}", one["one sign"]),
            ]
            for name, one in planned.items()
        ]
        head = ["planned", "less its baseline", "seeds", GREEDY, "greatest p", "by Holm"]
        parts.append(table([*head, "same sign"], compared_as_planned))
    if deployed := against_teacher(rows):
        head = ["int8, greedy", "times as fast", "share of BLEU", "times as fast as the teacher's"]
        parts.append(table(head, deployed))
        parts.append(
            "Against the teacher in fp32 with the task's beam: the speed of fairseq-generate, and "
            "BLEU as it was measured with the speeds. The last column is against the teacher's own "
            "export, in the same engine and search."
        )
    trained = [
        [row["system"], spread(row["updates"], ",.0f"), spread(row["hours"])]
        for row in rows
        if None not in row["updates"] + row["hours"]  # as those of a teacher that was given
    ]
    parts.append(table(["trained", "updates", "hours"], trained))
    if has_picture:
        parts.append("![Quality against speed.](quality-speed.png)")
    signatures = rows[0]["signatures"].items()
    parts.append("\n".join(f"- {name}: `{signature}`" for name, signature in signatures))
    parts.append(f"- machine: {rows[0]['machine']['cpu']}")
    return "\n\n".join([*parts, *(f"- {note}" for note in notes)]) + "\n"


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
                ("fairseq speed", statistics.mean(row["scores"]["BLEU"]), "s"),
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
