"""What a checkpoint says of the data that it was trained with."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macaron_fairseq.compat import checkpoints
from macaron_fairseq.evaluation.training import manifest


def settings(path: Path) -> Mapping[str, Any]:
    """What a checkpoint says of the task that it was trained for."""
    return checkpoints.options(checkpoints.load(path), "task")


def folder(settings: Mapping[str, Any]) -> Path | None:
    """The data folder that a checkpoint names, the first of several; it may be gone.

    None of a relative path: nothing tells in which folder the training ran.
    """
    path = Path(str(settings.get("data") or "").partition(os.pathsep)[0])
    return path if path.is_absolute() else None


def direction(path: Path, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The languages that a checkpoint's model translates from and to; None where nothing tells.

    fairseq saves them only where they were given to it. Otherwise the names of its data tell: in
    the manifest.json of its run, or in the folder that the checkpoint names.
    """
    if settings.get("source_lang") and settings.get("target_lang"):
        return settings["source_lang"], settings["target_lang"]
    names = [*manifest.data_hashes(path)]
    if not names and (data := folder(settings)):
        names = [file.name for file in data.glob("train.*.idx")]
    for name in names:
        if found := re.fullmatch(r"train\.([^.-]+)-([^.-]+)\.[^.]+\.idx", name):
            return found[1], found[2]
    return None, None
