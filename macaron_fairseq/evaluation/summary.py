"""All that a report says, as one object of plain data: report.json, and what tables.py shows."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from macaron_fairseq.evaluation import training_flags
from macaron_fairseq.evaluation.runs import Run
from macaron_fairseq.evaluation.significance import Difference

# In which runs differ beside the architecture.
NOT_SETTINGS = (*training_flags.PLACES, "--arch", "-a", "--seed")


def summarize(
    runs: Sequence[Run],
    baseline: str,
    differences: Sequence[Difference],
    published: Sequence[dict[str, Any]],
    title: str,
) -> dict[str, Any]:
    """The report on runs that can be compared (`runs.refuse_different`)."""
    archs = {run.arch: [r for r in runs if r.arch == run.arch] for run in runs}
    tests = [summarize_test(name, archs, published) for name in runs[0].tests]
    shown = [x for test in tests for row in test["architectures"] for x in row["published"]]
    return {
        "title": title,
        "baseline": baseline,
        "tests": tests,
        "architectures": [
            {
                "arch": arch,
                "parameters": theirs[0].training.parameters,
                "words_per_second": mean(run.training.words_per_second for run in theirs),
                "hours": mean(run.training.hours for run in theirs),
            }
            for arch, theirs in archs.items()
        ],
        "runs": [summarize_run(run) for run in runs],
        "significance": [asdict(difference) for difference in differences],
        "published_elsewhere": [x for x in published if x not in shown],
        "data": runs[0].manifest["data"],
        "flags": summarize_flags(archs),
    }


def summarize_test(
    name: str, archs: dict[str, list[Run]], published: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Scores on one test set: mean and sample standard deviation over seeds, and published ones."""
    scored = next(iter(archs.values()))[0].tests[name]
    return {
        "name": name,
        "sentences": scored.sentences,
        "reference_sha256": scored.reference_sha256,
        "decoding": scored.decoding,
        "signatures": scored.signatures,
        "architectures": [
            {
                "arch": arch,
                "seeds": [run.seed for run in runs],
                "scores": {
                    metric: spread([run.tests[name].scores[metric] for run in runs])
                    for metric in scored.scores
                },
                "published": [
                    entry
                    for entry in published
                    if (entry["arch"], entry["test"]) == (arch, name)
                    and entry["metric"] in scored.scores
                ],
            }
            for arch, runs in archs.items()
        ],
    }


def spread(scores: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation; one score has no deviation."""
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return {"mean": statistics.mean(scores), "standard_deviation": deviation}


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def summarize_run(run: Run) -> dict[str, Any]:
    """One training, its scores, and where it was done."""
    return {
        "folder": str(run.folder),
        "arch": run.arch,
        "seed": run.seed,
        "scores": {name: scored.scores for name, scored in run.tests.items()},
        "checkpoint_sha256": {name: x.checkpoint_sha256 for name, x in run.tests.items()},
        **asdict(run.training),
        "flags": run.manifest["flags"],
        "starts": run.manifest["starts"],
    }


def summarize_flags(archs: dict[str, list[Run]]) -> dict[str, Any]:
    """The flags that architectures share and those in which they differ, as one types them.

    Runs of one architecture differ in the seed, and at most in how they are saved: the first speaks
    for them.
    """
    parsed = {arch: training_flags.parse(runs[0].manifest["flags"]) for arch, runs in archs.items()}
    names = list(dict.fromkeys(name for found in parsed.values() for name in found))
    settings = [name for name in names if name not in NOT_SETTINGS]
    first = next(iter(parsed.values()))
    differing = [
        name for name in settings if any(x.get(name) != first.get(name) for x in parsed.values())
    ]
    return {
        "common": [training_flags.show(name, first) for name in settings if name not in differing],
        "differing": {
            name: {arch: training_flags.show(name, found) for arch, found in parsed.items()}
            for name in differing
        },
    }
