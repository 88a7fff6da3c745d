"""The flags of a fairseq-train, as a table of names and values."""

import shlex
from ast import literal_eval
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from macaron_fairseq.schemes import splitting

# Where things lie changes nothing in what is trained; the data itself is compared by its hashes.
# "" stands for what precedes the first flag: the folder with the data.
PLACES = ("", "--user-dir", "--save-dir", "--tensorboard-logdir")
# What a student learns from, next to its data: files and a data folder. They may move, too, since
# the manifest has their hashes.
LEARNT_FROM = (
    "--teacher",
    "--teacher-data",
    "--trajectory-source-phrases",
    "--trajectory-target-phrases",
)
# How the batch of an update is divided among devices: the recipes hold the batch itself.
DEVICES = (
    "--max-tokens",
    "--update-freq",
    "--distributed-world-size",
    "--distributed-init-method",
    "--distributed-no-spawn",
    "--distributed-backend",
    "--ddp-backend",
)
# Where a training ends may be moved; up to there it is the same (see `falls_until_the_end`).
LIMITS = ("--max-update", "--max-epoch", "--stop-time-hours")
# What ends a training that --max-update does not.
ENDS = ("--max-epoch", "--stop-time-hours", "--patience", "--stop-min-lr")
# When it saves, and so validates: another checkpoint may be the best, or averaged.
WHEN_SAVED = ("--save-interval", "--save-interval-updates")
# Which checkpoints there are to choose from.
CHECKPOINTS = (
    *WHEN_SAVED,
    "--keep-last-epochs",
    "--keep-interval-updates",
    "--keep-interval-updates-pattern",
    "--keep-best-checkpoints",
    "--no-epoch-checkpoints",
)
# What else is saved and logged, and how many processes read the data.
SAVING = (
    "--no-last-checkpoints",
    "--wandb-project",
    "--log-interval",
    "--log-file",
    "--log-format",
    "--no-progress-bar",
    "--num-workers",
)
# What is kept instead of computed again.
CACHES = ("--teacher-memory",)
CHANGEABLE = (*PLACES, *DEVICES, *LIMITS, *CHECKPOINTS, *SAVING, *CACHES)
# What a report names with the architecture.
SCHEME = (
    *("--macaron-scheme", "--macaron-encoder-scheme", "--macaron-decoder-scheme"),
    "--macaron-substep",
)


def falls_until_the_end(flags: Mapping[str, Sequence[str]]) -> bool:
    """Whether the curve of the learning rate depends on where a training ends; see `parse`."""
    scheduler = " ".join(flags.get("--lr-scheduler", ()))
    if scheduler == "tri_stage":
        return "--phase-ratio" in flags
    if scheduler == "cosine":
        period = flags.get("--lr-period-updates", ())
        return not (period and is_number(period[0]) and float(period[0]) > 0)
    return scheduler == "polynomial_decay" and "--total-num-update" not in flags


def scheme_of(flags: Mapping[str, Sequence[str]]) -> str:
    """The scheme, as ENCODER+DECODER where the two have different ones; see `parse`."""
    whole = [*flags.get("--macaron-scheme", ()), splitting.DEFAULT][0]
    sides = [
        [*flags.get(f"--macaron-{side}-scheme", ()), whole][0] for side in ("encoder", "decoder")
    ]
    return "+".join(dict.fromkeys(sides))


def parse(flags: Sequence[str]) -> dict[str, list[str]]:
    """The values that follow each flag, none for a switch; of a flag given twice, the last.

    `--lr=0.1` is `--lr 0.1`, and `-a` is `--arch`; a negative number is a value. A folder that is
    called data-bin is the data, also after a switch.
    """
    found: dict[str, list[str]] = {}
    name = ""
    for word in flags:
        if word.startswith("-") and not is_number(word):
            name, equals, value = word.partition("=")
            name = "--arch" if name == "-a" else name
            found[name] = [value] if equals else []
        else:
            is_data = PurePath(word).name == "data-bin"
            found.setdefault("" if is_data else name, []).append(word)
    return found


def is_number(word: str) -> bool:
    """Whether it is one, as for `float`."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def is_same(one: Sequence[str] | None, other: Sequence[str] | None) -> bool:
    """Whether a flag has the same values, however they are written; None where it is not given."""
    if one is None or other is None:
        return one is other
    return [*map(meaning, one)] == [*map(meaning, other)]


def meaning(word: str) -> Any:
    """The number that a word writes, or the numbers, or the word itself: 5e-4 is 0.0005."""
    try:
        found = literal_eval(word)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return word
    several = list(found) if isinstance(found, tuple | list) else [found]
    return several if all(type(x) in (int, float) for x in several) else word


def show(name: str, flags: dict[str, list[str]]) -> str:
    """A flag with its values as one types them, or that it is not there."""
    return shlex.join([name, *flags[name]]) if name in flags else f"no {name}"
