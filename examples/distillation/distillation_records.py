"""Small records of finished runs: a report can be drawn of them where nothing was trained.

FOLDER/TASK/SYSTEM-seedN.json holds a run: its result with its translations, and its speeds.
FOLDER/TASK/references.LANGUAGE is the test set's, whose SHA-256 each result names.
"""

import base64
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.steps import alone_in
from distillation_systems import TEACHER, SystemRecipe, teacher_of

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.text import data_folder

HINT = "it should be what --records has written"
# What a record has, and of which type.
FIELDS: dict[str, type] = {
    **dict.fromkeys(("settings", "data", "references", "checkpoint", "teacher"), str),
    **dict.fromkeys(("scores", "greedy", "hypotheses", "signatures", "machine"), dict),
}
UNLIKE = {
    "settings": "other settings than these",
    "data": "other data than what is here",
    "references": "other references than those here",
    "teacher": "another teacher than the one here",
    "precision": "another precision than the students here",  # a GPU's teacher may teach on CPUs
}


class Run(NamedTuple):
    """What is known of a run; empty where it is not done, or its model not timed."""

    recipe: SystemRecipe
    path: Path  # that tells of it
    result: dict[str, Any]
    speed: dict[str, Any]

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"{self.recipe.system} seed {self.recipe.seeds[0]}"


def pack(lines: Iterable[str]) -> str:
    """Lines as a short text; a tenth of a megabyte becomes some 30 kB."""
    text = "".join(f"{line}\n" for line in lines)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack(packed: str) -> list[str]:
    """The lines of `pack`."""
    return zlib.decompress(base64.b64decode(packed)).decode().split("\n")[:-1]


def load(path: Path) -> dict[str, Any]:
    """What a job wrote; nothing where it has not."""
    return files.read_json(path, {}, "remove it, and run again") if path.is_file() else {}


def place(folder: Path, recipe: SystemRecipe) -> Path:
    """The record of a run."""
    return folder / recipe.name / recipe.result.name


def known(recipes: Iterable[SystemRecipe], folder: Path | None) -> list[Run]:
    """What is known of runs, here or else by the records in a folder.

    Raises:
        UserError: if a record is damaged, or is of another training than the result here.
    """
    found = []
    for recipe in recipes:
        path, result, speeds = recipe.result, load(recipe.result), [load(recipe.speed)]
        record = place(folder, recipe) if folder else None
        if record and record.is_file():
            kept = files.read_json(record, FIELDS, HINT)
            if not result:
                path, result = record, {x: kept[x] for x in kept if x != "speed"}
            elif result.get("checkpoint") != kept["checkpoint"]:
                raise UserError(
                    f"{record} is of another training than {path}: remove one of the two, or give "
                    "another folder with --records"
                )
            speeds.append(kept.get("speed") or {})
        # Speeds of an earlier model are none of this one's.
        model = result.get("checkpoint", "")
        speed = next((x for x in speeds if x and x.get("checkpoint") == model), {})
        found.append(Run(recipe, path, result, speed))
    return found


def take(runs: Iterable[Run]) -> int:
    """Put what records tell where the jobs would leave it; returns how many runs that are."""
    taken = 0
    for run in runs:
        if run.result and not run.recipe.result.is_file():
            files.write(run.recipe.result, files.as_json(run.result))
            taken += 1
        if run.speed and run.speed != load(run.recipe.speed):
            files.write(run.recipe.speed, files.as_json(run.speed))
    return taken


def remove_stale_speeds(runs: Iterable[Run]) -> None:
    """Remove the speeds of earlier models, so that those that are here are timed."""
    for run in runs:
        if not run.speed and run.recipe.checkpoint.is_file():
            run.recipe.speed.unlink(missing_ok=True)


def keep(folder: Path, runs: Iterable[Run]) -> None:
    """Write the records of what is done here; one of another training stays (see `known`)."""
    if new := [run for run in runs if unkept(folder, run)]:  # else it need not be writable
        with alone_in(folder):
            for path, content in (found for run in new for found in unkept(folder, run).items()):
                files.write(path, content)


