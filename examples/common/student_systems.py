"""Ways in which students learn from a teacher: the entries of a data file, and their recipes."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from shlex import split
from typing import Any

from common.recipe import RecipeT

# What a flag of a system needs; the losses themselves would miss it after hours of training.
NEEDED_BY = {"mined": ("rapidfuzz", "the loss mined")}

PLACE = re.compile(r"{(teacher|teacher_data)}")  # of a path in a system's flags


@dataclass(frozen=True)
class System:
    """A way to learn."""

    flags: str = ""  # of fairseq-train; {teacher} and {teacher_data} stand for paths
    merges: int = 0  # of its own BPE; 0: the teacher's BPE
    baseline: str = ""  # what it is also compared with, next to the first one


def refuse_bad(systems: Mapping[str, System], main: Sequence[str], path: Path) -> None:
    """End the program with a sentence where the entries of a file are not as they should be.

    Args:
        systems: by name, the baseline of all first.
        main: those whose comparison with their baseline was planned.
        path: the file.
    """
    if not systems:
        sys.exit(f"{path}: systems should name one at least")
    for name, how in systems.items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            sys.exit(f"{path}: a system's name has letters, digits, '.', '_' and '-': not {name}")
        if how.baseline and (how.baseline not in systems or how.baseline == name):
            sys.exit(f"{path}: the baseline of {name} is {how.baseline}, and no other system")
        if how.merges < 0:
            sys.exit(f"{path}: {name} has {how.merges} merges")
        try:
            flags_of(how, Path(), Path())
        except ValueError:
            sys.exit(
                f"{path}: the flags of {name}: only {{teacher}} and {{teacher_data}} stand for a "
                "path, and quotes should be closed"
            )
    if unknown := {*main} - {*systems} | {*main} & {next(iter(systems))}:
        sys.exit(f"{path}: main names {min(unknown)}, which is not a system with a baseline")
    if len({*main}) < len(main):
        sys.exit(f"{path}: main names a system twice")


def chosen(systems: Mapping[str, System], names: Iterable[str]) -> list[str]:
    """The systems that are asked for, and their baselines; ends the program at an unknown one."""
    wanted = {next(iter(systems))}
    for name in names:
        if name not in systems:
            sys.exit(f"--systems names {name}, but there are {', '.join(systems)}")
        wanted |= {name, systems[name].baseline}
    return [name for name in systems if name in wanted]


def flags_of(how: System, teacher: Path, teacher_data: Path) -> list[str]:
    """The flags of a system, with the paths of its teacher."""
    paths = {"teacher": str(teacher), "teacher_data": str(teacher_data)}
    words = []
    for word in split(how.flags):
        if re.search("[{}]", PLACE.sub("", word)):
            raise ValueError(word)
        words.append(PLACE.sub(lambda place: paths[place[1]], word))
    return words


def refuse_missing_packages(
    systems: Iterable[System], more: Mapping[str, str] | None = None
) -> None:
    """End the program where a package is missing that these systems need.

    Args:
        systems: those that are to be trained.
        more: further packages, and for what they are needed.
    """
    words = {word for how in systems for word in split(how.flags)}
    needed = {**(more or {}), **dict(NEEDED_BY[word] for word in NEEDED_BY if word in words)}
    for package, what in needed.items():
        if not find_spec(package):
            sys.exit(f"{what} needs {package}: pip install {package}")


def preparation(recipe: RecipeT, has_own_bpe: bool) -> RecipeT:
    """The recipe that prepares the data of another; a student's own BPE has a folder."""
    if not has_own_bpe:
        return recipe
    changed: dict[str, Any] = {"work": recipe.work / f"merges{recipe.merges}", "has_own_bpe": False}
    return replace(recipe, **changed)
