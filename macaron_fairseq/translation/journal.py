"""What is done of a part that is not whole yet: lines are kept as soon as they are there.

A file has a header, and then JSON lines [number, text]. A kill leaves an unfinished last line at
most, which does not count.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO


class Journal:
    """A file of results by their numbers, open to add more.

    Attributes:
        done: what it holds.
    """

    def __init__(self, path: Path, header: bytes) -> None:
        """Open it and read what is there.

        Args:
            path: of the file, which need not exist.
            header: its first line, with its end. A file that begins otherwise starts anew.

        Raises:
            OSError: if it cannot be read or written.
        """
        self.done: dict[int, str] = {}
        self.file: BinaryIO = path.open("a+b")
        self.file.seek(0)
        end = len(header) if self.file.readline() == header else 0
        for line in self.file if end else ():
            try:
                number, text = json.loads(line)
            except (ValueError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            self.done[int(number)] = text
            end += len(line)
        self.file.truncate(end)
        if not end:
            self.file.write(header)

    def add(self, results: Mapping[int, str]) -> None:
        """Keep some more."""
        self.done.update(results)
        lines = (json.dumps(x, ensure_ascii=False) + "\n" for x in results.items())
        self.file.write("".join(lines).encode())
        self.file.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.file.close()
