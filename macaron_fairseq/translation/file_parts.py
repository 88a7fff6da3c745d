"""A file's translation by several jobs, or by one that may be killed: `parts` of its lines."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.text_lines import Block
from macaron_fairseq.text.data_folder import DataFolder
from macaron_fairseq.translation import translator
from macaron_fairseq.translation.parts import (
    IS_THERE,
    Parts,
    Shard,
    folder_of,
    has_parts,
    settings_of,
)
from macaron_fairseq.translation.translator import Batching, Engine, Known, Search


class TextFile:
    """A file of text whose blocks of lines can be read in any order."""

    def __init__(self, path: Path, size: int) -> None:
        """Read it once.

        Args:
            path: a file of UTF-8 text, which must not change.
            size: lines of a block.

        Raises:
            UserError: if it cannot be read.
        """
        self.path, self.size = path, size
        self.offsets, self.lines, offset = [], 0, 0
        digest = hashlib.sha256()
        for block in text_lines.read_blocks(path, size):
            self.offsets.append(offset)
            offset += len(block.content)
            digest.update(block.content)
            # Which refuses text that is no UTF-8, before any is translated.
            self.lines += sum(1 for _ in block.lines())
        self.sha256 = digest.hexdigest()

    def __call__(self, lines: range) -> list[str]:
        """A block of lines, numbered from 0."""
        with self.path.open("rb") as file:
            file.seek(self.offsets[lines.start // self.size])
            content = b"".join(file.readline() for _ in lines)
        return [*Block(str(self.path), lines.start + 1, content).lines()]


def refuse_output(output: Path) -> None:
    """Raise a `UserError` if the whole has that name already; now, not after hours."""
    if output.exists() and not has_parts(folder_of(output)):
        raise UserError(f"{output} {IS_THERE}")


def of_file(
    text: TextFile, output: Path, models: str, data: DataFolder, search: Search, **settings: Any
) -> Parts:
    """The parts of a file's translation.

    Args:
        text: what is translated.
        output: where the whole will be written.
        models: checkpoints with ":" between them, or the folder of an export.
        data: what they were trained with.
        search: how to search.
        settings: what else the translation depends on.

    Raises:
        UserError: if a file cannot be read, or other parts are there.
    """
    of_all = {"source": text.sha256, **settings_of(models, data, search), **settings}
    found = Parts(folder_of(output), of_all, text.lines, text.size)
    found.refuse_others()
    return found


def translate_shard(
    parts: Parts,
    text: TextFile,
    engine: Engine,
    data: DataFolder,
    shard: Shard,
    batching: Batching,
) -> None:
    """Translate a shard's parts of a file. Warnings are as of `translate_file`."""
    encode = Known(data.encoder(data.source), data.symbols(data.source))

    def work(
        before: int, lines: Sequence[str], done: Collection[int]
    ) -> Iterator[Mapping[int, str]]:
        found = translator.translate_block(
            [encode(line) for line in lines], engine, batching, before=before, done=done
        )
        for some in found:
            yield dict(zip(some, data.decode([*some.values()]), strict=True))

    with parts.held(shard):
        parts.fill(text, work, shard, f"shard {shard}")
    encode.warn()


def join(parts: Parts, output: Path) -> None:
    """Write all parts to a file, one after the other, and remove them.

    Raises:
        UserError: if one is missing, of another work or being made, or the file cannot be written.
    """
    parts.refuse_incomplete()
    with parts.held(Shard()):
        files.write_lines(output, (line for _, lines in parts.read() for line in lines))
        parts.remove()
