"""Archives to sentence pairs: extract.py, clean.py and split.py on miniatures of the real ones."""

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import archives
import pytest
from conftest import ROOT

COMMON = ROOT / "examples" / "common"


def script(name, *args, **env):
    """Run a script of examples/common in a bare locale; stdout and stderr in one."""
    return subprocess.run(
        [sys.executable, COMMON / f"{name}.py", *map(str, args)],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=600,
    )


def good(name, *args, **env):
    done = script(name, *args, **env)
    assert done.returncode == 0, done.stdout
    return done.stdout


def refused(name, *args, **env):
    """The sentence, a line without traceback, with which it ends."""
    done = script(name, *args, **env)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    return done.stdout.removesuffix("\n").split("\n")[-1]


def lines(path):
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def written(folder, name, source="en", target="de"):
    """The pairs (source, target) of two files."""
    sides = [lines(folder / f"{name}.{language}") for language in (source, target)]
    return [*zip(*sides, strict=True)]


def swapped(pairs):
    return [(german, english) for english, german in pairs]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder, with a space in its name, of all archives, and the pairs in them."""
    folder = tmp_path_factory.mktemp("the archives")
    return folder, {
        **archives.wmt14(folder),
        "iwslt14": archives.iwslt14(folder),
        "multi30k": archives.multi30k(folder / "multi30k"),
    }


def test_archives_are_the_same_each_time(made, tmp_path):
    archives.wmt14(tmp_path)
    archives.iwslt14(tmp_path)
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == 7
    for name in names:
        assert (tmp_path / name).read_bytes() == (made[0] / name).read_bytes()


# --- extract.py ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("archive", "member"),
    [
        ("europarl-v7", "training/europarl-v7"),
        ("commoncrawl", "commoncrawl"),  # odd characters
        ("nc-v12", "training/news-commentary-v12"),
        ("nc-v9", "training/news-commentary-v9"),  # lines that end in "\r\n"
    ],
)
def test_bitext(made, tmp_path, archive, member):
    folder, pairs = made
    members = [f"{member}.de-en.{language}" for language in ("en", "de")]
    archive_path = folder / f"training-parallel-{archive}.tgz"
    said = good("extract", "bitext", archive_path, *members, tmp_path / "a.en", tmp_path / "a.de")
    assert written(tmp_path, "a") == pairs[archive]
    assert said == f"extract: {len(pairs[archive])} pairs in a\n"
    # Whichever of the two comes first in the archive.
    good("extract", "bitext", archive_path, *members[::-1], tmp_path / "b.de", tmp_path / "b.en")
    assert written(tmp_path, "b") == pairs[archive]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.de", "a.en", "b.de", "b.en"]


def test_bitext_refuses_what_is_wrong(made, tmp_path):
    out = tmp_path / "out"

    def bitext(path, *members):
        return refused("extract", "bitext", path, *members, out / "a.en", out / "a.de")

    europarl = made[0] / "training-parallel-europarl-v7.tgz"
    stem = "training/europarl-v7"
    said = bitext(europarl, f"{stem}.de-en.en", f"{stem}.fr-en.fr")
    assert f"{europarl} does not hold {stem}.fr-en.fr; it holds {stem}.cs-en.cs, " in said
    said = bitext(tmp_path / "nowhere.tgz", "a.en", "a.de")
    assert said == f"cannot read {tmp_path}/nowhere.tgz: No such file or directory"

    path = tmp_path / "a.tgz"
    path.write_bytes(b"<html>no such page</html>")
    assert f"{path} is damaged or no such archive (" in bitext(path, "a.en", "a.de")
    archives.tgz(path, {"a.en": os.urandom(100_000).hex().encode(), "a.de": b"x\n"})
    path.write_bytes(path.read_bytes()[:50_000])
    assert f"{path} is damaged or no such archive (" in bitext(path, "a.en", "a.de")
    archives.tgz(path, {"a.en": b"a\nb\nc\n", "a.de": b"a\nb"})
    said = bitext(path, "a.en", "a.de")
    assert f"a.en of {path} has 3 lines and a.de of {path} has 2: they must be trans" in said
    archives.tgz(path, {"a.en": b"a\nb\n", "a.de": b"a\nn\xe4ch\n"})
    said = bitext(path, "a.en", "a.de")
    assert f"a.de of {path}, line 2 is not UTF-8 (byte 0xe4 at position 2)" in said
    archives.tgz(path, {"a.en": b"", "a.de": b""})
    assert bitext(path, "a.en", "a.de") == f"a.en of {path} and a.de of {path} are empty"
    assert not [*out.iterdir()]


def test_testset_is_read_as_sacrebleu_reads_it(made, tmp_path):
    folder, pairs = made
    unused = tmp_path / "cache"

    def testset(name, pair, *languages):
        out = [tmp_path / f"{name.replace('/', '-')}.{language}" for language in languages]
        good("extract", "testset", "--any", name, pair, folder, *out, SACREBLEU=str(unused))

    testset("wmt14/full", "en-de", "en", "de")
    assert written(tmp_path, "wmt14-full") == pairs["newstest2014"]
    assert pairs["newstest2014"][-1] == ("Cats &amp; cows", "Katzen &amp; Kühe")
    testset("wmt14/full", "de-en", "de", "en")
    assert written(tmp_path, "wmt14-full") == pairs["newstest2014"]
    testset("wmt13", "en-de", "en", "de")
    assert written(tmp_path, "wmt13") == pairs["newstest2013"]
    assert not unused.exists()


def test_testset_takes_wmt13_as_sacrebleu_has_it(tmp_path):
    pairs = archives.sentences(5, 77)
    archives.wmt13_of_sacrebleu(tmp_path, pairs)
    out = tmp_path / "a.en", tmp_path / "a.de"
    good("extract", "testset", "--any", "wmt13", "en-de", tmp_path, *out)
    assert written(tmp_path, "a") == pairs


def test_testset_is_where_sacrebleu_has_it():
    address = good("extract", "address", "wmt14/full").rstrip()
    assert address.startswith("https://") and address.endswith("statmt.org/wmt14/test-full.tgz")


def test_testset_refuses_what_is_wrong(made, tmp_path):
    def testset(name, pair, folder=tmp_path, *options):
        out = tmp_path / "a.en", tmp_path / "a.de"
        return refused("extract", "testset", *options, name, pair, folder, *out)

    said = testset("wmt14/full", "en-de")
    assert said == f"cannot read {tmp_path}/test-full.tgz: No such file or directory"
    said = testset("wmt13", "en-de")
    assert said == f"cannot read {tmp_path}/test.tgz: No such file or directory"
    assert "has no test set wmt14/fall; it has wmt14/full, " in testset("wmt14/fall", "en-de")
    assert "wmt14/full has no pair en-xx; it has cs-en, " in testset("wmt14/full", "en-xx")
    archives.tgz(tmp_path / "test-full.tgz", {"test-full/README": b"\n"})
    said = testset("wmt14/full", "en-de", tmp_path, "--any")
    assert "does not hold test-full/newstest2014-deen-ref.de.sgm and test-full/newst" in said
    said = testset("wmt14/full", "en-de", made[0])
    digest = hashlib.md5((made[0] / "test-full.tgz").read_bytes()).hexdigest()
    assert f"test-full.tgz has the MD5 {digest}, but sacreBLEU knows a8cd784e006feb32" in said
    assert "give the recipe --sizes any" in said


def test_nothing_is_written_where_an_archive_says(tmp_path):
    """dev.tgz, which no checksum covers, with members that point out of any folder."""
    folder, out, outside = tmp_path / "archives", tmp_path / "out", tmp_path / "outside"
    files = archives.sgm_files("dev/newstest2013", "newstest2013", archives.sentences(5, 77))
    names = (*("../" * n + "escaped" for n in range(1, 9)), str(outside), "dev/../../escaped")
    archives.tgz(folder / "dev.tgz", {**dict.fromkeys(names, b"x"), **files})
    with tarfile.open(folder / "dev.tgz") as tar:
        members = [(m, tar.extractfile(m)) for m in tar]
        with tarfile.open(folder / "links.tgz", "w:gz") as evil:
            for kind, to in ((tarfile.SYMTYPE, str(outside)), (tarfile.CHRTYPE, "")):
                link = tarfile.TarInfo("dev/newstest2013-ref.fr.sgm")
                link.type, link.linkname = kind, to
                evil.addfile(link)
            for member, content in members:
                evil.addfile(member, content)
    (folder / "links.tgz").replace(folder / "dev.tgz")
    before = {*tmp_path.parent.iterdir(), *tmp_path.iterdir()}
    cache = tmp_path / "a" / "b" / "c"
    cache.mkdir(parents=True)
    paths = out / "valid.en", out / "valid.de"
    good("extract", "testset", "--any", "wmt13", "en-de", folder, *paths, TMPDIR=str(cache))
    assert written(out, "valid") == archives.sentences(5, 77)
    after = {*tmp_path.parent.iterdir(), *tmp_path.iterdir()}
    assert after - before == {out, tmp_path / "a"} and not [*cache.iterdir()]
    assert [*cache.parent.iterdir()] == [cache] and not Path("/tmp/escaped").exists()


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "de")])
def test_iwslt14(made, tmp_path, source, target):
    folder, pairs = made[0], made[1]["iwslt14"]
    said = good("extract", "iwslt14", folder / "de-en.tgz", source, target, tmp_path)
    train, test = (written(tmp_path, name) for name in ("train", "test"))
    assert train == pairs["train"]
    assert train[:3] == [
        ("<speaker>A. Speaker</speaker>", "<speaker>A. Speaker</speaker>"),
        ("Talk 0: on cats", "Vortrag 0: über Katzen"),
        (" A speaker on cats. ", " Jemand über Katzen. "),
    ]
    # 10, 11, 12, 13 and 14 pairs; the last set begins with curly apostrophes in the archive.
    order = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    expected = [pair for name in order for pair in pairs[name]]
    expected[46] = ("It's 5 &gt; 4", "Ist's 5 &gt; 4")
    assert test == expected and len(test) == 60
    assert said == "extract: 313 pairs in train\nextract: 60 pairs in test\n"


def test_iwslt14_refuses_what_is_wrong(made, tmp_path):
    archive = tmp_path / "de-en.tgz"
    out = tmp_path / "out"
    with tarfile.open(made[0] / "de-en.tgz") as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}
    name = "de-en/IWSLT14.TED.tst2011.de-en.de.xml"
    archives.tgz(archive, {**files, name: files[name].replace(b'<seg id="1">', b"<seg>")})
    said = refused("extract", "iwslt14", archive, "de", "en", out)
    assert f"{name} has 12 lines and de-en/IWSLT14.TED.tst2011.de-en.en.xml has 13" in said
    archives.tgz(archive, {n: content for n, content in files.items() if n != name})
    said = refused("extract", "iwslt14", archive, "de", "en", out)
    assert f"{archive} does not hold {name}; it holds de-en/README, " in said
    said = refused("extract", "iwslt14", archive, "de", "fr", out)
    assert said == "the pairs are de-en and en-de, not de-fr"


SETS = {"train": "train", "val": "valid"}  # the others keep their names


def test_multi30k_from_a_folder(made, tmp_path):
    folder, pairs = made[0] / "multi30k", made[1]["multi30k"]
    good("extract", "multi30k", folder, "en", "de", tmp_path)
    for name, expected in pairs.items():
        assert written(tmp_path, SETS.get(name, name)) == expected
    assert len([*tmp_path.iterdir()]) == 10
    said = good("extract", "multi30k", folder, "cs", "en", tmp_path / "cs")
    assert "test_2017_mscoco is left out, since it is not there in cs\n" in said
    assert written(tmp_path / "cs", "test_2016_flickr", "cs", "en") == swapped(
        pairs["test_2016_flickr"]
    )
    assert len([*(tmp_path / "cs").iterdir()]) == 6


def test_multi30k_from_an_archive_and_by_its_old_names(made, tmp_path):
    pairs = made[1]["multi30k"]
    names = {"train": "train", "val": "val", "test_2016_flickr": "test2016"}
    files = {
        f"dataset/raw/{there}.{language}": archives.text([pair[i] for pair in pairs[name]])
        for name, there in names.items()
        for i, language in enumerate(("en", "de"))
    }
    archives.tgz(tmp_path / "all.tar.gz", {"dataset/README": b"", **files})
    good("extract", "multi30k", tmp_path / "all.tar.gz", "de", "en", tmp_path)
    for name in names:
        assert written(tmp_path, SETS.get(name, name)) == pairs[name]


def test_multi30k_refuses_what_is_wrong(made, tmp_path):
    (tmp_path / "train.en").write_text("a\nb\n")
    (tmp_path / "train.de.gz").write_bytes((made[0] / "multi30k" / "val.de.gz").read_bytes())
    said = refused("extract", "multi30k", tmp_path, "en", "de", tmp_path / "out")
    assert f"train.en of {tmp_path} has 2 lines and train.de.gz of {tmp_path} has 20: " in said
    said = refused("extract", "multi30k", tmp_path, "en", "fr", tmp_path / "out")
    assert f"{tmp_path} does not hold train in fr: it should hold train, val, test_2016" in said
    (tmp_path / "train.de.gz").write_bytes(b"no gzip")
    said = refused("extract", "multi30k", tmp_path, "en", "de", tmp_path / "out")
    assert f"train.de.gz of {tmp_path} is damaged (Not a gzipped file" in said


# --- clean.py and split.py -----------------------------------------------------------------------


def put(folder, name, pairs):
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.{language}" for language in ("en", "de")]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes(archives.text(side))
    return paths


def test_clean_keeps_what_is_worth_training_on(tmp_path):
    pairs = [
        ("a b", "c d"),
        ("  a \t b\u00a0c ", "d  e"),  # 3 to 2: the limit itself
        ("a b c d", "e f"),  # 4 to 2
        ("e f", "a b c d"),
        ("a b c d e f", "a b c d e f"),
        ("a b c d e f g", "a b c d e f"),  # 7
        ("a", "b"),  # fewer than 2
        ("", ""),
        ("\u2028", "a"),
        ("x" * 1000 + " y", "x y"),
        ("x" * 1001 + " y", "x y"),
        ("x y", "y " + "x" * 1001),
    ]
    files = put(tmp_path / "raw text", "train", pairs)
    out = [tmp_path / "out" / "train.en", tmp_path / "out" / "train.de"]
    said = good("clean", "--min", 2, "--max", 6, "--ratio", 1.5, *files, *out)
    assert written(tmp_path / "out", "train") == [
        ("a b", "c d"),
        ("a b c", "d e"),
        ("a b c d e f", "a b c d e f"),
        ("x" * 1000 + " y", "x y"),
    ]
    assert said == "clean: kept 4 of 12 pairs (2 to 6 tokens, ratio at most 1.5)\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["train.de", "train.en"]


def test_clean_has_the_defaults_of_moses(tmp_path):
    pairs = [
        ("a " * 80, "a " * 80),
        ("a " * 81, "a " * 80),
        ("a " * 9, "a"),
        ("a", "a " * 10),
        ("", "a"),
    ]
    files = put(tmp_path, "train", pairs)
    good("clean", "--min", 0, *files, *files)  # an empty side is never kept; in place
    assert [len(s.split()) for s, _ in written(tmp_path, "train")] == [80, 9]
    said = refused("clean", "--min", 81, "--max", 90, *files, *files)
    assert said == f"no pair is left for {files[0]} and {files[1]}"
    assert [len(s.split()) for s, _ in written(tmp_path, "train")] == [80, 9]


def test_split_moves_every_nth_pair(tmp_path):
    pairs = [(f"{i}", f"-{i}") for i in range(1, 51)]
    train = put(tmp_path, "train", pairs)
    train[0].write_bytes(b"\xef\xbb\xbf" + train[0].read_bytes().replace(b"\n", b"\r\n"))
    valid = [tmp_path / "valid.en", tmp_path / "valid.de"]
    said = good("split", "--every", 23, *train, *valid)
    assert written(tmp_path, "valid") == [("23", "-23"), ("46", "-46")]
    assert written(tmp_path, "train") == pairs[:22] + pairs[23:45] + pairs[46:]
    assert said == "split: 48 pairs stay in train, 2 go to valid\n"
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize("name", ["clean", "split"])
def test_clean_and_split_refuse_what_is_wrong(tmp_path, name):
    flags = {"clean": [], "split": ["--every", 2]}[name]
    files = put(tmp_path, "train", [("a", "b"), ("c", "d")])
    out = [tmp_path / "out.en", tmp_path / "out.de"]
    files[1].write_bytes(b"b\n")
    said = refused(name, *flags, *files, *out)
    assert f"{files[0]} has 2 lines and {files[1]} has 1: they must be translations" in said
    files[1].write_bytes(b"b\n\xff\n")
    assert f"{files[1]}, line 2 is not UTF-8 (byte 0xff" in refused(name, *flags, *files, *out)
    files[1].unlink()
    assert (
        refused(name, *flags, *files, *out) == f"cannot read {files[1]}: No such file or directory"
    )
    assert lines(files[0]) == ["a", "c"] and len([*tmp_path.iterdir()]) == 1


def test_split_refuses_to_leave_nothing(tmp_path):
    files = put(tmp_path, "train", [("a", "b"), ("c", "d")])
    out = [tmp_path / "valid.en", tmp_path / "valid.de"]
    said = refused("split", "--every", 23, *files, *out)
    assert said == f"{files[0]} has 2 lines, fewer than --every 23"
    done = script("split", "--every", 1, *files, *out)
    assert done.returncode == 2 and "would leave nothing to train on" in done.stdout
    assert len([*tmp_path.iterdir()]) == 2
