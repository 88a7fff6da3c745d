"""Small records of finished runs, with what a comparison needs of each sentence.

A run is known by its task, its scheme and its seed. A file holds runs of one task, so that what
they share stands in it once. The file of a single run has the same form. Folders of such files are
read together: `read`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted

Key = tuple[str, str, int]  # task, scheme and seed
EDITS, NGRAMS = "edits", "n-grams"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
# Of a whole test set the sums over so many parts are kept, where n-grams are counted.
GROUPS = 100
COUNTS = 8  # of each: its 1- to 4-grams, and those that match

TASK_FIELDS = {"task": str, "metric": str, "test": str, "items": dict, "environments": list}
RUN_FIELDS: dict[str, type | tuple[type, ...]] = {
    **{"scheme": str, "seed": int, "settings": str, "data": str, "command": str, "date": str},
    **{"scores": dict, "signatures": dict, "items": (str, list), "environment": int},
    **{"updates": int, "seconds": (int, float), "parameters": int},
}
OPTIONAL_FIELDS = {"looping": int, "cut_off": int, "preparation": str}  # which older records lack


@dataclass(frozen=True)
class Items:
    """What the items of a task's test set are, the same for all runs.

    `edits` has a digit for each item: its edits, "z" for 35; `reference` holds the lengths of the
    references in the same form. Where one is greater, it is a list. Of `n-grams` there are sums
    over groups of items: how many 1- to 4-grams there are, and how many match; `reference` holds
    the lengths of the references.
    """

    kind: str
    count: int  # of items
    sha256: str  # of the reference
    reference: str | list[int]


@dataclass(frozen=True)
class Run:
    """A finished run of one task, scheme and seed."""

    task: str
    scheme: str
    seed: int
    metric: str  # what is compared
    test: str  # on which test set
    kinds: Items
    items: str | list[int] | list[list[int]]
    scores: dict[str, dict[str, float]]  # by test set and metric
    signatures: dict[str, str]  # by metric
    settings: str  # a hash of all that the runs of a task share
    data: str  # the fingerprint of the prepared data
    updates: int
    seconds: float  # in updates
    parameters: int
    environment: dict[str, Any]  # hardware, versions and revision of the code
    command: str
    date: str
    looping: int | None = None  # translations of the test set, see `failures`; None: not known
    cut_off: int | None = None  # those that reached the maximum length
    preparation: str | None = None  # a hash of how the data was made of which files

    @property
    def score(self) -> float:
        """The score that is compared."""
        return self.scores[self.test][self.metric]

    @property
    def key(self) -> Key:
        """What no two runs share."""
        return self.task, self.scheme, self.seed


def digits(numbers: Iterable[int]) -> str | list[int]:
    """A digit for each number from 0 to 35; a list where one is greater."""
    found = [*map(int, numbers)]
    return found if any(x > 35 for x in found) else "".join(DIGITS[x] for x in found)


def numbers(kept: Any) -> list[int]:
    """The numbers that `digits` keeps."""
    return [int(x, 36) if isinstance(x, str) else int(x) for x in kept]


# --- Files ---------------------------------------------------------------------------------------


def write(path: Path, runs: Sequence[Run]) -> None:
    """Write runs of one task to a file, a line for each.

    Raises:
        UserError: if they are of different tasks or not comparable, or the file cannot be written.
    """
    refuse_different(runs)
    first = runs[0]
    environments: list[dict[str, Any]] = []
    lines = []
    for run in sorted(runs, key=lambda run: (run.scheme, run.seed)):
        if run.environment not in environments:
            environments.append(run.environment)
        of_run = {name: getattr(run, name) for name in RUN_FIELDS if name != "environment"}
        optional = {name: getattr(run, name) for name in OPTIONAL_FIELDS}
        optional = {name: value for name, value in optional.items() if value is not None}
        environment = environments.index(run.environment)
        lines.append({**of_run, **optional, "environment": environment})
    shared = {
        "task": first.task,
        "metric": first.metric,
        "test": first.test,
        "items": vars(first.kinds),
        "environments": environments,
    }
    head = [f"{json.dumps(name)}: {one_line(value)}" for name, value in shared.items()]
    body = ",\n".join("  " + one_line(line) for line in lines)
    files.write(path, "{\n" + ",\n".join(head) + ',\n"runs": [\n' + body + "\n]\n}\n")


def one_line(value: Any) -> str:
    """As JSON, without line ends and with few spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def read(folders: Iterable[Path]) -> list[Run]:
    """The runs of all files in these folders, or of files, each run once.

    Raises:
        UserError: if a file is damaged, or two hold the same run with different results.
    """
    found: dict[Key, Run] = {}
    for folder in folders:
        if not folder.exists():
            raise UserError(f"{folder} does not exist: name a folder with records")
        paths = sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]
        for path in paths:
            for run in read_file(path):
                other = found.setdefault(run.key, run)
                if other.items != run.items or other.settings != run.settings:
                    raise UserError(
                        f"{run.task}, {run.scheme}, seed {run.seed} stands in {path} and elsewhere "
                        "with other results: remove one of the two"
                    )
    return sorted(found.values(), key=lambda run: run.key)