def unkept(folder: Path, run: Run) -> dict[Path, str | bytes]:
    """The files of a run that its records lack, or have otherwise."""
    if not run.result:
        return {}
    found: dict[Path, str | bytes] = {}
    of_test, copied = references(run.recipe), place_of_references(folder, run.recipe)
    if of_test.is_file() and not copied.is_file():
        found[copied] = of_test.read_bytes()
    path = place(folder, run.recipe)
    kept, model = load(path), run.result.get("checkpoint")
    # Of a teacher the record of its training tells more than that it was given.
    is_better = kept and run.result.get("given") and not kept.get("given")
    result = kept if is_better else run.result
    content = {**result, "speed": run.speed or kept.get("speed", {})}
    if kept.get("checkpoint", model) == model and kept != content:
        found[path] = files.as_json(content)
    return found


# --- Whether they belong together ----------------------------------------------------------------


def unlike(
    runs: Sequence[Run], hashes: Sequence[str], precision: str = ""
) -> list[tuple[Run, str]]:
    """The runs of a task that are not of a piece with the rest, and what of them is other.

    Args:
        runs: the teacher first.
        hashes: of their settings here.
        precision: of the students that are to be trained; "" for that of the first one.
    """
    here = {
        "precision": precision,
        "teacher": teacher_here(runs[0]),
        "references": sha256_of_references(runs[0].recipe),
    }
    of_data: dict[Path, str] = {}
    found = []
    for run, settings in zip(runs, hashes, strict=True):
        result, data = run.result, run.recipe.data
        if run.recipe.system == TEACHER:
            result = {name: x for name, x in result.items() if name != "precision"}
        # What is not here is what the first run says that it was.
        here |= {name: here[name] or result.get(name, "") for name in here}
        of_data[data] = of_data.get(data) or fingerprint(data) or result.get("data", "")
        wanted = {**here, "settings": settings, "data": of_data[data]}
        for name, what in UNLIKE.items():
            if result.get(name) and result[name] != wanted[name]:  # some learn from no teacher
                found.append((run, what))
                break
    return found


def teacher_here(run: Run) -> str:
    """The SHA-256 of the teacher by its run, or of the file that is there; "" without both."""
    path = teacher_of(run.recipe.work)
    return run.result.get("checkpoint") or (files.sha256(path) if path.is_file() else "")


def fingerprint(data: Path) -> str:
    """The beginning of a data folder's fingerprint; "" where it is not there."""
    return load(data / data_folder.NAME).get("fingerprint", "")[:12]


def references(recipe: SystemRecipe) -> Path:
    """The references of the test set in the task's data, which a teacher has."""
    return recipe.work / "data" / "reference" / f"{recipe.test}.{recipe.target}"


def place_of_references(folder: Path, recipe: SystemRecipe) -> Path:
    """The record of the references of a task."""
    return folder / recipe.name / f"references.{recipe.target}"


def has_references(recipe: SystemRecipe, folder: Path | None) -> bool:
    """Whether some references of a task are here, or in a folder of records."""
    kept = folder and place_of_references(folder, recipe)
    return references(recipe).is_file() or bool(kept and kept.is_file())


def known_references(run: Run, folder: Path | None) -> Path:
    """The references that a run was scored with, here or else in a folder of records.

    Raises:
        UserError: if they are in neither.
    """
    here, wanted = references(run.recipe), run.result["references"]
    for path in (here, *([place_of_references(folder, run.recipe)] if folder else [])):
        if path.is_file() and files.sha256(path) == wanted:
            return path
    raise UserError(
        f"{here} is not there, or is other than what {run.path} was scored with: name the task's "
        "text with --from"
    )


def sha256_of_references(recipe: SystemRecipe) -> str:
    """Of the task's test set; "" where the data is not here."""
    path = references(recipe)
    return files.sha256(path) if path.is_file() else ""
