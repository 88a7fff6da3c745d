"""The teacher's translations of a task's training set: made in shards, joined, checked."""

import sys
from pathlib import Path
from shlex import split
from typing import Any

from common.launch import only_one
from common.steps import Words, call
from distillation_systems import Settings, SystemRecipe, teacher_of

from macaron_fairseq.common import files
from macaron_fairseq.text import data_folder
from macaron_fairseq.translation.parts import folder_of

OF = "-of-"


def distill(recipe: SystemRecipe, settings: Settings, *more: str) -> None:
    """`macaron-fairseq distill` of a task's training set; it resumes by itself."""
    words: Words = ["macaron-fairseq", "distill", "--teacher", teacher_of(recipe.work)]
    words += ["--data", recipe.work / "data", "-o", recipe.work / "distilled"]
    words += [*split(settings.distill), *["--cpu"] * recipe.cpu, *more]
    call(words)


def translate(recipe: SystemRecipe, settings: Settings, shard: str) -> None:
    """Translate a shard."""
    path = shard_path(recipe.work, shard)
    with only_one(path.with_suffix(".lock")):
        if not path.is_file():
            distill(recipe, settings, "--shard", shard)
            files.write(path, "done\n")


def shard_path(work: Path, shard: str) -> Path:
    """The file that says that a shard is done; it goes when the parts do, as hidden files can."""
    return folder_of(work / "distilled") / f".{shard.replace('/', OF)}"


def join(recipe: SystemRecipe, settings: Settings) -> None:
    """Join the shards to a data folder, if that is not done; else they are to run again."""
    with only_one(recipe.work / "distilled.lock"):
        if not (recipe.work / "distilled").exists():
            try:
                distill(recipe, settings, "--join")
            except SystemExit:  # it says which part to remove; shards do nothing but what is left
                for mark in folder_of(recipe.work / "distilled").glob(f".*{OF}*[0-9]"):
                    mark.unlink()
                raise


def made_by(folder: Path) -> dict[str, Any]:
    """What a folder of translations says of how it was made."""
    return files.load_json(folder / data_folder.NAME, "remove its folder")["distilled"]


def translator_of(folder: Path) -> str:
    """The SHA-256 of the teacher that wrote a folder of translations."""
    return " ".join(x["sha256"] for x in made_by(folder)["teacher"])


def refuse_other_translations(folder: Path, settings: Settings, teacher: str) -> None:
    """End the program where a folder of translations was made by other flags or another teacher.

    Args:
        folder: with the translations.
        settings: whose flags should have made them.
        teacher: the SHA-256 of what should have made them.
    """
    known, instead = made_by(folder), "remove it, or give another --work"
    if translator_of(folder) != teacher:
        sys.exit(f"{folder} was made by another teacher than the one here: {instead}")
    wanted = settings.how_translated
    for name in {*known} & {*wanted} - {"teacher"}:
        if known[name] != wanted[name]:
            sys.exit(
                f"{folder} was made with {name} {known[name]}, and not {wanted[name]}: {instead}"
            )
