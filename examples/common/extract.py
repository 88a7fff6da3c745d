"""Plain sentence pairs out of the archives that the recipes fetch.

  extract.py bitext training-parallel-europarl-v7.tgz \\
    training/europarl-v7.de-en.en training/europarl-v7.de-en.de raw/train.en raw/train.de
  extract.py address wmt14/full
  extract.py testset wmt14/full en-de downloads raw/newstest2014.en raw/newstest2014.de
  extract.py testset wmt13 en-de downloads raw/valid.en raw/valid.de
  extract.py iwslt14 de-en.tgz de en raw
  extract.py multi30k ~/multi30k/data/task1/raw en de raw

Files are UTF-8, a sentence a line, and written whole or not at all. What an archive lacks, sides of
different length and text that is not UTF-8 end the program with a sentence.
"""

import argparse
import gzip
import hashlib
import os
import re
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import IO, Any

import aligned
from aligned import Pair
from tqdm import tqdm

# --- tar archives --------------------------------------------------------------------------------


@contextmanager
def sound(archive: Path | str) -> Iterator[None]:
    """End the program with a sentence where the archive turns out to be damaged."""
    try:
        yield
    except OSError as error:
        if not error.strerror:  # gzip's own
            sys.exit(f"{archive} is damaged ({error}): fetch it again")
        sys.exit(f"cannot read {archive}: {error.strerror}")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        sys.exit(f"{archive} is damaged or no such archive ({error}): fetch it again")


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in a tar archive, each to be read before the next: one pass, gigabytes or not."""
    with sound(archive), archive.open("rb") as file:
        size = archive.stat().st_size
        bar = tqdm.wrapattr(file, "read", total=size, desc=archive.name, disable=None, leave=False)
        with bar as watched, tarfile.open(fileobj=watched, mode="r|*") as tar:
            for member in tar:
                # Nothing is unpacked by the archive's own names; links and devices are passed over.
                if member.isfile() and (content := tar.extractfile(member)):
                    yield member.name.removeprefix("./"), content


def chosen(archive: Path, names: Collection[str]) -> Iterator[tuple[str, Iterator[str]]]:
    """The lines of these members, in the order of the archive.

    Ends the program if one is missing.
    """
    missing, held = set(names), []
    for name, content in members(archive):
        held.append(name)
        if name in missing:
            missing.remove(name)
            yield name, aligned.decode(content_of(archive, content), f"{name} of {archive}")
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


# --- what there is to extract --------------------------------------------------------------------


def bitext(args: argparse.Namespace) -> None:
    """Two members of a tar archive to two files."""
    names = (args.source_member, args.target_member)
    counts: dict[str, int] = {}
    with aligned.written(args.source, args.target) as files:
        for name, lines in chosen(args.archive, names):
            counts[name] = 0
            for line in lines:
                files[names.index(name)].write(line + "\n")
                counts[name] += 1
        labels = [f"{name} of {args.archive}" for name in names]
        aligned.refuse_unequal([counts[name] for name in names], labels)
    say(args.source, counts[names[0]])


def address(args: argparse.Namespace) -> None:
    """Print where a test set of sacreBLEU can be had."""
    print(archive_of(known(args.name)))


def testset(args: argparse.Namespace) -> None:
    """Source and (first) reference as sacreBLEU reads them, from an archive that is here."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SACREBLEU"] = cache  # which sacreBLEU reads when it is imported
        data = local(known(args.name), args.pair, args.folder, args.any)
        paths = data.get_source_file(args.pair), data.get_reference_files(args.pair)[0]
        number = aligned.write(aligned.read(*map(Path, paths)), args.source, args.target)
    say(args.source, number)


def known(name: str) -> Any:
    """What sacreBLEU knows of a test set."""
    from sacrebleu.dataset import DATASETS

    if name not in DATASETS:
        near = get_close_matches(name, DATASETS, 5) or ["wmt13", "wmt14/full"]
        sys.exit(f"sacreBLEU has no test set {name}; it has {', '.join(near)}, ...")
    return DATASETS[name]


