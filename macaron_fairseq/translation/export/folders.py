"""The folder of an export: written whole or not at all, and replaced only where it is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.translation.ctranslate2_engine import EXPORT_JSON

# All that there can be in one.
VOCABULARIES = {f"{of}_vocabulary.json" for of in ("shared", "source", "target")}
NAMES = {EXPORT_JSON, "model.bin", "config.json", *VOCABULARIES}


def refuse_existing(folder: Path, replace: bool) -> None:
    """Raise a `UserError` if something of that name must stay: an export, unless `replace`."""
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if is_empty or not folder.exists():
        return
    if not (is_part_of_export(folder) and (folder / EXPORT_JSON).is_file()):
        raise UserError(f"{folder} is there already and is no export: choose another name")
    if not replace:
        raise UserError(f"{folder} is there already: choose another name, or replace it: --force")


def is_part_of_export(folder: Path) -> bool:
    """Whether it is a folder that holds nothing else."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= NAMES


@contextmanager
def written(folder: Path, replace: bool) -> Iterator[Path]:
    """A new folder FOLDER.part, which gets its name once all of it is on the disk.

    Raises:
        UserError: if it cannot be written, or if what has a name that is needed must stay.
    """
    refuse_existing(folder, replace)
    folder = folder.resolve()  # a link stays one
    partial, replaced = (folder.with_name(folder.name + end) for end in (".part", ".replaced"))
    for rest in (partial, replaced):  # of a run that was killed
        if rest.exists() and not is_part_of_export(rest):
            raise UserError(f"{rest} is in the way: move it, or choose another name")
    try:
        try:
            remove(partial)
            partial.mkdir(parents=True)
            yield partial
            for path in partial.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            remove(replaced)
            if folder.exists():
                folder.rename(replaced)
            partial.rename(folder)
            remove(replaced)
        finally:
            remove(partial)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from error


def remove(folder: Path) -> None:
    """Remove a folder, where there is one."""
    if folder.exists():
        shutil.rmtree(folder)
