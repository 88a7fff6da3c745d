"""Plain sentence pairs out of the archives that the recipes fetch.

Files are UTF-8, a sentence a line, and written whole or not at all. What an archive lacks, sides of
different length and text that is not UTF-8 end the program with a sentence. Nothing is unpacked: of
an archive the files that are asked for are read, whatever others say of where they belong.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import re
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

from common import parallel_text
from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.text_lines import decode

Paths = tuple[Path, Path]

# --- Tar archives --------------------------------------------------------------------------------


@contextmanager
def sound(archive: Path | str) -> Iterator[None]:
    """End the program with a sentence where the archive turns out to be damaged."""
    try:
        yield
    except OSError as error:
        if not error.strerror:  # gzip's own
            sys.exit(f"{archive} is damaged ({error}): fetch it again")
        sys.exit(f"cannot read {archive}: {error.strerror}")
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        sys.exit(f"{archive} is damaged or no such archive ({error}): fetch it again")


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in a tar archive, each to be read before the next: one pass, gigabytes or not.

    Links and devices are passed over.
    """
    with sound(archive), archive.open("rb") as file:
        size = archive.stat().st_size
        shown = bar(archive.name, "B", total=size, leave=False, unit_scale=True, unit_divisor=1024)
        with shown, tarfile.open(fileobj=watched(file, shown), mode="r|*") as tar:
            for member in tar:
                if member.isfile() and (content := tar.extractfile(member)):
                    yield member.name.removeprefix("./"), content


def watched(file: IO[bytes], shown: tqdm) -> Any:
    """The file, whose bytes a bar counts as they are read."""
    return CallbackIOWrapper(shown.update, file, "read")


def chosen(archive: Path, names: Collection[str]) -> Iterator[tuple[str, Iterator[str]]]:
    """The lines of these members, in the order of the archive.

    Ends the program if one is missing.
    """
    missing, held = set(names), []
    for name, content in members(archive):
        held.append(name)
        if name in missing:
            missing.remove(name)
            yield name, decode(content_of(archive, content), f"{name} of {archive}")
            if not missing:
                return
    if missing:
        sys.exit(
            f"{archive} does not hold {' and '.join(sorted(missing))}; it holds "
            + (", ".join(held[:50]) + (", ..." if len(held) > 50 else "") or "nothing")
        )


def content_of(archive: Path, content: IO[bytes]) -> Iterator[bytes]:
    """Its lines, with an eye on the archive."""
    with sound(archive):
        yield from content


# --- What the files look like --------------------------------------------------------------------


def ted_tags(lines: Iterable[str]) -> Iterator[str]:
    """The sentences of TED talks, and the titles and descriptions, which are training data too."""
    for line in lines:
        if not re.search("<url>|<talkid>|<keywords>", line):
            yield re.sub("</?(title|description)>", "", line)


def ted_xml(lines: Iterable[str]) -> Iterator[str]:
    """The text of each <seg>, with straight apostrophes; entities stay."""
    for line in lines:
        if match := re.search(r'<seg id="\d+">(.*)</seg>', line):
            yield match[1].strip().replace("\u2019", "'")


def sgm(lines: Iterable[str]) -> Iterator[str]:
    """The text of each <seg> of WMT's test sets, as sacreBLEU reads it."""
    for line in lines:
        if line.startswith("<seg "):
            yield " ".join(re.sub(r"<seg.*?>(.*)</seg>.*?", "\\1", line).split())


def carriage_returns(lines: Iterable[str]) -> Iterator[str]:
    """Lines that end with a bare carriage return, as old Macs wrote them."""
    for line in lines:
        yield from line.split("\r")


FORMATS: dict[str, Callable[[Iterable[str]], Iterable[str]]] = {
    "lines": lambda lines: lines,
    "carriage-returns": carriage_returns,
    "ted-tags": ted_tags,
    "ted-xml": ted_xml,
    "sgm": sgm,
}


