"""What a command of this room leaves in its folder: numbers as JSON, pictures, pages, tables."""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from macaron_fairseq.common import environment, files

LONG = 100_000  # numbers

# A file's content: bytes and text as they are, all else as JSON. None: there is to be no such file.
Content = bytes | str | Mapping[str, Any] | None


def provenance() -> dict[str, Any]:
    """The command line, and the code and versions of what ran, for a JSON file."""
    command = shlex.join(["macaron-fairseq", *sys.argv[1:]])
    return {"command": command, "code": environment.code(), "versions": environment.versions()}


def write(folder: Path, contents: Mapping[str, Content]) -> list[Path]:
    """Write files, all of them or none; return their paths.

    Args:
        folder: is made where it is missing.
        contents: by name. A file of None that an earlier run has left is removed, since it is of
            other settings.

    Raises:
        UserError: if one cannot be written.
    """
    written = {
        folder / name: content if isinstance(content, bytes | str) else as_json(content)
        for name, content in contents.items()
        if content is not None
    }
    files.write_all(written)
    for path in sorted(folder / name for name, content in contents.items() if content is None):
        if path.exists():
            path.unlink()
            print(f"removed {path}, which was of an earlier run", file=sys.stderr)
    return list(written)


def as_json(content: Mapping[str, Any]) -> str:
    """JSON text; lists for arrays, in which null stands for NaN, and text for paths.

    Long arrays stand on one line each: indented they would take Python twice the time.

    Raises:
        ValueError: for a NaN elsewhere, which JSON has not.
    """
    long: list[str] = []

    def plain(value: Any) -> Any:
        found = _plain(value)
        if not isinstance(value, np.ndarray) or value.size < LONG:
            return found
        long.append(json.dumps(found, allow_nan=False))
        return f"\0{len(long) - 1}"  # its place, which no other text can look like

    text = files.as_json(content, plain)
    for i, array in enumerate(long):
        text = text.replace(f'"\\u0000{i}"', array)
    return text


def compact(content: Mapping[str, Any]) -> str:
    """`as_json` without spaces, for a page to hold."""
    return json.dumps(json.loads(as_json(content)), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return str(value)
    if value.dtype.kind == "f" and np.isnan(value).any():
        plain = value.astype(object)
        plain[np.isnan(value)] = None
        return plain.tolist()
    return value.tolist()


def report(text: str, written: Iterable[Path] = ()) -> None:
    """Print a command's result to stdout, as UTF-8, and the files' names to stderr.

    Raises:
        UserError: if standard output cannot be written.
    """
    files.write(Path("-"), text)
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
