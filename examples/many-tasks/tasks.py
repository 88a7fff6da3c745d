"""The tasks of tasks.yaml, the variants of a layer, and what makes a recipe of both."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import benchmark
from benchmark import Benchmark, refuse_below
from many_runs import Options
from options import Recipe
from steps import hash_of

from macaron_fairseq.common.names import look_up
from macaron_fairseq.evaluation.evidence_gallery import Published
from macaron_fairseq.schemes import splitting, substeps

FILE = Path(__file__).with_name("tasks.yaml")
ARCH = "macaron_transformer_tiny"  # of all variants: they differ in --macaron-scheme alone
BASELINE = "lie-trotter"
HALF_DEPTH = "half-depth"
# Flags that `Variant.flags` gives, and those that stand over them.
OF_VARIANT = re.compile(
    "--(macaron-(encoder-|decoder-)?scheme|macaron-substep|(en|de)coder-(layers|.*ffn-embed-dim))"
)


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
    metric: str  # that is compared
    test: str  # on this test set
    ffn: int  # inner width of the baseline's FFN
    layers: int  # of the encoder, and of the decoder
    benchmark: dict[str, Any]  # as a benchmark.yaml
    base: str = ""  # the benchmark.yaml that it goes over
    tuning: Tuning | None = None
    chosen: Setting | None = None  # by tuning

    def __post_init__(self) -> None:
        """Raise a ValueError where there is no model of that size."""
        refuse_below(1, ffn=self.ffn, layers=self.layers)


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


@dataclass(frozen=True)
class Variant:
    """A scheme, with its sub-step and, for equal operations, half the layers."""

    scheme: str
    substep: str = substeps.DEFAULT
    is_half: bool = False

    @property
    def name(self) -> str:
        """As on the command line."""
        parts = [self.scheme, self.substep * (self.substep != substeps.DEFAULT)]
        return "/".join(filter(None, [*parts, HALF_DEPTH * self.is_half]))

    @property
    def folder(self) -> str:
        """As a file's name."""
        return self.name.replace("/", "+")

    def flags(self, kind: Family) -> list[str]:
        """Those of fairseq-train."""
        words = ["--macaron-scheme", self.scheme, "--macaron-substep", self.substep]
        layers = kind.layers // 2 if self.is_half else kind.layers
        for side in ("encoder", "decoder"):
            ffns = splitting.count_ffns(getattr(splitting.get(self.scheme), side))
            words += [f"--{side}-ffn-embed-dim", str(kind.ffn // ffns)]
            words += [f"--{side}-layers", str(layers)]
        return words


def variant(text: str) -> Variant:
    """SCHEME, SCHEME/SUBSTEP or SCHEME/SUBSTEP/half-depth; ends the program at another."""
    scheme, *rest = text.split("/")
    splitting.get(scheme, "--schemes")
    is_half = rest[-1:] == [HALF_DEPTH]
    if is_half:
        rest.pop()
    if len(rest) > 1:
        sys.exit(f"{text} should be SCHEME, SCHEME/SUBSTEP or SCHEME/SUBSTEP/{HALF_DEPTH}")
    substep = rest[0] if rest else substeps.DEFAULT
    substeps.get(substep, "--schemes")
    return Variant(scheme, substep, is_half)


# --- The file ------------------------------------------------------------------------------------


def read(path: Path = FILE) -> dict[str, Task]:
    """The tasks by name; ends the program with a sentence where the file is not as it should be."""
    file = benchmark.read_as(File, path)
    try:
        for name, kind in file.families.items():
            if unknown := [
                x for x in (kind.tuning.tasks if kind.tuning else []) if x not in file.tasks
            ]:
                raise ValueError(
                    f"families/{name}/tuning/tasks names {unknown[0]}, which is no task"
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
        base = benchmark.read_yaml(path.parent / kind.base)
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
            raise ValueError(f"families/{entry.family}/{what} is {test}, which is no set")
    if kind.metric not in (scored := whole.evaluation.metrics):
        raise ValueError(
            f"families/{entry.family}/metric is {kind.metric}, but runs of {name} are scored by "
            f"{', '.join(scored)}"
        )
    for one in whole.published:
        if not {"arch", "test", "metric", "score", "source"} <= {*one}:
            raise ValueError(
                f"tasks/{name}/benchmark/published should say arch, test, metric, score and source"
            )
    source, target = entry.pair.split("-")
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


# --- A recipe for each run -----------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecipe(Recipe):
    """The recipe of one run; all runs of a task share its data."""

    variant: Variant = field(default_factory=lambda: Variant(BASELINE))
    size: str = ""  # the baseline's layers and inner width
    place: str = "runs"  # of the runs, in the folder of the task

    def run(self, arch: str, seed: int) -> Path:
        """The folder of one training."""
        return self.work / self.place / self.variant.folder / f"seed{seed}"


def recipe(
    task: Task,
    variant: Variant,
    seed: int,
    setting: Setting | None,
    options: Options,
    is_tuning: bool = False,
) -> RunRecipe:
    """The recipe that trains and scores one run."""
    described, kind = task.benchmark, task.kind
    training, work = described.training, options.work / task.name
    if setting:
        assert kind.tuning
        flags = f"--attention-dropout {setting.dropout:g} --activation-dropout {setting.dropout:g}"
        training = replace(
            training,
            tokens=setting.tokens,
            max_update=kind.tuning.tokens // setting.tokens,
            flags=f"{training.flags} {flags}",
        )
        described = replace(described, training=training)
    return RunRecipe(
        name=task.name,
        folder=options.file.parent,
        benchmark=described,
        source=task.source,
        target=task.target,
        sets=described.sets_of(task.source, task.target),
        is_usual=options.is_usual,
        stages=["train", "evaluate"],  # what fairseq does not know, it refuses itself
        work=work,
        given=options.given and options.given / kind.folder,
        mirrors=[],
        archs=[ARCH],
        seeds=[seed],
        merges=described.preprocessing.merges,
        max_update=options.max_update or training.max_update,
        batch=training.tokens * training.batches,
        max_tokens=options.max_tokens or training.tokens,
        max_tokens_is_given=options.max_tokens is not None,
        average=described.evaluation.average,
        precision="fp32" if options.cpu else "fp16",
        cpu=options.cpu,
        gpus=None,
        processes=1,
        workers=1,
        dry_run=False,
        extra=[*variant.flags(kind), *options.extra],
        variant=variant,
        size=f"{kind.layers} layers, FFN {kind.ffn}",
        place=f"tuning/{setting.name}" if is_tuning and setting else "runs",
    )


def settings(recipe: RunRecipe, options: Options) -> str:
    """Stands for all that the runs of a task share, next to its data: no scheme, no seed."""
    own, evaluation = recipe.benchmark.training, recipe.benchmark.evaluation
    words = [*own.words(), str(recipe.batch), str(recipe.max_update), *options.extra]
    words += [recipe.size, recipe.precision, str(recipe.average)]
    return hash_of(*words, evaluation.decode, evaluation.score)[:12]


def refuse_overriding(extra: Sequence[str]) -> None:
    """End the program where a flag would make a run another than --schemes says."""
    for word in extra:
        if OF_VARIANT.match(flag := word.partition("=")[0]):
            sys.exit(
                f"{flag} would override what --schemes and the file of tasks say: leave it out"
            )


def published(tasks: Iterable[Task]) -> list[Published]:
    """What others published for these tasks."""
    return [
        Published(task.name, x["test"], x["metric"], x["score"], x["arch"], x["source"])
        for task in tasks
        for x in task.benchmark.published
    ]


def every_point(plan: Tuning) -> list[Setting]:
    """All settings that any round of tuning may come to."""
    names = [x.name for x in fields(Setting)]
    values = {name: dict.fromkeys([getattr(plan.start, name)]) for name in names}
    for some in plan.rounds:
        for name, theirs in some.items():
            values[name].update(dict.fromkeys(theirs))
    return points(plan.start, {name: [*theirs] for name, theirs in values.items()})


def points(start: Setting, values: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """The settings of one round of tuning: those numbers over the best so far."""
    return [
        replace(start, **dict(zip(values, some, strict=True))) for some in product(*values.values())
    ]