def archive_of(data: Any) -> str:
    """The address of its archive."""
    if len(data.data) > 1:
        sys.exit(f"{data.name} is in several archives, which this program does not know")
    return data.data[0]


def local(data: Any, pair: str, folder: Path, is_any: bool) -> Any:
    """The test set from an archive in the folder, to be read by the same code of sacreBLEU.

    sacreBLEU would unpack the whole archive wherever its members' names point. It gets the files of
    this pair alone, under the names that it expects itself.
    """
    archive = folder / Path(archive_of(data)).name
    if pair not in data.langpairs:
        sys.exit(f"{data.name} has no pair {pair}; it has {', '.join(data.langpairs)}")
    wanted, checksum = data.langpairs[pair], (data.md5 or [None])[0]
    if data.name == "wmt13" and (folder / "dev.tgz").exists():  # WMT14's, which holds it too
        source, target = pair.split("-")
        wanted = [f"dev/newstest2013-src.{source}.sgm", f"dev/newstest2013-ref.{target}.sgm"]
        archive, checksum = folder / "dev.tgz", None
    with sound(archive):
        found = hashlib.md5(archive.read_bytes()).hexdigest()
    if checksum not in (None, found) and not is_any:
        sys.exit(
            f"{archive} has the MD5 {found}, but sacreBLEU knows {checksum}: remove it to fetch it "
            "again, or, if this file is meant, give the recipe --sizes any"
        )
    unpacked = type(data)(data.name, data=[], langpairs={pair: wanted})
    for name, lines in chosen(archive, wanted):
        path = Path(unpacked._rawdir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in lines)
    return unpacked


# In the order in which everybody concatenates them.
IWSLT14_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def iwslt14(args: argparse.Namespace) -> None:
    """The TED talks of IWSLT14, with the choices of fairseq's prepare-iwslt14.sh."""
    languages = (args.source, args.target)
    if sorted(languages) != ["de", "en"]:
        sys.exit(f"the pairs are de-en and en-de, not {'-'.join(languages)}")
    train = sides("de-en/train.tags.de-en.{}", languages)
    tests = [sides(f"de-en/IWSLT14.{name}.de-en.{{}}.xml", languages) for name in IWSLT14_TESTS]
    found = {}
    for name, lines in chosen(args.archive, [name for names in (train, *tests) for name in names]):
        found[name] = list(segments(lines) if name.endswith(".xml") else talks(lines))

    def pairs(names: Pair) -> Iterator[Pair]:
        return aligned.pairs(found[names[0]], found[names[1]], names)

    write(pairs(train), "train", args)
    write(chain.from_iterable(map(pairs, tests)), "test", args)


def sides(name: str, languages: Pair) -> Pair:
    """A name with one language filled in, and with the other."""
    return name.format(languages[0]), name.format(languages[1])


def talks(lines: Iterable[str]) -> Iterator[str]:
    """The sentences, and the titles and descriptions, which are training data too."""
    for line in lines:
        if not re.search("<url>|<talkid>|<keywords>", line):
            yield re.sub("</?(title|description)>", "", line)


def segments(lines: Iterable[str]) -> Iterator[str]:
    """The text of each <seg>, with straight apostrophes; entities stay."""
    for line in lines:
        if match := re.search(r'<seg id="\d+">(.*)</seg>', line):
            yield match[1].strip().replace("\u2019", "'")


# What a set is called there, in the repository or in the shared task's archives, and here.
MULTI30K = {
    "train": "train",
    "val": "valid",
    "test_2016_flickr": "test_2016_flickr",
    "test2016": "test_2016_flickr",
    "test_2017_flickr": "test_2017_flickr",
    "test2017": "test_2017_flickr",
    "test_2017_mscoco": "test_2017_mscoco",
}
NEEDED = ("train", "val", "test_2016_flickr")


