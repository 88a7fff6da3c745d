"""Long work on lines in parts, each written whole: for resuming, and for several jobs at a time.

FOLDER/lines-00000001-00002000        a line of JSON that says what the part is of, then its results
FOLDER/lines-00000001-00002000.begun  what is done of a part that is not whole, see `journal`
FOLDER/lock                           has a byte for each part, which the job that does it locks

A part that is there is done. Shard I of N does its share of the parts, so the results do not depend
on N, nor on when a job was killed. `Parts.read` joins them: all must be there and of one work.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files, locks, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.wording import counted
from macaron_fairseq.text.data_folder import CODES, DataFolder
from macaron_fairseq.text.languages import short_code
from macaron_fairseq.text.tokenization import WITHOUT_RULES
from macaron_fairseq.translation import translator
from macaron_fairseq.translation.journal import Journal
from macaron_fairseq.translation.translator import Search

BEGUN = ".begun"
NAME = re.compile(rf"lines-\d{{8,}}-\d{{8,}}({BEGUN})?")
LOCK = "lock"
# What there may be in the folder; the last are what systems leave.
OWN = re.compile(rf"{NAME.pattern}(\.part)?|{LOCK}|\..*|@eaDir|Thumbs\.db|desktop\.ini")
IS_THERE = "is there already: choose another name, or remove it"  # of what parts are joined to

Settings = Mapping[str, Any]
# Called with the number of a part's first line, its lines, and the places in it that are done.
# Yields results by place, some at a time; each is a text without line ends.
Work = Callable[[int, Sequence[Any], Collection[int]], Iterator[Mapping[int, str]]]


@dataclass(frozen=True)
class Shard:
    """One of several jobs that share the work: `number` of `count`, from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """I/N as an argument; raises a ValueError for anything else."""
        number, slash, count = text.partition("/")
        found = cls(int(number), int(count))
        if not (slash and 1 <= found.number <= found.count):
            raise ValueError(text)
        return found

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def share(self, total: int) -> range:
        """Which of `total` things are this shard's: a range, as long as the others' or by 1."""
        return range(
            (self.number - 1) * total // self.count,
            self.number * total // self.count,
        )


