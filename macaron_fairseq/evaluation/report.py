"""Trained and scored models side by side: a report's files (`macaron-fairseq report`)."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation import report_text, runs, significance, training_flags
from macaron_fairseq.evaluation.runs import Run
from macaron_fairseq.evaluation.significance import Difference

# In which runs differ beside the architecture.
NOT_SETTINGS = (*training_flags.PLACES, "--arch", "-a", "--seed")
# Of a published score.
FIELDS: dict[str, type | tuple[type, ...]] = {
    "arch": str,
    "test": str,
    "metric": str,
    "score": (int, float),
    "source": str,
}


def write(
    folders: Sequence[Path],
    out: Path,
    baseline: str | None = None,
    published: Path | None = None,
    title: str = "Comparison of architectures",
) -> str:
    """Write report.md, report.json and, with matplotlib, curves.png; return the text of report.md.

    Args:
        folders: the runs, each trained and scored.
        out: the folder to write to.
        baseline: an architecture of theirs; if None, the first whose name is without "macaron", or
            else the first.
        published: a JSON file of published scores to set beside those of the runs.
        title: of the report.

    Raises:
        UserError: if a run is not complete, they cannot be compared, or a file cannot be written;
            then none is.
    """
    entries = read_published(published) if published else []
    found = [runs.read(folder) for folder in folders]
    runs.refuse_different(found)
    archs = list(dict.fromkeys(run.arch for run in found))
    if baseline is None:
        baseline = next((arch for arch in archs if "macaron" not in arch), archs[0])
    elif baseline not in archs:
        raise UserError(
            f"no run is of the baseline {baseline}: add its runs, or choose from {', '.join(archs)}"
        )
    differences = significance.compare(found, baseline)
    content = summarize(found, baseline, differences, entries, title)
    picture = draw_curves(found)
    text = report_text.markdown(content, "curves.png" if picture else None)
    contents: dict[Path, str | bytes] = {
        out / "report.md": text,
        out / "report.json": files.as_json(content),
    }
    if picture:
        contents[out / "curves.png"] = picture
    files.write_all(contents)
    return text


def read_published(path: Path) -> list[dict[str, Any]]:
    """The entries of a JSON file: a list of objects with the fields above.

    Raises:
        UserError: if it cannot be read or has another form.
    """
    hint = f"it should hold a list of objects with {', '.join(FIELDS)}"
    entries = files.load_json(path, hint)
    if not isinstance(entries, list):
        raise UserError(f"{path} is not as expected: {hint}")
    for i, entry in enumerate(entries, 1):
        for name, kind in FIELDS.items():
            if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
                raise UserError(
                    f"entry {i} of {path} has no {'number' if name == 'score' else 'text'} "
                    f"'{name}': it should have {', '.join(FIELDS)}"
                )
    return entries


# --- all that a report says, as plain data -------------------------------------------------------


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


# --- the picture ---------------------------------------------------------------------------------


def draw_curves(runs: Sequence[Run]) -> bytes | None:
    """The learning curves of all runs, one colour for each architecture, as a PNG file.

    None where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    archs = list(dict.fromkeys(run.arch for run in runs))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for run in runs:
        colour = f"C{archs.index(run.arch)}"
        training = run.training
        if training.train_curve:
            axes.plot(*zip(*training.train_curve, strict=True), colour, alpha=0.3, lw=0.7)
        if training.valid_curve:
            axes.plot(*zip(*training.valid_curve, strict=True), f"{colour}o-", ms=3)
    for i, arch in enumerate(archs):
        axes.plot([], [], f"C{i}o-", ms=3, label=arch)
    axes.set(xlabel="updates", ylabel="loss (bits per token)")
    axes.set_title("loss in validation (dots) and in training (thin)")
    axes.grid(alpha=0.3)
    axes.legend()
    image = BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return image.getvalue()