def multi30k(args: argparse.Namespace) -> None:
    """Train, valid and the test sets; those of 2017 only where both languages have them."""
    languages = (args.source, args.target)
    wanted = dict.fromkeys(MULTI30K[name] for name in args.sets or MULTI30K)
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for name, content in files(args.place):
        stem, _, language = name.removesuffix(".gz").rpartition(".")
        if stem in MULTI30K and language in languages:
            label = f"{name} of {args.place}"
            with sound(label):
                text = gzip.GzipFile(fileobj=content) if name.endswith(".gz") else content
                found[MULTI30K[stem], language] = label, list(aligned.decode(text, label))
    for name in wanted:
        missing = [language for language in languages if (name, language) not in found]
        if not missing:
            (label, lines), (other_label, other) = (found[name, lang] for lang in languages)
            write(aligned.pairs(lines, other, (label, other_label)), name, args)
        elif "2017" in name:
            print(f"extract: {name} is left out, since it is not there in {' and '.join(missing)}")
        else:
            sys.exit(
                f"{args.place} does not hold {name} in {' and '.join(missing)}: it should hold "
                f"{', '.join(args.sets or NEEDED)} as NAME.LANGUAGE.gz or NAME.LANGUAGE"
            )


def files(place: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in a folder or a tar archive, and their names without folders."""
    if place.is_dir():
        for path in sorted(place.iterdir()):
            if path.is_file():
                with path.open("rb") as file:
                    yield path.name, file
    else:
        for name, content in members(place):
            yield Path(name).name, content


# --- the command line ----------------------------------------------------------------------------


def write(pairs: Iterable[Pair], name: str, args: argparse.Namespace) -> None:
    """Write pairs to NAME.SOURCE and NAME.TARGET in the output folder, and say how many."""
    paths = args.out / f"{name}.{args.source}", args.out / f"{name}.{args.target}"
    say(paths[0], aligned.write(pairs, *paths))


def say(path: Path, number: int) -> None:
    """Print how many pairs were written."""
    print(f"extract: {number:,} pairs in {path.stem}")


def main() -> None:
    """Extract what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="WHAT")

    def command(run: Callable[[argparse.Namespace], None], help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(run.__name__, help=help, description=run.__doc__)
        added.set_defaults(run=run)
        return added

    added = command(bitext, "two text files of a tar archive")
    added.add_argument("archive", type=Path)
    added.add_argument("source_member", help="its name in the archive")
    added.add_argument("target_member")
    added.add_argument("source", type=Path, help="the file to write")
    added.add_argument("target", type=Path)
    added = command(address, "where a test set of sacreBLEU can be had")
    added.add_argument("name", help="as sacreBLEU calls it: wmt13, wmt14/full")
    added = command(testset, "a test set of sacreBLEU")
    added.add_argument("name", help="as sacreBLEU calls it: wmt13, wmt14/full")
    added.add_argument("pair", help="en-de")
    added.add_argument(
        "folder",
        type=Path,
        help="where its archive is (test-full.tgz; for wmt13 dev.tgz or test.tgz)",
    )
    added.add_argument("source", type=Path, help="the file to write")
    added.add_argument("target", type=Path)
    added.add_argument("--any", action="store_true", help="whatever its checksum is")
    added = command(iwslt14, "train and test of de-en.tgz")
    added.add_argument("archive", type=Path)
    add_pair(added)
    added = command(multi30k, "train, valid and test sets of task 1")
    added.add_argument("place", type=Path, help="a folder or a tar archive of NAME.LANGUAGE[.gz]")
    add_pair(added)
    added.add_argument("--sets", nargs="+", choices=MULTI30K, metavar="NAME", help="only these")
    args = parser.parse_args()
    args.run(args)


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Two languages and where to write."""
    parser.add_argument("source", help="language")
    parser.add_argument("target", help="language")
    parser.add_argument("out", type=Path, help="folder for NAME.LANGUAGE")


if __name__ == "__main__":
    main()
