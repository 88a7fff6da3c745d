"""The teacher and the students of distillation.yaml, and the recipe of each run."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import split
from typing import Any

from common import benchmark, refused_flags, student_systems, tasks
from common.benchmark import refuse_below, refuse_open_quotes
from common.recipe import Recipe
from common.run_options import Options
from common.steps import hash_of
from common.tasks import Task
from common.train_command import lasting

from macaron_fairseq.commands import distill as distill_command

FILE = Path(__file__).with_name("distillation.yaml")
TEACHER = "teacher"


@dataclass(frozen=True)
class Model:
    """A model, and how it is trained; flags go over the task's."""

    arch: str
    tokens: int
    batches: int
    max_update: int
    flags: str = ""
    average: int = -1  # how many checkpoints are averaged; 0: the best one alone; -1: as the task

    def __post_init__(self) -> None:
        """Raise a ValueError where nothing could be trained so."""
        refuse_below(1, tokens=self.tokens, batches=self.batches, max_update=self.max_update)
        refuse_below(-1, average=self.average)
        refuse_open_quotes(flags=self.flags)


@dataclass(frozen=True)
class System(student_systems.System):
    """A way to learn; its flags go over the student's."""

    reads_translations: bool = False


@dataclass(frozen=True)
class Settings:
    """All that distillation.yaml says."""

    teacher: Model
    student: Model
    systems: dict[str, System]  # the first one is the baseline
    distill: str = ""  # flags of `macaron-fairseq distill`
    main: list[str] = field(default_factory=list)  # systems whose comparison was planned

    def __post_init__(self) -> None:
        """Raise a ValueError where nothing could be translated so."""
        self.how_translated  # noqa: B018  raises it

    @property
    def baseline(self) -> str:
        """What the others are compared with."""
        return next(iter(self.systems))

    @property
    def how_translated(self) -> dict[str, Any]:
        """All options of `macaron-fairseq distill`, as `distill` gives them."""
        needed = ["--teacher", "x", "--data", "x", "-o", "x"]
        return vars(benchmark.parsed(distill_command, "distill", self.distill, *needed))


def read(path: Path = FILE) -> Settings:
    """The settings; ends the program with a sentence where the file is not as it should be."""
    found = benchmark.checked(Settings, whole(path), path)
    student_systems.refuse_bad(found.systems, found.main, path)
    if TEACHER in found.systems:
        sys.exit(f"{path}: systems should name students, and none of them {TEACHER}")
    for name, how in found.systems.items():
        if how.merges and how.reads_translations:
            sys.exit(f"{path}: {name} reads translations, which have the teacher's BPE: no merges")
    return found


def whole(path: Path, above: Sequence[Path] = ()) -> Any:
    """What the file says, over what its `base` says if it names one.

    A base is next to the file, or else next to distillation.yaml. Ends the program where there is
    none, or where it goes over one of the files `above` it.
    """
    said = benchmark.read_yaml(path)
    if not isinstance(said, dict) or "base" not in said:
        return said
    name, above = said.pop("base"), [*above, path.resolve()]
    if not isinstance(name, str):
        sys.exit(f"{path}: base should be the name of a file, not {name!r}")
    places = [x for x in (path.parent / name, FILE.parent / name) if x.is_file()]
    base = next((x for x in places if x.resolve() not in above), None)
    if places and not base:
        sys.exit(f"{path}: its base {name} goes over this file: name another one")
    under = whole(base or path.parent / name, above)
    if not isinstance(under, dict):
        sys.exit(f"{path}: its base {name} has no settings")
    return benchmark.merged(under, said)


def refuse_flags(
    settings: Settings, of_teacher: Collection[int], of_student: Collection[int], path: Path
) -> None:
    """End the program at a flag in the file that the recipe would not know of.

    Args:
        settings: what is in the file.
        of_teacher: how many of its checkpoints are averaged, for each task.
        of_student: the same of a student.
        path: the file.
    """
    flags = {
        TEACHER: (settings.teacher.flags, of_teacher),
        "the student": (settings.student.flags, of_student),
        **{name: (how.flags, of_student) for name, how in settings.systems.items()},
    }
    for name, (theirs, averages) in flags.items():
        if sentence := refused_flags.refusal(split(theirs), averages):
            sys.exit(f"{path}: the flags of {name}: {sentence}")


