"""What is done of a part that is not whole yet: lines are kept as soon as they are there.

A file has a header, and then JSON lines [number, text]. A kill leaves an unfinished last line at
most, which does not count.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from macaron_fairseq.common.errors import UserError


class Journal:
    """A file of results by their numbers, open to add more.

    Attributes:
        done: what it holds.
    """

    def __init__(self, path: Path, header: str) -> None:
        """Open it and read what is there.

        Args:
            path: of the file, which need not exist.
            header: its first line. A file that begins otherwise starts anew.

        Raises:
            UserError: if it cannot be read or written.
        """
        self.path = path
        self.done: dict[int, str] = {}
        with self.explained():
            self.file: BinaryIO = path.open("a+b")
            self.read(f"{header}\n".encode())

    def read(self, header: bytes) -> None:
        """Read what is whole, and cut off what is not."""
        self.file.seek(0)
        end = len(header) if self.file.readline() == header else 0
        for line in self.file if end else ():
            try:
                number, text = json.loads(line)
                if not (line.endswith(b"\n") and type(number) is int and type(text) is str):
                    break
            except (ValueError, TypeError):
                break
            self.done[number] = text
            end += len(line)
        self.file.truncate(end)
        if not end:
            self.file.write(header)
            self.file.flush()  # other jobs read it

    def add(self, results: Mapping[int, str]) -> None:
        """Keep some more.

        Raises:
            UserError: if it cannot be written.
        """
        self.done.update(results)
        lines = (json.dumps(x, ensure_ascii=False) + "\n" for x in results.items())
        with self.explained():
            self.file.write("".join(lines).encode())
            self.file.flush()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise a `UserError` in place of an OSError."""
        try:
            yield
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from error

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # of what could not be written before
            self.file.close()
