"""All that a report says, as plain data: what its JSON holds, and its pages show."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from macaron_fairseq.evaluation import training_flags, translations, verdict
from macaron_fairseq.evaluation.runs import Run
from macaron_fairseq.evaluation.significance import Difference

# In which runs differ apart from the architecture.
NOT_SETTINGS = (*training_flags.PLACES, "--arch", "-a", "--seed")

# Sentence examples: at most so many in each comparison, and in the whole report.
EXAMPLES, ALL_EXAMPLES = 200, 600

SPEED = (
    "words/s: target tokens per second, the median over a run's log. hours: time in updates "
    "(fairseq's `train_wall`), each update once; starting, validating and saving do not count. "
    "Neither is comparable between runs: the runs did not take turns on the machine."
)


def summarize(
    found: Sequence[Run],
    baseline: str,
    differences: Sequence[Difference],
    published: Sequence[dict[str, Any]],
    title: str,
    train_text: Path | None = None,
) -> dict[str, Any]:
    """The report on runs that can be compared (`runs.refuse_different`).

    Args:
        found: the runs.
        baseline: an architecture of theirs.
        differences: what `significance.compare` gives for them.
        published: entries of a file of published scores.
        title: of the report.
        train_text: the target side of the training data, tokenised by Moses; None if it is not
            known.

    Raises:
        UserError: if a text cannot be read.
    """
    archs = {run.arch: [r for r in found if r.arch == run.arch] for run in found}
    names = tqdm(found[0].tests, desc="comparing translations", disable=None)
    comparisons = len(found[0].tests) * max(len(archs) - 1, 1)
    examples = min(EXAMPLES, ALL_EXAMPLES // comparisons)
    tests = [
        translations.summarize(
            translations.read(name, archs), baseline, published, train_text, examples
        )
        for name in names
    ]
    shown = [x for test in tests for row in test["architectures"] for x in row["published"]]
    flags = summarize_flags(archs)
    return {
        "title": title,
        "verdict": verdict.verdicts(tests, baseline),
        "warnings": verdict.warnings(tests, flags),
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
        "speed_note": SPEED,
        "runs": [summarize_run(run) for run in found],
        "significance": [asdict(difference) for difference in differences],
        "examples_at_most": examples,
        "published_elsewhere": [x for x in published if x not in shown],
        "data": found[0].manifest["data"],
        "flags": flags,
    }


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


# --- runs ----------------------------------------------------------------------------------------


def summarize_run(run: Run) -> dict[str, Any]:
    """One training run, its scores, and where it was done."""
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
