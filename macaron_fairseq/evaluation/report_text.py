"""The text of a report, in Markdown (report.md)."""

from collections.abc import Sequence
from typing import Any

from macaron_fairseq.common.markdown import NOTHING, number, table

Summary = dict[str, Any]

NO_PICTURE = (
    "No learning curves: matplotlib is not installed (`pip install 'macaron_fairseq[plots]'`)."
)


def markdown(summary: Summary, picture: str | None) -> str:
    """The whole report; `picture` names the file with the learning curves, if there is one."""
    parts = [
        f"# {summary['title']}",
        *(part for test in summary["tests"] for part in scores(test)),
        *unmatched(summary["published_elsewhere"]),
        "## Runs",
        runs(summary),
        "## Architectures",
        architectures(summary),
        "words/s: target tokens per second, the median over a training's log. hours: time in "
        "updates (fairseq's `train_wall`), each update once; starting, validating and saving do "
        "not count.",
        f"![loss in validation and in training]({picture})" if picture else NO_PICTURE,
        "## Metrics",
        signatures(summary),
        "## Significance",
        *significance(summary),
        "## Where and when",
        environments(summary),
        "## How to repeat it",
        *manifest(summary),
    ]
    return "\n\n".join(parts) + "\n"


def scores(test: dict[str, Any]) -> list[str]:
    """One test set: a row for each architecture."""
    metrics = list(test["signatures"])
    with_published = any(row["published"] for row in test["architectures"])
    rows = []
    for row in test["architectures"]:
        published = "; ".join(
            f"{x['metric']} {x['score']} ({x['source']})" for x in row["published"]
        )
        rows.append(
            [
                f"`{row['arch']}`",
                *(with_deviation(row["scores"][metric]) for metric in metrics),
                str(len(row["seeds"])),
                *([published or NOTHING] if with_published else []),
            ]
        )
    header = ["architecture", *metrics, "seeds", *(["published"] if with_published else [])]
    text = [f"## {test['name']}, {test['sentences']:,} sentences", table(header, rows)]
    if any(len(row["seeds"]) > 1 for row in test["architectures"]):
        text.append("Mean ± sample standard deviation over seeds.")
    return text


def with_deviation(score: dict[str, float | None]) -> str:
    """A mean with its standard deviation, if it has one."""
    mean, deviation = score["mean"], score["standard_deviation"]
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def unmatched(published: Sequence[dict[str, Any]]) -> list[str]:
    """The published scores that stand beside no score of the report."""
    if not published:
        return []
    entries = "; ".join(
        f"`{x['arch']}` on {x['test']}, {x['metric']} {x['score']} ({x['source']})"
        for x in published
    )
    return [f"Published, with no run here to stand beside: {entries}."]


def runs(summary: Summary) -> str:
    """All runs: a row for each."""
    tests = summary["tests"]
    columns = [(test["name"], metric) for test in tests for metric in test["signatures"]]
    header = [
        "architecture",
        "seed",
        *(f"{metric}, {name}" if len(tests) > 1 else metric for name, metric in columns),
        *("updates", "epochs", "best validation loss", "words/s", "hours"),
    ]
    rows = [
        [
            f"`{run['arch']}`",
            str(run["seed"]),
            *(number(run["scores"][name][metric], ".2f") for name, metric in columns),
            number(run["updates"], ","),
            number(run["epochs"], ".1f"),
            number(run["best_valid_loss"], ".3f"),
            number(run["words_per_second"], ",.0f"),
            number(run["hours"], ".3f"),
        ]
        for run in summary["runs"]
    ]
    return table(header, rows)


def architectures(summary: Summary) -> str:
    """Size and speed: a row for each architecture."""
    return table(
        ["architecture", "parameters", "words/s", "hours"],
        [
            [
                f"`{row['arch']}`",
                number(row["parameters"], ","),
                number(row["words_per_second"], ",.0f"),
                number(row["hours"], ".3f"),
            ]
            for row in summary["architectures"]
        ],
    )


def signatures(summary: Summary) -> str:
    """The signature of each metric, with the test sets where they have different ones."""
    found: dict[tuple[str, str], list[str]] = {}
    for test in summary["tests"]:
        for metric, signature in test["signatures"].items():
            found.setdefault((metric, signature), []).append(test["name"])
    return "\n".join(
        f"- {metric}{'' if len(names) == len(summary['tests']) else ' of ' + ', '.join(names)}: "
        f"`{signature}`"
        for (metric, signature), names in found.items()
    )


