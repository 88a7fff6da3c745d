"""What fairseq-train's JSON log says of a training run."""

import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Curve = list[tuple[int, float]]

# Greedy, so that what a kill left of an earlier line does not matter.
FIGURES = re.compile(r".*\| (\S+) \| (\{.*\})\s*$")
OF_TRAINING = "train_inner", "train"
PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")


@dataclass
class Training:
    """One training; None where its log does not tell.

    Losses are in bits per token; `words_per_second` is the median over the log, of target tokens.

    `hours` is the time in updates, fairseq's `train_wall`: each update that led to the model counts
    once, and starting, validating and saving do not. A run that went on from a checkpoint
    between two lines of the log, or whose log breaks off, is known to one such interval. fairseq's
    `wall` would not do: it starts from 0 in each process, and stays 0 in one that resumed within an
    epoch. There the stopwatch is restored without being started (`StopwatchMeter.load_state_dict`).
    """

    parameters: int | None
    updates: int | None
    epochs: float | None
    best_valid_loss: float | None
    words_per_second: float | None
    hours: float | None
    train_curve: Curve
    valid_curve: Curve


@dataclass(frozen=True)
class Line:
    """The figures that fairseq logged after an update."""

    kind: str  # train_inner, train (a whole epoch) or valid
    update: int
    figures: dict[str, Any]


def parse(line: str, valid: str = "valid") -> Line | None:
    """What a line of the log says; None of other or garbled lines.

    Args:
        line: of the log.
        valid: the validation set. Its figures are called `valid_...`, whatever it is called.
    """
    match = FIGURES.match(line)
    if not match or match[1] not in (*OF_TRAINING, valid):
        return None
    kind = match[1] if match[1] in OF_TRAINING else "valid"
    try:
        figures = json.loads(match[2])
        if kind == "valid":
            figures = {f"valid_{name.removeprefix(f'{valid}_')}": x for name, x in figures.items()}
        updates = figures["num_updates" if kind == "train_inner" else f"{kind}_num_updates"]
        return Line(kind, int(updates), figures)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def read(path: Path, valid: str = "valid") -> Training:
    """Read a log of one or several starts; what a later start did again replaces the earlier.

    Args:
        path: of the log.
        valid: the validation set, as --valid-subset has it.
    """
    parameters = None
    found: dict[str, dict[int, dict[str, Any]]] = {"train_inner": {}, "train": {}, "valid": {}}
    latest = 0
    for line in path.read_text("utf-8", errors="replace").split("\n"):
        if said_so := PARAMETERS.search(line):
            parameters = int(said_so[1].replace(",", ""))
        if not (said := parse(line, valid)):
            continue
        if said.update < latest:  # resumed from an earlier checkpoint
            for kind, lines in found.items():
                found[kind] = {n: line for n, line in lines.items() if n <= said.update}
        latest = said.update
        found[said.kind][said.update] = said.figures
    inner, epochs = found["train_inner"], found["train"]
    updates = max([*inner, *epochs], default=None)
    speeds = [speed for _, speed in curve(inner, "wps") if speed]
    valid_curve = curve(found["valid"], "valid_loss")
    return Training(
        parameters=parameters,
        updates=updates,
        epochs=epochs_until(updates, inner, epochs),
        best_valid_loss=min((loss for _, loss in valid_curve), default=None),
        words_per_second=statistics.median(speeds) if speeds else None,
        hours=hours_in_updates(inner, epochs),
        train_curve=curve(inner, "loss"),
        valid_curve=valid_curve,
    )


def curve(lines: dict[int, dict[str, Any]], name: str) -> Curve:
    """The finite values of one figure by the number of updates."""
    points = []
    for update, line in lines.items():
        try:
            value = float(line[name])
        except (KeyError, TypeError, ValueError):
            continue
        if math.isfinite(value):
            points.append((update, value))
    return points


def epochs_until(updates: int | None, inner: dict, epochs: dict) -> float | None:
    """How many passes over the data there were."""
    # The last update need not be one that was logged.
    passes = [x for x in curve(inner, "update") or curve(epochs, "epoch") if x[0]]
    if updates is None or not passes:
        return None
    update, passed = passes[-1]
    return passed * updates / update


def hours_in_updates(inner: dict, epochs: dict) -> float | None:
    """Time in updates: of whole epochs, whose rounding is the finer, and of what follows them."""
    # An epoch that was resumed after its end was logged is logged once more, with its whole time.
    whole = {epochs[n].get("epoch"): seconds for n, seconds in curve(epochs, "train_train_wall")}
    last = max(epochs, default=0)
    rest = [seconds for n, seconds in curve(inner, "train_wall") if n > last]
    return (sum(whole.values()) + sum(rest)) / 3600 if whole or rest else None
