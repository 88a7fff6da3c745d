"""Lines of text, in UTF-8 whatever the locale, from files and standard input."""

import io
import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from macaron_fairseq.common.errors import UserError

GZIP = b"\x1f\x8b"  # how such a file begins


@dataclass(frozen=True)
class Block:
    """Lines of a file as they are in it; cheap to hand to another process."""

    file: str
    first: int  # number of the first line, from 1
    content: bytes

    def lines(self) -> Iterator[str]:
        """The lines as text, see `decode`.

        Raises:
            UserError: if they are not UTF-8.
        """
        return decode(io.BytesIO(self.content), self.file, self.first)


def decode(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    r"""The lines of a UTF-8 file as text, without their ends.

    Only "\n" ends a line; a "\r" before it is dropped, as is a byte order mark.

    Args:
        lines: each up to its "\n", as files give them.
        name: what to call the file.
        first: the number of the first line.

    Raises:
        UserError: if a line is not UTF-8.
    """
    for number, line in enumerate(lines, first):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            way_out = "convert it, for example with iconv"
            if number == 1 and line.startswith(GZIP):
                way_out = "it is compressed, so unpack it, for example with zcat"
            raise UserError(
                f"{name}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x} at position "
                f"{error.start + 1}): {way_out}"
            ) from error


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """A file, or standard input for "-", and what to call it.

    Raises:
        UserError: if it cannot be read, then or while it is open.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        with nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as file:
            yield file, name
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from error


def read_blocks(path: Path, lines: int) -> Iterator[Block]:
    """A file, or standard input for "-", in blocks of that many lines.

    Raises:
        UserError: if it cannot be read.
    """
    with opened(path) as (file, name):
        for first in itertools.count(1, lines):
            content = b"".join(itertools.islice(file, lines))
            if not content:
                return
            yield Block(name, first, content)


def refuse_other_encodings(path: Path) -> None:
    """Raise a `UserError` if a file cannot be read or is not UTF-8: now, rather than after hours.

    A pipe, which is read once, is let pass.
    """
    if path.is_file():
        for _ in read_lines(path):
            pass


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, or of standard input for "-", as `Block.lines` gives them.

    Raises:
        UserError: if the file cannot be read or is not UTF-8.
    """
    with opened(path) as (file, name):
        yield from decode(file, name)