@dataclass(frozen=True, kw_only=True)
class SystemRecipe(Recipe):
    """The recipe of one run; all runs of a task with the same BPE share its data."""

    system: str
    reads_translations: bool
    has_own_bpe: bool
    learns: tuple[str, ...]  # the flags of the system alone
    user_flags: tuple[str, ...]  # of fairseq-train after --, which are in `extra` too
    baseline: str
    test: str  # the test set that is compared
    given_teacher: Path | None  # a checkpoint that is taken as the teacher's run

    @property
    def asks_teacher(self) -> bool:
        """Whether training needs the teacher's checkpoint."""
        return any("{teacher}" in word for word in self.learns)

    @property
    def data(self) -> Path:
        """The task's data, with the student's BPE, or the teacher's translations."""
        if self.has_own_bpe:
            return self.preparation.data
        return self.work / ("distilled" if self.reads_translations else "data")

    @property
    def preparation(self) -> "SystemRecipe":
        """The recipe that prepares the data."""
        return student_systems.preparation(self, self.has_own_bpe)

    def run(self, arch: str, seed: int) -> Path:
        """The folder of one training."""
        return self.work / "runs" / self.system / f"seed{seed}"

    @property
    def checkpoint(self) -> Path:
        """What is scored, and what teaches."""
        return self.folder_of_run / self.checkpoint_name

    @property
    def note_of_given(self) -> Path:
        """A file that says that the teacher's run was given, and not trained."""
        return self.folder_of_run / "given"

    @property
    def result(self) -> Path:
        """What is kept of the finished run."""
        return self.work / "results" / f"{self.system}-seed{self.seeds[0]}.json"

    @property
    def speed(self) -> Path:
        """How fast it translates."""
        return self.work / "speed" / self.result.name


def recipe(
    task: Task,
    settings: Settings,
    system: str,
    seed: int,
    options: Options,
    given_teacher: Path | None = None,
) -> SystemRecipe:
    """The recipe that trains and scores one run; a given teacher is only scored."""
    model = settings.teacher if system == TEACHER else settings.student
    how = System() if system == TEACHER else settings.systems[system]
    given = given_teacher if system == TEACHER else None
    work = options.work / task.name
    learns = student_systems.flags_of(how, teacher_of(work), work / "data")
    training = replace(
        task.benchmark.training,
        archs=[model.arch],
        tokens=model.tokens,
        batches=model.batches,
        max_update=model.max_update,
        more_flags=f"{task.benchmark.training.more_flags} {model.flags}",
    )
    task = replace(task, benchmark=replace(task.benchmark, training=training))
    average = task.benchmark.evaluation.average if model.average < 0 else model.average
    return tasks.recipe_of(
        SystemRecipe,
        task,
        seed,
        options,
        archs=[model.arch],
        merges=how.merges or task.benchmark.preprocessing.merges,
        average=0 if given else average,
        extra=[*learns, *options.extra],
        system=system,
        reads_translations=how.reads_translations,
        has_own_bpe=bool(how.merges),
        learns=tuple(split(how.flags)),
        user_flags=options.extra,
        baseline=how.baseline or settings.baseline,
        test=task.kind.test,
        given_teacher=given,
    )


def teacher_of(work: Path) -> Path:
    """The teacher's checkpoint in the folder of a task, whatever made it."""
    return work / TEACHER / "checkpoint.pt"


def settings_hash(task: Task, settings: Settings, recipe: SystemRecipe) -> str:
    """Stands for what a run depends on, next to data, seed, precision and the teacher's SHA-256."""
    if recipe.given_teacher:  # its SHA-256 stands for how it was trained
        return hash_of("given", repr(task.benchmark.evaluation))[:12]
    model = settings.teacher if recipe.system == TEACHER else settings.student
    training = task.benchmark.training
    words = [
        training.flags,
        training.more_flags,
        repr(replace(model, flags=" ".join(lasting(split(model.flags))))),
        repr(task.benchmark.evaluation),
    ]
    words.append(str(recipe.average))
    words += [f"{recipe.merges} merges"] * recipe.has_own_bpe
    own = lasting([*recipe.learns, *recipe.user_flags])
    translations = [settings.distill] * recipe.reads_translations
    return hash_of(*words, recipe.system, *own, str(recipe.max_update), *translations)[:12]