def significance(summary: Summary) -> list[str]:
    """The paired bootstrap: a row for each test set, architecture and seed."""
    baseline, found = summary["baseline"], summary["significance"]
    if not found:
        return [f"No run has a BLEU to compare with that of `{baseline}` of the same seed."]
    header = ["test set", "architecture", "seed", "BLEU", "baseline", "difference", "p"]
    rows = [
        [
            x["test"],
            f"`{x['arch']}`",
            str(x["seed"]),
            f"{x['score']:.2f}",
            f"{x['baseline_score']:.2f}",
            f"{x['difference']:+.2f}",
            f"{x['p_value']:.3f}",
        ]
        for x in found
    ]
    tests = ", ".join(f"`{x}`" for x in dict.fromkeys(x["signature"] for x in found))
    return [
        table(header, rows),
        f"sacreBLEU's paired bootstrap ({tests}) against `{baseline}` of the same seed: it "
        "tests whether the difference of two trained models would hold on other sentences of this "
        "kind, not whether it would hold for models of other seeds.",
    ]


def environments(summary: Summary) -> str:
    """Each machine with its versions, when it was used, and for what where there are several."""
    found: dict[str, list[tuple[str, str]]] = {}
    for run in summary["runs"]:
        for start in run["starts"]:
            name = f"`{run['arch']}` {run['seed']}"
            found.setdefault(environment(start), []).append((start["date"][:10], name))
    lines = []
    for text, starts in found.items():
        days = sorted({day for day, _ in starts})
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        which = ", ".join(dict.fromkeys(name for _, name in starts))
        lines.append(f"- {when}: {text}" + (f" ({which})" if len(found) > 1 else ""))
    return "\n".join(lines)


def environment(start: dict[str, Any]) -> str:
    """The machine and the versions of one start."""
    machine = start["hardware"]
    gpus = machine["gpus"]
    kinds = [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)] or ["no GPU"]
    return ", ".join(
        [
            machine["cpu"],
            f"{machine['cores']} cores",
            f"{machine['memory_gib']:.0f} GiB",
            *kinds,
            machine["system"],
            *(f"{name} {version}" for name, version in start["versions"].items()),
        ]
    )


def manifest(summary: Summary) -> list[str]:
    """Code, data and flags."""
    data, flags = summary["data"], summary["flags"]
    facts = [
        f"- code: {', '.join(revisions(summary['runs']))}",
        f"- data: {data['source']}-{data['target']}, test sets {', '.join(data['tests'])}, "
        f"fingerprint `{data['fingerprint']}`",
        *(f"- translated with {x}" for x in decodings(summary["tests"])),
        *checkpoints(summary["runs"]),
    ]
    common = " \\\n".join(f"  {flag}" for flag in flags["common"])
    command = (
        'fairseq-train DATA/data-bin --user-dir "$(macaron-fairseq user-dir)" \\\n'
        "  --save-dir RUN --arch ARCH --seed SEED"
    )
    text = [
        "\n".join(facts),
        f"```sh\n{command}" + (f" \\\n{common}" if common else "") + "\n```",
    ]
    if is_by_torchrun(flags["common"]):
        text.append(
            "torchrun started it in as many processes as `--distributed-world-size` says; without "
            'GPUs each needs `--distributed-rank "$RANK"` besides.'
        )
    if not flags["differing"]:
        return [
            *text,
            "The runs differ in `--arch`, `--seed` and where they are saved, and in no other flag.",
        ]
    archs = [row["arch"] for row in summary["architectures"]]
    header = ["differs besides `--arch`", *(f"`{arch}`" for arch in archs)]
    rows = [
        [f"`{name}`", *(f"`{shown[arch]}`" for arch in archs)]
        for name, shown in flags["differing"].items()
    ]
    return [*text, table(header, rows)]


def is_by_torchrun(flags: Sequence[str]) -> bool:
    """Whether a training with those flags had several processes."""
    sizes = [flag for flag in flags if flag.startswith("--distributed-world-size ")]
    return bool(sizes) and not sizes[-1].endswith(" 1")


def revisions(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The versions of the code that trained, each once."""
    found: dict[str, None] = {}
    for run in runs:
        for start in run["starts"]:
            code = start["code"]
            if code is None:
                found["no git checkout"] = None
            else:
                found[f"`{code['revision']}`" + (" (modified)" if code["modified"] else "")] = None
    return list(found)


def decodings(tests: Sequence[dict[str, Any]]) -> list[str]:
    """Which checkpoints were decoded and how, with the test sets where that is not one for all."""
    found: dict[str, list[str]] = {}
    for test in tests:
        if test["decoding"]:
            found.setdefault(test["decoding"], []).append(test["name"])
    return [
        how if len(names) == len(tests) else f"{how} ({', '.join(names)})"
        for how, names in found.items()
    ]


def checkpoints(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The hashes of the decoded checkpoints, for the runs that know them."""
    lines = []
    for run in runs:
        hashes = dict.fromkeys(x[:12] for x in run["checkpoint_sha256"].values() if x)
        if hashes:
            lines.append(
                f"- checkpoint of `{run['arch']}`, seed {run['seed']}: SHA-256 "
                + ", ".join(f"`{x}`..." for x in hashes)
            )
    return lines
