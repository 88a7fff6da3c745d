"""What is kept of finished runs in a folder, so that another machine need not make them again.

TASK.json           the records of a task's runs
tuning/FAMILY.json  the scores of tuning so far, on development sets

`keep` writes it, `take` puts it into a work folder: both do what --records asks for.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import many_tasks_run
from common import tasks
from common.run_options import Options
from common.steps import alone_in, say
from common.tasks import Setting, Task
from many_tasks_variants import RunRecipe, Variant, every_point, preparation_of, recipe_of

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.evidence import records
from macaron_fairseq.evaluation.evidence.records import Run

FIELDS: dict[str, type | tuple[type, ...]] = {
    **{"task": str, "scheme": str, "tokens": int, "dropout": (int, float)},
    **{"settings": str, "data": str, "scores": list},
}
OF_TUNING = {"settings": str, "scores": list}
TUNE_AGAIN = "remove it, and run the stage tune again"
HINT = "it should be what --records of examples/many-tasks has written"


def read(names: Sequence[str], folder: Path) -> list[Run]:
    """The records of these tasks, in a folder of either kind: a file or a folder for each task.

    Raises:
        UserError: if one is damaged, or is of another task than its file.
    """
    found = []
    for name in names:
        paths = [path for path in (folder / f"{name}.json", folder / name) if path.exists()]
        of_task = records.read(paths)
        if others := [run for run in of_task if run.task != name]:
            raise UserError(f"{paths[0]} holds runs of {others[0].task}, and not of {name} alone")
        found += of_task
    return found


# --- Keeping -------------------------------------------------------------------------------------


def keep(chosen: Sequence[Task], known: Mapping[str, Task], options: Options, out: Path) -> None:
    """Add the records and the scores of tuning in --work to what a folder keeps.

    What the folder keeps of a run stays, and all else is added, before anything is refused.

    Args:
        chosen: the tasks.
        known: all tasks, by name.
        options: of the runs.
        out: the folder.

    Raises:
        UserError: if the folder keeps another result of some run.
    """
    others: list[str] = []
    with alone_in(out):
        for task in chosen:
            if theirs := read([task.name], options.work / "records"):
                others += add(theirs, out, task.name)
        for family in dict.fromkeys(task.family for task in chosen):
            others += add_tuning(family, known, options, out / "tuning" / f"{family}.json")
    if others:
        raise UserError(
            f"{out} keeps runs of other results or settings, and these were not added: "
            f"{', '.join(others)}; remove there what should be replaced"
        )


def add(theirs: Sequence[Run], out: Path, task: str) -> list[str]:
    """Add runs of a task to its file; the names of those that it keeps with another result."""
    kept = {run.key: run for run in read([task], out)}
    before, others = len(kept), []
    for run in theirs:
        first = next(iter(kept.values()), run)
        if records.different(first, run) or kept.setdefault(run.key, run).items != run.items:
            others.append(records.name(run))
    if len(kept) > before:
        records.write(out / f"{task}.json", [*kept.values()])
    return others


def add_tuning(family: str, known: Mapping[str, Task], options: Options, out: Path) -> list[str]:
    """Add the scores of a family's tuning to a file, as `add` does."""
    kept = {key(x): x for x in read_tuning(out)}
    before, others = len(kept), []
    for recipe, point in runs_of_tuning(family, known, options):
        data = many_tasks_run.data_of(recipe)
        if not (recipe.result.is_file() and data):
            continue
        content = files.read_json(recipe.result, OF_TUNING, TUNE_AGAIN)
        scores = [{"metric": x["metric"], "score": round(x["score"], 4)} for x in content["scores"]]
        entry: dict[str, Any] = {"task": recipe.name, "scheme": recipe.variant.name, **vars(point)}
        entry |= {"settings": content["settings"], "data": data, "scores": scores}
        if kept.setdefault(key(entry), entry) != entry:
            others.append(said(entry))
    if len(kept) > before:
        lines = ",\n".join(" " + records.one_line(kept[x]) for x in sorted(kept))
        files.write(out, f"[\n{lines}\n]\n")
    return others


def load(path: Path) -> list[dict[str, Any]]:
    """The scores of a run of tuning."""
    return files.read_json(path, OF_TUNING, TUNE_AGAIN)["scores"]


def runs_of_tuning(
    family: str, known: Mapping[str, Task], options: Options
) -> Iterator[tuple[RunRecipe, Setting]]:
    """All runs that tuning a family may come to."""
    plan = tasks.kind_of(family, known).tuning
    if not plan:
        return
    for name in plan.tasks:
        for scheme in plan.schemes:
            for point in every_point(plan):
                one = known[name], Variant.parse(scheme), plan.seed, point, options
                yield recipe_of(*one, is_tuning=True), point


