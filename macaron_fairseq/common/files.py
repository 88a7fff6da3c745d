"""Files in and out: JSON, output that is written whole or not at all, standard streams, hashes."""

import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from macaron_fairseq.common import locks
from macaron_fairseq.common.errors import UserError


def load_json(path: Path, hint: str) -> Any:
    """What a JSON file holds.

    Args:
        path: the file.
        hint: what to do where it is missing or is something else, as the end of a sentence.

    Raises:
        UserError: if it is not there or is no JSON.
    """
    try:
        return json.loads(path.read_text("utf-8-sig"), parse_constant=refuse_constant)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): {hint}") from error
    except (ValueError, RecursionError) as error:  # the latter of thousands of brackets
        raise UserError(f"{path} is not a JSON file: {hint}") from error


def refuse_constant(name: str) -> None:
    """Raise a ValueError for NaN and its like, which Python reads and JSON does not have."""
    raise ValueError(name)


def read_json(path: Path, fields: Mapping[str, type], hint: str) -> dict[str, Any]:
    """The object in a JSON file, which holds these fields with values of these types.

    Raises:
        UserError: with the hint (see `load_json`), if it does not hold such an object.
    """
    found = load_json(path, hint)
    if not isinstance(found, dict):
        raise UserError(f"{path} is not as expected: {hint}")
    for name, kind in fields.items():
        if not isinstance(found.get(name), kind):
            raise UserError(f"{path} has no {kind.__name__} '{name}': {hint}")
    return found


def partial_of(path: Path) -> Path:
    """What a file or folder is called while it is written."""
    return path.with_name(path.name + ".part")


def is_there(path: str | Path) -> bool:
    """Whether there is a file or folder; False for text that is too long to be a name.

    Raises:
        OSError: if the folder that it would be in may not be searched.
    """
    try:
        return Path(path).exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def is_remote(name: str) -> bool:
    """Whether a name is an address, such as s3://bucket/checkpoint.pt, which fairseq fetches."""
    return "://" in name


def is_stored(path: Path) -> bool:
    """Whether a file begins as PyTorch's do: as a zip archive or, of old, as a pickle."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith((b"PK\x03\x04", b"\x80"))
    except OSError:  # who reads it says why not
        return False


def refuse_output(inputs: Iterable[Path], output: Path) -> None:
    """Raise a `UserError` now, not after hours, if an output cannot be written or is an input.

    The same holds for OUTPUT.part, its name while it is written.
    """
    inputs = [*inputs]
    named = [path for path in inputs if str(path) != "-" and path.is_file()]
    if is_stdout(output):
        if own := next((path for path in named if is_of(path, sys.stdout)), None):
            raise UserError(f"{own} is read, and standard output goes there: choose another file")
        return
    final = output.resolve()  # even where the folder is still to be made
    if "-" in map(str, inputs) and is_of(final, sys.stdin):
        raise UserError(f"standard input comes from {output}: choose another name")
    for path in named:
        for taken, name in ((final, output), (partial_of(final), partial_of(final))):
            if taken.is_file() and path.samefile(taken):
                raise UserError(f"{name} is one of the files to read: choose another name")
    if is_replaced(output):
        refuse_place(output)


def is_of(path: Path, stream: Any) -> bool:
    """Whether a stream, or an open file, comes from that file or goes to it."""
    with suppress(OSError, ValueError, AttributeError):  # the last where it is closed
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    return False


def refuse_unwritable(folder: Path) -> None:
    """Raise a `UserError` now, not after hours, if a folder cannot be written to."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder")
    refuse_place(folder, within=True)


def refuse_place(path: Path, within: bool = False) -> None:
    """Raise a `UserError` if a file or folder cannot be made, or replaced, where its name says.

    Args:
        path: its name.
        within: it is a folder, and may be there already: what counts are files in it.
    """
    final = path.resolve()
    existing = next(x for x in (*[final] * within, *final.parents) if x.exists())
    if not existing.is_dir():
        raise UserError(f"cannot write {path}: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {existing}: name another folder")


# Of files that take long to read. A small one could change twice before its time does.
LARGE = 2**26
HASHES: dict[tuple[int, int, int, int], str] = {}


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal; of a large one that stayed as it was, read once.

    Raises:
        UserError: if it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            key = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
            if key in HASHES:
                return HASHES[key]
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    found = digest.hexdigest()
    if state.st_size >= LARGE:
        HASHES[key] = found
    return found


# Names that a system gives to what a program has open. It may be a file with other content.
OPEN_FILE = re.compile(r"(?:/dev|/proc/self)/fd/(\d+)")
STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}


