"""All that a report says, as plain data: what its JSON holds, and its pages show."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from macaron_fairseq.common.progress import bar
from macaron_fairseq.evaluation.report import translations, verdict
from macaron_fairseq.evaluation.report.against_baseline import Difference
from macaron_fairseq.evaluation.training import manifest, training_flags
from macaron_fairseq.evaluation.training.runs import Run

# In which runs differ apart from the architecture.
NOT_SETTINGS = (*training_flags.PLACES, "--arch", "--seed")

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
        differences: what `against_baseline.compare` gives for them.
        published: entries of a file of published scores.
        title: of the report.
        train_text: the target side of the training data, tokenised by Moses; None if it is not
            known.

    Raises:
        UserError: if a text cannot be read.
    """
    archs = {run.arch: [r for r in found if r.arch == run.arch] for run in found}
    # What models are tested on comes before what they were chosen by.
    names = sorted(found[0].tests, key=lambda name: name.startswith(("dev", "valid")))
    comparisons = len(names) * max(len(archs) - 1, 1)
    examples = min(EXAMPLES, ALL_EXAMPLES // comparisons)
    read = [translations.read(name, archs) for name in names]
    counts = translations.frequencies(read, train_text) if train_text else None
    tests = [
        translations.summarize(test, baseline, published, counts, examples)
        for test in bar("comparing translations", items=read)
    ]
    shown = [x for test in tests for row in test["architectures"] for x in row["published"]]
    flags = summarize_flags(archs)
    architectures = [
        {
            "arch": arch,
            "parameters": theirs[0].training.parameters,
            "words_per_second": mean(run.training.words_per_second for run in theirs),
            "hours": mean(run.training.hours for run in theirs),
        }
        for arch, theirs in archs.items()
    ]
    trained = [summarize_run(run) for run in found]
    warnings = verdict.warnings(tests, flags, architectures, trained)
    return {
        "title": title,
        "verdict": verdict.verdicts(tests, baseline),
        "warnings": [*verdict.caution(tests), *warnings],
        "baseline": baseline,
        "tests": tests,
        "architectures": architectures,
        "speed_note": SPEED,
        "runs": trained,
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


def flags_of(run: Run, first_of_arch: Run, first: Run) -> dict[str, list[str]]:
    """A run's flags as a table, in the words of the first run, or of its architecture's first.

    Of logs and what is kept the latter speaks, as another architecture may lack these flags.
    """
    own, of_arch, others = (
        training_flags.parse(x.manifest["flags"]) for x in (run, first_of_arch, first)
    )

    def speaks(name: str) -> dict[str, list[str]]:
        if name in (*training_flags.SAVING, *training_flags.CACHES):
            return of_arch
        one, other = manifest.hashes_of(name, run.manifest, first.manifest)
        is_file = bool(one) and one == other
        is_same = is_file or training_flags.is_same(own.get(name), others.get(name))
        return others if is_same else own

    chosen = {name: speaks(name) for name in dict.fromkeys([*others, *of_arch, *own])}
    return {name: flags[name] for name, flags in chosen.items() if name in flags}


def summarize_flags(archs: dict[str, list[Run]]) -> dict[str, Any]:
    """The flags that all runs share and those in which some differ, as one types them.

    Seeds of one architecture may be divided among devices otherwise: then all that they say is
    listed. Of where files lie that have the same content, and how a number is written, the first
    run speaks.
    """
    first = next(iter(archs.values()))[0]
    parsed = {arch: [flags_of(run, runs[0], first) for run in runs] for arch, runs in archs.items()}
    every = [flags for theirs in parsed.values() for flags in theirs]
    names = dict.fromkeys(name for flags in every for name in flags)
    settings = [name for name in names if name not in NOT_SETTINGS]
    shown = {name: {training_flags.show(name, flags) for flags in every} for name in settings}
    return {
        "common": [text for texts in shown.values() if len(texts) == 1 for text in texts],
        "differing": {
            name: {
                arch: " or ".join(dict.fromkeys(training_flags.show(name, x) for x in theirs))
                for arch, theirs in parsed.items()
            }
            for name, texts in shown.items()
            if len(texts) > 1
        },
    }