def read_tuning(path: Path) -> list[dict[str, Any]]:
    """The kept scores of tuning; none where there is no file.

    Raises:
        UserError: if the file is damaged.
    """
    if not path.is_file():
        return []
    found = files.load_json(path, HINT)
    for entry in found if isinstance(found, list) else [None]:
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(name), kind) for name, kind in FIELDS.items()
        ):
            raise UserError(f"{path} is damaged: {HINT}")
    return found


def key(entry: Mapping[str, Any]) -> tuple[str, str, int, float]:
    """What no two runs of tuning share."""
    return entry["task"], entry["scheme"], entry["tokens"], entry["dropout"]


def said(entry: Mapping[str, Any]) -> str:
    """A run of tuning in words."""
    return f"tuning {entry['task']} {entry['scheme']}, {Setting(entry['tokens'], entry['dropout'])}"


# --- Taking --------------------------------------------------------------------------------------


def take_tuning(family: str, known: Mapping[str, Task], options: Options, folder: Path) -> None:
    """Put the kept scores of a family's tuning where its runs would leave them.

    Raises:
        UserError: if they were made with other settings or data than these.
    """
    path = folder / "tuning" / f"{family}.json"
    kept, number = {key(x): x for x in read_tuning(path)}, 0
    for recipe, point in runs_of_tuning(family, known, options):
        entry = kept.get((recipe.name, recipe.variant.name, point.tokens, point.dropout))
        if not entry or recipe.result.is_file():
            continue
        refuse(path, said(entry), entry["settings"] == recipe.settings_hash)
        remember_data(recipe, entry["data"], path)
        files.write(recipe.result, many_tasks_run.of_tuning(recipe, entry["scores"]))
        number += 1
    if number:
        say(family, f"{number} scores of tuning are taken from {path}")


def take(
    chosen: Sequence[Task],
    variants: Sequence[Variant],
    seeds: Sequence[int],
    settings: Mapping[str, Setting | None],
    options: Options,
    folder: Path,
) -> None:
    """Put the kept records of these runs where the runs would leave them.

    Raises:
        UserError: if they were made with other settings or data than these.
    """
    for task in chosen:
        kept, number = {run.key: run for run in read([task.name], folder)}, 0
        for variant, seed in product(variants, seeds):
            if not (run := kept.get((task.name, variant.name, seed))):
                continue
            recipe = recipe_of(task, variant, seed, settings[task.family], options)
            if not recipe.result.is_file():
                refuse(folder, records.name(run), is_of(run, task, recipe))
                remember_data(recipe, run.data, folder)
                records.write(recipe.result, [run])
                number += 1
        if number:
            say(task.name, f"{number} runs are taken from {folder}")


def is_of(run: Run, task: Task, recipe: RunRecipe) -> bool:
    """Whether a run was made with the settings of a recipe."""
    of_task = task.kind.metric, task.kind.test, recipe.settings_hash
    is_same = run.preparation in (None, preparation_of(recipe))  # None: of an older version
    return is_same and (run.metric, run.test, run.settings) == of_task


def as_planned(run: Run, task: Task) -> bool:
    """Whether a run has the settings of the file of tasks, and of tuning: those of the plan."""
    options = Options(Path(), None, cpu=not run.environment["gpus"], file=tasks.FILE)
    variant = Variant.parse(run.scheme)
    return is_of(run, task, recipe_of(task, variant, run.seed, task.kind.chosen, options))


def refuse(origin: Path, run: str, is_same: bool, instead: str = "give another --records") -> None:
    """Raise a `UserError` for a run that was made with other settings."""
    if not is_same:
        raise UserError(
            f"{origin}: {run} was made with other settings than these: give the options that it "
            f"was made with, or {instead}"
        )


def refuse_others(task: Task, recipe: RunRecipe) -> None:
    """Raise a `UserError` if the record of a run here is of other settings."""
    if (path := recipe.result).is_file():
        (run,) = records.read_file(path)
        refuse(path, records.name(run), is_of(run, task, recipe), "give another --work")


def refuse_other_tuning(recipe: RunRecipe) -> None:
    """Raise a `UserError` if the scores of a run of tuning here are of other settings."""
    if (path := recipe.result).is_file():
        content = files.read_json(path, OF_TUNING, TUNE_AGAIN)
        same = content["settings"] == recipe.settings_hash
        refuse(path, f"tuning {recipe.name} {recipe.variant.name}", same, "give another --work")


def remember_data(recipe: RunRecipe, data: str, origin: Path) -> None:
    """Write down of what data known runs are, for the runs to come.

    Raises:
        UserError: if others are of other data.
    """
    here = many_tasks_run.data_of(recipe)
    if here and here != data:
        raise UserError(
            f"{origin}: the runs of {recipe.name} are of other data than {recipe.work} has: "
            "give another --records, or another --work"
        )
    files.write(recipe.work / many_tasks_run.KNOWN_DATA, data + "\n")
