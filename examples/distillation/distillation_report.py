"""The report of a task: the figures of its systems, and what must be known of them."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import distillation_records
from common.tasks import Task
from distillation_differences import METRICS, compared, main_comparisons
from distillation_records import Run
from distillation_speed import GENERATE
from distillation_systems import TEACHER
from distillation_text import FP32, OWN_SPEED, Report, as_text, plot

from macaron_fairseq.common import files, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.report.summary import mean
from macaron_fairseq.evaluation.scores import failures

# The average of a minute after a timing: itself, and half of another process.
BUSY = 1.5
SEARCHES = ("beam", "greedy")
SPEED = "sentences_per_second"


def report(
    task: Task,
    baseline: str,
    main: Sequence[str],
    known: Sequence[Run],
    seeds: int,
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
        seeds: how many were asked for of each system.
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
    reference = [*text_lines.read_lines(path)]
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
    rows = [
        {**summary(name, theirs), "looping": looping(theirs, reference)}
        for name, theirs in by_system.items()
    ]
    notes = [*left_out, *missing(known), *about_scores(done), *about_timing(done)]
    notes += [about_training(by_system), *about_trained_on(done)]
    picture = plot(rows)
    of_baseline = {x: found for x, found in differences.items() if own[x] == baseline}
    planned = main_comparisons(main, own, {**of_baseline, **against_own}, seeds)
    found = Report(task, baseline, rows, differences, against_own, planned, notes)
    text = as_text(found, picture is not None)
    contents: dict[Path, str | bytes] = {
        work / "report" / "report.md": text,
        work / "report" / "report.json": files.as_json(found.as_json()),
    }
    if picture:
        contents[work / "report" / "quality-speed.png"] = picture
    files.write_all(contents)
    return text


def looping(runs: Sequence[Run], reference: Sequence[str]) -> dict[str, list[int]]:
    """How many translations of each run loop, by how they were searched."""
    packed = {search: [run.result["hypotheses"][search] for run in runs] for search in SEARCHES}
    return {
        search: [len(failures.looping(distillation_records.unpack(x), reference)) for x in texts]
        for search, texts in packed.items()
    }


def missing(known: Sequence[Run]) -> list[str]:
    """What is not there yet, in words."""
    left = {
        "not done yet": [run.name for run in known if not run.result],
        "not timed": [run.name for run in known if run.result and not run.speed],
    }
    return [f"{what}: {', '.join(names)}" for what, names in left.items() if names]


def about_scores(done: Sequence[Run]) -> list[str]:
    """What keeps scores from being compared: other versions of sacreBLEU."""
    scored = several(done, lambda run: run.result["signatures"].get("BLEU", "unknown"))
    return [f"BLEU was computed in several ways: {scored}"] if scored else []


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