@dataclass(frozen=True)
class Parts:
    """A folder of parts.

    Attributes:
        folder: where they are.
        settings: what all results depend on; plain data.
        lines: how many there are.
        size: lines of a part; the last one has fewer.
    """

    folder: Path
    settings: Settings
    lines: int
    size: int

    def ranges(self) -> list[range]:
        """The lines of each part, from 0."""
        starts = range(0, self.lines, self.size)
        return [range(start, min(start + self.size, self.lines)) for start in starts]

    def path(self, lines: range) -> Path:
        """The file of a part."""
        return self.folder / f"lines-{lines.start + 1:08}-{lines.stop:08}"

    def left(self, shard: Shard) -> list[range]:
        """The parts of a shard that are not done."""
        ranges = self.ranges()
        return [ranges[i] for i in shard.share(len(ranges)) if not self.path(ranges[i]).is_file()]

    def said(self, shard: Shard) -> str:
        """How far a shard and all of them are, in words."""
        parts, left = len(self.ranges()), len(self.left(Shard()))
        own = len(shard.share(parts))
        what_next = "" if left else "; --join writes the whole"
        return (
            f"shard {shard} is done ({counted(own, 'part')} of {parts}); "
            f"{self.folder} has {parts - left} of {parts}{what_next}"
        )

    def refuse_others(self) -> None:
        """Raise a `UserError` if a part in the folder was made with other settings, or is none."""
        try:
            found = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            raise UserError(f"cannot write {self.folder}: {error.strerror}") from error
        if foreign := foreign_to_parts(found):
            raise UserError(
                f"{foreign} is in the folder of the parts, which is removed at the end: move it"
            )
        for path in (path for path in found if NAME.fullmatch(path.name)):
            try:
                with path.open("rb") as file:
                    header = file.readline()
            except FileNotFoundError:  # another job has just finished that part, or joined them all
                continue
            if path.suffix != BEGUN or header.endswith(b"\n"):  # else it begins anew
                self.refuse_other(path, header)

    def refuse_other(self, path: Path, header: bytes) -> None:
        """Raise a `UserError` if the first line of a part says other settings than these."""
        fix = f"give the same, or remove {self.folder}"
        try:
            was = dict[str, Any](json.loads(header)["settings"])
            names = dict.fromkeys([*was, *self.settings])
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} is damaged: remove it, and start again") from error
        for name in names:
            one, other = was.get(name), self.settings.get(name)
            if one != other:
                raise UserError(f"{path} was made with {name} {one}, and now it is {other}: {fix}")

    @contextmanager
    def held(self, shard: Shard) -> Iterator[None]:
        """Keep other processes from a shard's parts.

        Raises:
            UserError: if another one is at one of them, or the folder cannot be written.
        """
        share = shard.share(len(self.ranges()))
        path = self.folder / LOCK
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        with file:
            try:
                is_free = not share or locks.claim(file, share.start, len(share))
            except locks.NoLocksError as error:
                translator.warn(f"{path} cannot be locked ({error.strerror}): start no second job")
                is_free = True
            if not is_free:
                raise UserError(
                    f"another process is at work on these parts in {self.folder}: wait until it "
                    "ends, or do another share with --shard"
                )
            if not locks.has_name(file, path):
                raise UserError(f"another process has just joined the parts of {self.folder}")
            yield

    def fill(
        self, source: Callable[[range], Sequence[Any]], work: Work, shard: Shard, title: str
    ) -> None:
        """Do what is not done of a shard's parts, with a line of progress now and then.

        Args:
            source: gives lines by their numbers, from 0.
            work: gives their results.
            shard: whose parts, which are `held`.
            title: of the progress.

        Raises:
            UserError: if a part cannot be written, or another job began with other settings.
        """
        ranges, left = self.ranges(), self.left(shard)
        total = sum(len(ranges[i]) for i in shard.share(len(ranges)))
        done = total - sum(map(len, left))
        with bar(title, " lines", total, initial=done) as shown:
            for lines in left:
                begun = self.begun(lines)
                with Journal(begun, self.header()) as journal:
                    if lines == left[0]:  # another job may have begun at the same moment
                        self.refuse_others()
                    shown.update(len(journal.done))
                    for results in work(lines.start, source(lines), journal.done.keys()):
                        journal.add(results)
                        shown.update(len(results))
                    found = [journal.done[i] for i in range(len(lines))]
                files.write_lines(self.path(lines), [self.header(), *found])
                begun.unlink()

    def begun(self, lines: range) -> Path:
        """The file of what is done of a part that is not."""
        path = self.path(lines)
        return path.with_name(path.name + BEGUN)

    def header(self) -> str:
        """The first line of all files."""
        return json.dumps({"settings": self.settings}, ensure_ascii=False)

    def refuse_incomplete(self) -> None:
        """Raise a `UserError` if a part is missing."""
        ranges = self.ranges()
        if missing := self.left(Shard()):
            some = ", ".join(f"{x.start + 1} to {x.stop}" for x in missing[:5])
            more = ", ..." if len(missing) > 5 else ""
            raise UserError(
                f"{self.folder} lacks {counted(len(missing), 'part')} of {len(ranges)}, lines "
                f"{some}{more}: run their shards again"
            )

    def read(self) -> Iterator[tuple[range, list[str]]]:
        """All parts in order.

        Raises:
            UserError: if one is missing or cut off, has other settings, or another number of lines.
        """
        self.refuse_incomplete()
        for lines in self.ranges():
            path = self.path(lines)
            if not is_whole(path):
                raise UserError(f"{path} is damaged: remove it, and run its shard again")
            header, *found = text_lines.read_lines(path)
            self.refuse_other(path, header.encode())
            if len(found) != len(lines):
                raise UserError(
                    f"{path} has {counted(len(found), 'line')} and not {len(lines)}: remove it, "
                    "and run its shard again"
                )
            yield lines, found

    def remove(self) -> None:
        """Remove the folder; where this is killed, no half of it keeps its name.

        It stays, with a warning, where something else than parts is in the way.
        """
        gone = self.folder.with_name(f"{self.folder.name}.removed")
        for path in (gone, self.folder):
            with suppress(OSError):  # another process has removed it
                if not foreign_to_parts(path.iterdir()):
                    if path != gone:
                        path.rename(gone)
                    shutil.rmtree(gone, ignore_errors=True)
        if self.folder.exists():
            translator.warn(f"{self.folder} stays: it, or {gone}, holds something else than parts")


def foreign_to_parts(paths: Iterable[Path]) -> Path | None:
    """What lies among parts and is none of theirs, if there is anything."""
    return next((path for path in paths if not OWN.fullmatch(path.name)), None)


def is_whole(path: Path) -> bool:
    """Whether a part ends with the end of a line, as it was written."""
    with text_lines.opened(path) as (file, _):
        return file.read()[-1:] == b"\n"


def folder_of(output: Path) -> Path:
    """Where the parts of an output are."""
    if output.name in ("", ".."):
        output = output.resolve()
    return output.with_name(output.name + ".parts")


def has_parts(folder: Path) -> bool:
    """Whether there is a part, or one that was begun, in a folder."""
    return folder.is_dir() and any(NAME.fullmatch(path.name) for path in folder.iterdir())


def settings_of(models: str, data: DataFolder, search: Search) -> dict[str, Any]:
    """Models, data and search as settings; hashes stand for files, wherever they are."""
    paths = [Path(name) for name in models.split(os.pathsep)]
    exported = [path / "model.bin" for path in paths]
    weights = [x if x.is_file() else path for x, path in zip(exported, paths, strict=True)]
    languages = [data.source, data.target]
    # By whose rules text is split, where earlier versions had none for a language's name.
    by_rules = {*data.source_steps, *data.target_steps} - WITHOUT_RULES
    rules = [*map(short_code, languages)] if by_rules else languages
    made = [data.path / CODES, data.dictionary(data.source), data.dictionary(data.target)]
    return {
        "model": " ".join(map(files.sha256, weights)),
        "data": " ".join(files.sha256(path) for path in made if path.is_file()),
        "steps": " ".join([*data.source_steps, "/", *data.target_steps]),
        **({} if rules == languages else {"languages": " ".join(rules)}),
        **asdict(search),
    }
