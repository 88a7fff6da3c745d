"""What it takes to repeat a report's runs: metrics, machines, code, data, checkpoints, flags.

A line is text; what stands between backticks is code.
"""

from collections.abc import Sequence

from macaron_fairseq.evaluation.report.verdict import Summary

COMMAND = (
    'fairseq-train DATA/data-bin --user-dir "$(macaron-fairseq user-dir)" \\\n'
    "  --save-dir RUN --arch ARCH --seed SEED"
)
BY_TORCHRUN = (
    "torchrun started it in as many processes as `--distributed-world-size` says; without "
    'GPUs each needs `--distributed-rank "$RANK"` too.'
)
ONLY_ARCH = (
    "The runs differ in `--arch`, `--seed` and where they are saved, and in no other flag that "
    "changes a model."
)


def signatures(summary: Summary) -> list[str]:
    """The signature of each metric, with the test sets where they have different ones."""
    found: dict[tuple[str, str], list[str]] = {}
    for test in summary["tests"]:
        for metric, signature in test["signatures"].items():
            found.setdefault((metric, signature), []).append(test["name"])
    return [
        f"{metric}{'' if len(names) == len(summary['tests']) else ' of ' + ', '.join(names)}: "
        f"`{signature}`"
        for (metric, signature), names in found.items()
    ]


def environments(summary: Summary) -> list[str]:
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
        lines.append(f"{when}: {text}" + (f" ({which})" if len(found) > 1 else ""))
    return lines


def environment(start: Summary) -> str:
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


def facts(summary: Summary) -> list[str]:
    """Code, data, decoding and checkpoints."""
    data = summary["data"]
    return [
        f"code: {', '.join(revisions(summary['runs']))}",
        f"data: {data['source']}-{data['target']}, test sets {', '.join(data['tests'])}, "
        f"fingerprint `{data['fingerprint']}`",
        *(f"translated with {x}" for x in decodings(summary["tests"])),
        *checkpoints(summary["runs"]),
    ]


def command(summary: Summary) -> str:
    """The command that trained, with the flags that all runs share."""
    return " \\\n".join([COMMAND, *(f"  {flag}" for flag in summary["flags"]["common"])])


def remarks(summary: Summary) -> list[str]:
    """What the command does not say."""
    flags = summary["flags"]
    return [
        *([BY_TORCHRUN] if is_by_torchrun(flags["common"]) else []),
        *([] if flags["differing"] else [ONLY_ARCH]),
    ]


def is_by_torchrun(flags: Sequence[str]) -> bool:
    """Whether a run with those flags had several processes."""
    sizes = [flag for flag in flags if flag.startswith("--distributed-world-size ")]
    return bool(sizes) and not sizes[-1].endswith(" 1")


def revisions(runs: Sequence[Summary]) -> list[str]:
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


def decodings(tests: Sequence[Summary]) -> list[str]:
    """Which checkpoints were decoded and how, with the test sets where that is not one for all."""
    found: dict[str, list[str]] = {}
    for test in tests:
        if test["decoding"]:
            found.setdefault(test["decoding"], []).append(test["name"])
    return [
        how if len(names) == len(tests) else f"{how} ({', '.join(names)})"
        for how, names in found.items()
    ]


def checkpoints(runs: Sequence[Summary]) -> list[str]:
    """The hashes of the decoded checkpoints, for the runs that know them."""
    lines = []
    for run in runs:
        hashes = dict.fromkeys(x[:12] for x in run["checkpoint_sha256"].values() if x)
        if hashes:
            lines.append(
                f"checkpoint of `{run['arch']}`, seed {run['seed']}: SHA-256 "
                + ", ".join(f"`{x}`..." for x in hashes)
            )
    return lines
