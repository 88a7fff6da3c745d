"""Small records of finished runs, so that a report can be drawn of what several machines have made.

A file holds a line for each run: its scores on dev and what they are of, but no answers.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common import benchmark
from common.steps import alone_in

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError

HINT = "it should be what --records has written"


class Key(NamedTuple):
    """What no two runs of a file share."""

    arch: str
    pretrained: bool
    task: str
    rate: str  # the learning rate
    seed: int


@dataclass(frozen=True)
class Record:
    """A finished run."""

    arch: str
    pretrained: bool
    task: str
    rate: str
    seed: int
    scores: dict[str, float]  # on dev, by metric, in per cent
    settings: str  # stands for the flags of its training and for its data
    start: str  # stands for the model that it started from; "" from scratch
    pretraining: str  # stands for the settings and the text of that model's training
    updates: int
    seconds: float
    date: str
    environment: dict[str, Any]

    @property
    def key(self) -> Key:
        """Which run it is."""
        return Key(self.arch, self.pretrained, self.task, self.rate, self.seed)


def read(path: Path) -> dict[Key, Record]:
    """The records of a file; none where there is no file.

    Raises:
        UserError: if the file is damaged, or holds a run twice.
    """
    if not path.exists():
        return {}
    content = files.load_json(path, HINT)
    try:
        found: list[Record] = benchmark.typed(list[Record], content, "the file")
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    by_key = {one.key: one for one in found}
    if len(by_key) < len(found):
        raise UserError(f"{path} holds a run twice: remove one of the two")
    return by_key


def add(path: Path, new: Iterable[Record]) -> None:
    """Add records to a file, one process after the other.

    Raises:
        UserError: if it holds another result of one of these runs.
    """
    with alone_in(path.parent):
        kept = read(path)
        others = {}
        for one in new:
            if one.key not in kept:
                others[one.key] = one
            elif result(kept[one.key]) != result(one):
                raise UserError(
                    f"{path} holds another result of {one.task}, {one.arch}, learning rate "
                    f"{one.rate}, seed {one.seed}: name another file with --records, or remove one "
                    "of the two"
                )
        if others:
            whole = {**kept, **others}
            lines = (json.dumps(asdict(whole[key]), separators=(",", ":")) for key in sorted(whole))
            files.write(path, "[\n " + ",\n ".join(lines) + "\n]\n")


def result(one: Record) -> object:
    """What a run is and what it gave, without where and when it was made."""
    return one.scores, one.settings, one.start