@contextmanager
def written(path: Path, keep_partial: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name once it is complete and on the disk.

    "-" is standard output. A pipe or a device stays what it is, and so does a link: what it points
    to is replaced. /dev/stdout is "-", and other files that are open already go on where they
    stand. With `keep_partial`, PATH.part is left where writing ends early.

    Raises:
        UserError: if it cannot be written; a file that had the name is left as it was.
        BrokenPipeError: if nobody reads any more.
    """
    target: AbstractContextManager[BinaryIO]
    try:
        if is_replaced(path):
            target = to_file(path.resolve(), keep_partial)
        elif is_stdout(path):
            target = to_stdout()
        elif number := number_of_open(path):  # where it stands
            target = os.fdopen(os.dup(number), "wb")
        else:
            target = path.open("wb")
        with target as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        name = "to standard output" if str(path) == "-" else path
        raise UserError(f"cannot write {name}: {reason_for(error, path)}") from error


def reason_for(error: OSError, path: Path) -> str:
    """Why a path cannot be written; names the file that stands where a folder should."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        for folder in path.parents:
            if folder.is_file():
                return f"{folder} is a file"
    return error.strerror or str(error)


def number_of_open(path: Path) -> int:
    """By which number a program has a file open that its path names so; 0 for other paths."""
    opened = OPEN_FILE.fullmatch(str(path))
    return int(opened[1]) if opened else STREAMS.get(str(path), 0)


def is_stdout(path: Path) -> bool:
    """Whether `written` writes to standard output."""
    return str(path) == "-" or number_of_open(path) == 1


def is_replaced(path: Path) -> bool:
    """Whether `written` writes PATH.part first, as of all but streams, pipes and devices."""
    is_open = is_stdout(path) or number_of_open(path)
    return not is_open and (path.is_file() or not path.exists())


def is_terminal(stream: Any) -> bool:
    """Whether it is one; a stream that was closed before the program began is none."""
    return stream is not None and stream.isatty()


@contextmanager
def to_stdout() -> Iterator[BinaryIO]:
    """Standard output; after an error what is still in its buffer has nowhere to go."""
    if sys.stdout is None:
        raise UserError("standard output is closed, and the result is to go there")
    try:
        sys.stdout.flush()  # what was printed comes first
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except OSError:
        close_stdout()
        raise


def close_stdout() -> None:
    """Let what is still in its buffer go nowhere, or Python would try to write it at exit."""
    with suppress(OSError, ValueError):  # the latter where it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def to_file(path: Path, keep_partial: bool) -> Iterator[BinaryIO]:
    """PATH.part, renamed at the end.

    Args:
        path: of the file.
        keep_partial: keep PATH.part after an error, as the result of a long work.

    Raises:
        UserError: if another process writes the file, or has begun to since.
    """
    partial = partial_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_busy(partial, path)
    partial.unlink(missing_ok=True)  # another process may have it open, and goes on with its own
    with partial.open("xb") as file:
        try:
            with suppress(locks.NoLocksError):
                locks.claim(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not is_of(partial, file):
                raise UserError(
                    f"another process has begun to write {path}, too: start this again once that "
                    "one has ended"
                )
            with suppress(OSError):  # where there is none yet
                shutil.copymode(path, partial)
            partial.replace(path)
        finally:
            if not keep_partial and is_of(partial, file):
                with suppress(OSError):
                    partial.unlink()


def refuse_busy(partial: Path, path: Path) -> None:
    """Raise a `UserError` if another process writes this file for some seconds."""
    is_other = True  # whether what is locked has got its name by now, and a third one writes
    with suppress(FileNotFoundError, PermissionError, locks.NoLocksError):
        while is_other:
            with partial.open("r+b") as file:
                if not locks.claim(file):
                    raise UserError(
                        f"another process is writing {path}: wait until it ends, or choose "
                        "another name"
                    )
                is_other = not locks.has_name(file, partial)


@contextmanager
def written_folder(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """A new folder FOLDER.part, which gets its name once all of it is on the disk.

    A folder that has the name is replaced, and what a killed process left is cleared away.

    Args:
        folder: the folder; a link stays one, and what it points to is replaced.
        names: all that there can be in such a folder, folders included; one that holds anything
            else stays.

    Raises:
        UserError: if it cannot be written.
    """
    folder = folder.resolve()
    partial, replaced = partial_of(folder), folder.with_name(folder.name + ".replaced")

    def refuse_others(path: Path) -> None:
        if path.exists() and not holds_only(path, names):
            raise UserError(f"{path} is in the way: move it, or choose another name")

    def remove(path: Path) -> None:
        refuse_others(path)
        if path.exists():
            shutil.rmtree(path)

    try:
        refuse_others(folder)  # now, not after hours
        if replaced.exists() and not folder.exists():  # a kill between the two renames below
            replaced.rename(folder)
        remove(replaced)
        remove(partial)
        try:
            partial.mkdir(parents=True)
            yield partial
            for path in partial.rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
            refuse_others(folder)  # what may have come since then
            if folder.exists():
                folder.rename(replaced)
            try:
                partial.rename(folder)
            except OSError:
                if replaced.exists():  # the old one stays
                    replaced.rename(folder)
                raise
            remove(replaced)
        finally:
            remove(partial)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {reason_for(error, folder)}") from error


def holds_only(folder: Path, names: Collection[str]) -> bool:
    """Whether it is a folder and nothing in it has another name."""
    return folder.is_dir() and all(path.name in names for path in folder.iterdir())


def as_json(content: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Plain data as JSON text for a file; `default` makes plain data of what is not.

    Raises:
        ValueError: for NaN, which JSON does not have.
    """
    options: Any = {"indent": 1, "ensure_ascii": False, "allow_nan": False}
    return json.dumps(content, default=default, **options) + "\n"


def write(path: Path, content: str | bytes) -> None:
    """Write a whole file, text as UTF-8; raises what `written` raises."""
    write_all({path: content})


def write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Write several files; where the content of one cannot be written, none gets its name.

    They get their names from the last to the first, so where the first is new, all are. Where the
    system refuses one this late, those after it are new and those before it are not.

    Raises what `written` raises.
    """
    with ExitStack() as stack:
        for path, content in contents.items():
            file = stack.enter_context(written(path))
            # The bytes of a path that is no UTF-8 are shown as escapes, as on stderr.
            if isinstance(content, str):
                content = content.encode(errors="backslashreplace")
            file.write(content)
            file.flush()


def show(text: str) -> None:
    """Print text and a newline, as UTF-8 whatever the locale; raises what `written` raises."""
    write(Path("-"), text + "\n")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines of text, each ended by a newline; raises what `written` raises."""
    write_blocks(path, (line.encode() + b"\n" for line in lines))


def write_blocks(path: Path, blocks: Iterable[bytes]) -> None:
    """Write blocks, one after the other; raises what `written` raises."""
    with written(path) as file:
        file.writelines(blocks)
