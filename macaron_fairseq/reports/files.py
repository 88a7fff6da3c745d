"""Reading and writing the files of manifests and reports."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from macaron_fairseq.errors import UserError


def read_json(path: Path, fields: Mapping[str, type], hint: str) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: the file.
        fields: names that the object must hold, with the types of their values.
        hint: what to do where the file is missing or is something else, as the end of a sentence.

    Raises:
        UserError: if it is not there or does not hold such an object.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): {hint}") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON file: {hint}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is not as expected: {hint}")
    for name, kind in fields.items():
        if not isinstance(found.get(name), kind):
            raise UserError(f"{path} has no {kind.__name__} '{name}': {hint}")
    return found


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal.

    Raises:
        UserError: if it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def write(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, and its folder; the name is given to it once it is complete.

    Raises:
        UserError: if it cannot be written; a file that had the name is left as it was.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise UserError(f"cannot write {path}: {error.strerror}") from error