def graphemes_and_phonemes(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """A word and its pronunciation in each line: characters and phonemes between single spaces.

    The phonemes are apart already. A space within a word becomes a token.
    """
    for number, line in enumerate(lines, 1):
        word, _, phonemes = line.partition("\t")
        if not (word.strip() and phonemes.strip()) or "\t" in phonemes:
            sys.exit(f"{name}, line {number} should hold a word, a tab and its phonemes")
        yield " ".join(word.strip().replace(" ", "▁")), " ".join(phonemes.split())


def two_columns(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """The first two columns of lines with tabs."""
    for number, line in enumerate(lines, 1):
        columns = line.split("\t")
        if len(columns) < 2:
            sys.exit(f"{name}, line {number} should hold two sentences and a tab between them")
        yield columns[0], columns[1]


# Both languages in one file.
TABLES: dict[str, Callable[[Iterable[str], str], Iterator[tuple[str, str]]]] = {
    "g2p": graphemes_and_phonemes,
    "columns": two_columns,
}

# --- What there is to extract --------------------------------------------------------------------


def from_archive(archive: Path, names: tuple[str, str], form: str, out: Paths) -> int:
    """Two members of a tar archive to two files; returns the number of pairs."""
    counts: dict[str, int] = {}
    with parallel_text.written(*out) as files:
        for name, lines in chosen(archive, names):
            counts[name] = 0
            for line in FORMATS[form](lines):
                files[names.index(name)].write(line + "\n")
                counts[name] += 1
        labels = [f"{name} of {archive}" for name in names]
        parallel_text.refuse_unequal([counts[name] for name in names], labels)
    return counts[names[0]]


def from_files(paths: Paths, form: str, out: Paths) -> int:
    """Two text files, gzipped or not, to two others; returns the number of pairs."""
    source, target = (FORMATS[form](lines_of(path)) for path in paths)
    names = str(paths[0]), str(paths[1])
    return parallel_text.write(parallel_text.pairs(source, target, names), *out)


def from_table(path: Path, member: str, form: str, out: Paths) -> int:
    """A table, perhaps a member of a zip archive, to two files; returns the number of pairs."""
    name = f"{member} of {path}" if member else str(path)
    lines = member_of_zip(path, member) if member else lines_of(path)
    return parallel_text.write(TABLES[form](lines, name), *out)


def member_of_zip(path: Path, member: str) -> Iterator[str]:
    """The lines of one file in a zip archive."""
    try:
        with sound(path), zipfile.ZipFile(path) as archive, archive.open(member) as file:
            yield from parallel_text.decode(file, f"{member} of {path}")
    except (zipfile.BadZipFile, KeyError, RuntimeError) as error:  # the last if it is encrypted
        sys.exit(f"{path} is damaged or lacks {member} ({error}): fetch it again")


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, which may be NAME.gz, NAME.xz or NAME.bz2."""
    opened: Any = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}.get(path.suffix, open)
    with sound(path), opened(path, "rb") as file:
        yield from decode(file, str(path))


def known(name: str) -> Any:
    """What sacreBLEU knows of a test set."""
    from sacrebleu.dataset import DATASETS

    if name not in DATASETS:
        near = " or ".join(get_close_matches(name, DATASETS, 5))
        question = f"did you mean {near}? " if near else ""
        sys.exit(f"sacreBLEU has no test set {name}; {question}`sacrebleu --list` names all")
    found = DATASETS[name]
    if type(found).__name__ in ("WMTXMLDataset", "TSVDataset"):  # of several texts in a file
        sys.exit(
            f"{name} is in a format that this program does not read: `sacrebleu -t {name} --echo` "
            "writes its sides, which the recipe of your own text takes"
        )
    return found


def address(name: str) -> str:
    """Where a test set of sacreBLEU can be had."""
    data = known(name)
    if len(data.data) > 1:
        sys.exit(f"{name} is in several archives, which this program does not know")
    return data.data[0]


def has_pair(name: str, languages: tuple[str, str]) -> str:
    """The pair under which sacreBLEU has these two languages, in either direction; else ""."""
    pairs = "-".join(languages), "-".join(languages[::-1])
    return next((pair for pair in pairs if pair in known(name).langpairs), "")


def testset(name: str, pair: str, archive: Path, out: Paths, is_usual: bool = True) -> int:
    """Source and (first) reference of a test set of sacreBLEU, as it reads them.

    sacreBLEU would unpack the whole archive wherever its members' names point. It gets the files of
    this pair alone, under the names that it expects itself.

    Args:
        name: as sacreBLEU calls it.
        pair: as well.
        archive: its archive, which is here.
        out: the files to write, of source and reference.
        is_usual: whether the archive's checksum must be the one that sacreBLEU knows.
    """
    data = known(name)
    if pair not in data.langpairs:
        sys.exit(f"{name} has no pair {pair}; it has {', '.join(data.langpairs)}")
    with sound(archive):
        found = hashlib.md5(archive.read_bytes()).hexdigest()
    if is_usual and (data.md5 or [found])[0] != found:
        sys.exit(
            f"{archive} has the MD5 {found}, but sacreBLEU knows {data.md5[0]}: remove it to fetch "
            "it again, or, if this file is meant, give the recipe --sizes any"
        )
    with tempfile.TemporaryDirectory() as folder:
        unpacked = type(data)(name, data=[], langpairs={pair: data.langpairs[pair]})
        unpacked._outdir, unpacked._rawdir = folder, os.path.join(folder, "raw")  # noqa: PTH118
        for member, lines in chosen(archive, data.langpairs[pair]):
            path = Path(unpacked._rawdir, member)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(line + "\n" for line in lines)
        source, target = unpacked.get_source_file(pair), unpacked.get_reference_files(pair)[0]
        return parallel_text.write(parallel_text.read(Path(source), Path(target)), *out)
