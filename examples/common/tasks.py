"""The tasks of a tasks.yaml, and what the recipes of their runs share."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import benchmark
from common.benchmark import Benchmark, refuse_below
from common.recipe import RecipeT
from common.run_options import Options
from macaron_fairseq.common.names import look_up
from macaron_fairseq.evaluation.evidence.evidence_gallery import Published
from macaron_fairseq.evaluation.scores.metrics import METRICS

FILE = Path(__file__).resolve().parents[1] / "many-tasks" / "tasks.yaml"
ARCH = "macaron_transformer_tiny"  # that --schemes vary
COMPARED = [x.title for x in METRICS.values() if x.has_counts]  # which a record keeps


@dataclass(frozen=True)
class Setting:
    """What is tuned: tokens of an update, and the dropout inside attention and FFN."""

    tokens: int
    dropout: float

    def __post_init__(self) -> None:
        """Raise a ValueError where nothing could be trained so."""
        refuse_below(1, tokens=self.tokens)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout should be a probability below 1, not {self.dropout:g}")

    def __str__(self) -> str:
        return f"{self.tokens} tokens, dropout {self.dropout:g}"

    @property
    def name(self) -> str:
        """For a folder."""
        return f"tokens{self.tokens}-dropout{self.dropout:g}"


@dataclass(frozen=True)
class Tuning:
    """How a family's setting is found: one of its numbers after the other, on dev sets alone."""

    tasks: list[str]
    schemes: list[str]
    seed: int  # which no scored run has
    dev: str  # the test set that decides
    start: Setting
    rounds: list[dict[str, list[Any]]]  # the values of one number of the setting
    tokens: int  # that each training sees, whatever its batch

    def __post_init__(self) -> None:
        """Raise a ValueError where there is nothing to choose from."""
        if not (self.tasks and self.schemes and self.rounds):
            raise ValueError("tasks, schemes and rounds should not be empty")
        for name, values in (item for some in self.rounds for item in some.items()):
            if not values:
                raise ValueError(f"rounds has no values of {name}")
            for value in values:
                point = benchmark.typed(Setting, {**vars(self.start), name: value}, "rounds")
                if point.tokens > self.tokens:
                    raise ValueError(f"tokens leaves no update of {point.tokens} tokens")


@dataclass(frozen=True)
class Family:
    """Tasks of one kind."""

    folder: str  # in that of --from
    metric: str  # in which schemes are compared
    test: str  # the test set on which they are
    ffn: int  # inner width of the baseline's FFN
    layers: int  # of the encoder, and of the decoder
    benchmark: dict[str, Any]  # as a benchmark.yaml
    base: str = ""  # the benchmark.yaml that it goes over; from this file, or from tasks.yaml
    tuning: Tuning | None = None
    chosen: Setting | None = None  # by tuning

    def __post_init__(self) -> None:
        """Raise a ValueError where there is no model of that size."""
        refuse_below(1, ffn=self.ffn, layers=self.layers)
        if self.ffn % 2:
            raise ValueError(f"ffn is {self.ffn}: make it even, since two FFNs of a layer share it")
        if self.chosen and not self.tuning:
            raise ValueError("chosen needs tuning, which says how many tokens a training sees")


@dataclass(frozen=True)
class Entry:
    """A task of a family."""

    family: str
    pair: str
    benchmark: dict[str, Any] = field(default_factory=dict)  # over the family's


@dataclass(frozen=True)
class File:
    """All that tasks.yaml says."""

    families: dict[str, Family]
    tasks: dict[str, Entry]


@dataclass(frozen=True)
class Task:
    """A task with all that its family says."""

    name: str
    family: str
    source: str
    target: str
    kind: Family
    benchmark: Benchmark


def read(path: Path = FILE) -> dict[str, Task]:
    """The tasks by name; ends the program with a sentence where the file is not as it should be."""
    file = benchmark.read_as(File, path)
    try:
        for name, kind in file.families.items():
            if unknown := [
                x for x in (kind.tuning.tasks if kind.tuning else []) if x not in file.tasks
            ]:
                raise ValueError(
                    f"families/{name}/tuning/tasks names {unknown[0]}, which is not a task"
                )
        return {name: task(file, name, entry, path) for name, entry in file.tasks.items()}
    except ValueError as error:
        sys.exit(f"{path}: {error}")