def read_file(path: Path) -> list[Run]:
    """The runs of one file."""
    hint = "it should hold records of examples/many-tasks"
    content = files.read_json(path, {**TASK_FIELDS, "runs": list}, hint)
    try:
        kinds = Items(**content["items"])
        check_items(kinds)
        runs = [of_line(line, content, kinds, path) for line in content["runs"]]
    except UserError:  # which is a ValueError, and a sentence already
        raise
    except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): {hint}") from error
    return runs


def check_items(kinds: Items) -> None:
    """Raise a `ValueError` unless the references of a task's items are as they should be."""
    if kinds.kind not in (EDITS, NGRAMS):
        raise ValueError(f"items of the kind '{kinds.kind}'")
    if kinds.kind == EDITS and len(numbers(kinds.reference)) != kinds.count:
        raise ValueError(f"{len(kinds.reference)} references instead of {kinds.count}")


def of_line(line: Mapping[str, Any], content: Mapping[str, Any], kinds: Items, path: Path) -> Run:
    """A run as a line of a file says it."""
    for name, kind in RUN_FIELDS.items():
        if not isinstance(line.get(name), kind):
            raise UserError(f"a run in {path} has no '{name}', or not of the right kind")
    optional: dict[str, Any] = {name: line.get(name) for name in OPTIONAL_FIELDS}
    for name, kind in OPTIONAL_FIELDS.items():
        if not isinstance(optional[name], kind | None):
            raise UserError(f"a run in {path} has '{name}', which is not of the right kind")
    length = len(kinds.reference)
    if len(line["items"]) != length:
        raise UserError(
            f"a run in {path} has {counted(len(line['items']), 'item')} instead of {length}"
        )
    if kinds.kind == EDITS:
        numbers(line["items"])  # a ValueError if one is not a digit
    elif any(len(row) != COUNTS for row in line["items"]):
        raise ValueError(f"a group of items with other than {COUNTS} counts")
    float(line["scores"][content["test"]][content["metric"]])
    str(line["signatures"][content["metric"]])
    values = {name: line[name] for name in RUN_FIELDS if name != "environment"}
    environment = content["environments"][line["environment"]]
    if missing := {"cpu", "gpus", "threads"} - environment.keys():
        raise KeyError(f"a machine without {', '.join(sorted(missing))}")
    shared = {name: content[name] for name in ("task", "metric", "test")}
    return Run(**shared, **values, **optional, kinds=kinds, environment=environment)


# --- What can be compared ------------------------------------------------------------------------


def refuse_different(runs: Sequence[Run]) -> None:
    """Raise a `UserError` unless the runs are of one task, one data set and one setting."""
    first = runs[0]
    for run in runs[1:]:
        if difference := different(first, run):
            raise UserError(
                f"{name(first)} and {name(run)} cannot be compared: {difference} differ"
            )


def different(one: Run, other: Run) -> str:
    """What differs between two runs that are to be compared; "" if nothing does."""
    pairs = {
        "their tasks": (one.task, other.task),
        "their data": (one.data, other.data),
        "their references": (one.kinds, other.kinds),
        "their settings": (one.settings, other.settings),
        "their metrics": ((one.metric, one.test), (other.metric, other.test)),
        "their signatures": (one.signatures, other.signatures),
    }
    return next((said for said, (a, b) in pairs.items() if a != b), "")


def name(run: Run) -> str:
    """A run in words."""
    return f"{run.task} {run.scheme} seed {run.seed}"