def task(file: File, name: str, entry: Entry, path: Path) -> Task:
    """One task; raises a ValueError where its entry is not as it should be."""
    if not re.fullmatch("[a-z0-9-]+", name):
        raise ValueError(f"tasks/{name} should be named in lower case, digits and hyphens")
    if not re.fullmatch("[a-z]{2,3}-[a-z]{2,3}", entry.pair):
        raise ValueError(f"tasks/{name}/pair should be S-T, such as en-de, not {entry.pair}")
    if entry.family not in file.families:
        known = ", ".join(file.families)
        raise ValueError(f"tasks/{name}/family is {entry.family}, but there are {known}")
    kind = file.families[entry.family]
    described = benchmark.merged(kind.benchmark, entry.benchmark)
    if kind.base:
        found = path.parent / kind.base
        base = benchmark.read_yaml(found if found.exists() else FILE.parent / kind.base)
        if not isinstance(base, dict):
            raise ValueError(f"families/{entry.family}/base is {kind.base}, which has no settings")
        base.pop("settings", None)
        if entry.pair not in (base.get("pairs") or [])[:1]:
            base.pop("published", None)  # of the first pair
        described = benchmark.merged(base, described)
    described = benchmark.merged({"training": {"archs": [ARCH]}}, described)
    whole = benchmark.typed(Benchmark, described, f"tasks/{name}/benchmark")
    if ARCH not in whole.training.archs:
        raise ValueError(f"tasks/{name}: --schemes are those of {ARCH}: leave out archs")
    wanted = {"test": kind.test} | ({"tuning/dev": kind.tuning.dev} if kind.tuning else {})
    for what, test in wanted.items():
        if test not in whole.sets:
            raise ValueError(f"families/{entry.family}/{what} is {test}, which is not a set")
    if kind.metric not in (scored := whole.evaluation.metrics):
        raise ValueError(
            f"families/{entry.family}/metric is {kind.metric}, but runs of {name} are scored by "
            f"{', '.join(scored)}"
        )
    if kind.metric not in COMPARED:
        raise ValueError(
            f"families/{entry.family}/metric is {kind.metric}, which cannot be bootstrapped: "
            f"choose from {', '.join(COMPARED)}"
        )
    for one in whole.published:
        if not {"arch", "test", "metric", "score", "source"} <= {*one}:
            raise ValueError(
                f"tasks/{name}/benchmark/published should say arch, test, metric, score and source"
            )
        if not isinstance(one["score"], int | float):
            raise ValueError(f"tasks/{name}/benchmark/published has a score that is no number")
    source, target = entry.pair.split("-")
    try:
        whole.check_languages(source, target)
    except ValueError as error:
        raise ValueError(f"tasks/{name}: {error}") from error
    return Task(name, entry.family, source, target, kind, whole)


def chosen(tasks: Mapping[str, Task], words: Sequence[str], flag: str) -> list[Task]:
    """Tasks by name, or by the beginning of their names, each once."""
    found: dict[str, Task] = {}
    for word in words:
        names = [name for name in tasks if name == word or name.startswith(f"{word}-")]
        for name in names or [word]:
            if name in found:
                sys.exit(f"{flag} names {name} twice")
            found[name] = look_up(tasks, name, "task", flag)
    return [*found.values()]


def kind_of(family: str, tasks: Mapping[str, Task]) -> Family:
    """What all tasks of a family share."""
    return next(task.kind for task in tasks.values() if task.family == family)


def published(tasks: Iterable[Task]) -> list[Published]:
    """What others published for these tasks."""
    return [
        Published(task.name, x["test"], x["metric"], x["score"], x["arch"], x["source"])
        for task in tasks
        for x in task.benchmark.published
    ]


def recipe_of(kind: type[RecipeT], task: Task, seed: int, options: Options, **more: Any) -> RecipeT:
    """The recipe that trains and scores one run of a task, with what `more` says of it."""
    described, training = task.benchmark, task.benchmark.training
    return kind(
        name=task.name,
        folder=options.file.parent,
        benchmark=described,
        source=task.source,
        target=task.target,
        sets=described.sets_of(task.source, task.target),
        is_usual=options.is_usual,
        stages=["train", "evaluate"],  # what fairseq does not know, it refuses itself
        work=options.work / task.name,
        given=options.given and options.given / task.kind.folder,
        seeds=[seed],
        max_update=options.max_update or training.max_update,
        batch=training.tokens * training.batches,
        max_tokens=options.max_tokens,
        precision="fp32" if options.cpu else "fp16",
        cpu=options.cpu,
        **{
            "merges": described.preprocessing.merges,
            "average": described.evaluation.average,
            **more,
        },
    )
