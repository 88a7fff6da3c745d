"""Archives to sentence pairs: extract.py and parallel_text.py on miniatures of the real ones."""

import hashlib
import os
import tarfile
from pathlib import Path
from uuid import uuid4

import pytest
from common import extract, parallel_text
from helpers import archives
from helpers.commands import sentence_of


def refused(function, *args):
    """The sentence with which it ends the program."""
    return sentence_of(lambda: function(*args))


def both(folder, name, source="en", target="de"):
    return folder / f"{name}.{source}", folder / f"{name}.{target}"


def lines(path):
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def written(folder, name, source="en", target="de"):
    """The pairs (source, target) of two files."""
    sides = [lines(path) for path in both(folder, name, source, target)]
    return [*zip(*sides, strict=True)]


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
    assert len(names) == 8
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
def test_two_files_of_an_archive(made, tmp_path, archive, member):
    folder, pairs = made
    names = tuple(f"{member}.de-en.{language}" for language in ("en", "de"))
    path = folder / f"training-parallel-{archive}.tgz"
    number = extract.from_archive(path, names, "lines", both(tmp_path, "a"))
    assert written(tmp_path, "a") == pairs[archive] and number == len(pairs[archive])
    # Whichever of the two comes first in the archive.
    extract.from_archive(path, names[::-1], "lines", both(tmp_path, "b", "de", "en"))
    assert written(tmp_path, "b") == pairs[archive]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.de", "a.en", "b.de", "b.en"]


def test_an_archive_that_is_not_as_it_should_be(made, tmp_path):
    out = tmp_path / "out"

    def bitext(path, *members):
        return refused(extract.from_archive, path, members, "lines", both(out, "a"))

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


def test_a_test_set_is_read_as_sacrebleu_reads_it(made, tmp_path):
    folder, pairs = made

    def testset(name, pair, archive, *languages):
        out = both(tmp_path, name.replace("/", "-"), *languages)
        extract.testset(name, pair, archive, out, is_usual=False)

    full = folder / "test-full.tgz"
    testset("wmt14/full", "en-de", full, "en", "de")
    assert written(tmp_path, "wmt14-full") == pairs["newstest2014"]
    assert pairs["newstest2014"][-1] == ("Cats &amp; cows", "Katzen &amp; Kühe")
    testset("wmt14/full", "de-en", full, "de", "en")
    assert written(tmp_path, "wmt14-full") == pairs["newstest2014"]
    archives.wmt13_of_sacrebleu(tmp_path, pairs["newstest2013"])
    testset("wmt13", "en-de", tmp_path / "test.tgz", "en", "de")
    assert written(tmp_path, "wmt13") == pairs["newstest2013"]
    # And from WMT14's own archive, which sacreBLEU does not read.
    names = tuple(f"dev/newstest2013-{side}.sgm" for side in ("src.en", "ref.de"))
    extract.from_archive(folder / "dev.tgz", names, "sgm", both(tmp_path, "dev"))
    assert written(tmp_path, "dev") == pairs["newstest2013"]


def test_a_test_set_is_where_sacrebleu_has_it():
    address = extract.address("wmt14/full")
    assert address.startswith("https://") and address.endswith("statmt.org/wmt14/test-full.tgz")
    pairs = [extract.has_pair("multi30k/2016", pair) for pair in (("de", "en"), ("de", "fr"))]
    assert pairs == ["de-en", ""] or pairs == ["en-de", ""]


def test_a_test_set_that_is_not_as_it_should_be(made, tmp_path):
    def testset(name, pair, folder=tmp_path, is_usual=True):
        path = folder / "test-full.tgz"
        return refused(extract.testset, name, pair, path, both(tmp_path, "a"), is_usual)

    said = testset("wmt14/full", "en-de")
    assert said == f"cannot read {tmp_path}/test-full.tgz: No such file or directory"
    assert "has no test set wmt14/fall; did you mean wmt14/full" in testset("wmt14/fall", "en-de")
    assert "wmt14/full has no pair en-xx; it has cs-en, " in testset("wmt14/full", "en-xx")
    for name in ("wmt22", "mtnt1.1/test"):
        assert f"{name} is in a format that this program does not read" in testset(name, "en-de")
    archives.tgz(tmp_path / "test-full.tgz", {"test-full/README": b"\n"})
    said = testset("wmt14/full", "en-de", is_usual=False)
    assert "does not hold test-full/newstest2014-deen-ref.de.sgm and test-full/newst" in said
    said = testset("wmt14/full", "en-de", made[0])
    digest = hashlib.md5((made[0] / "test-full.tgz").read_bytes()).hexdigest()
    assert f"test-full.tgz has the MD5 {digest}, but sacreBLEU knows a8cd784e006feb32" in said
    assert "give the recipe --sizes any" in said


def test_nothing_is_written_where_an_archive_says(tmp_path, monkeypatch):
    """Members that point out of any folder, links and devices."""
    folder, outside = tmp_path / "archives", tmp_path / "outside"
    pairs = archives.sentences(5, 77)
    archives.wmt13_of_sacrebleu(folder, pairs)
    archive, cache = folder / "test.tgz", tmp_path / "a" / "b" / "c"
    escaped = f"escaped-{uuid4().hex}"
    names = (*("../" * n + escaped for n in range(1, 9)), str(outside), f"test/../../{escaped}")
    with tarfile.open(archive) as tar, tarfile.open(folder / "evil.tgz", "w:gz") as evil:
        for name in names:
            evil.addfile(tarfile.TarInfo(name))
        for kind, to in ((tarfile.SYMTYPE, str(outside)), (tarfile.CHRTYPE, "")):
            link = tarfile.TarInfo("test/newstest2013-src.en.sgm")
            link.type, link.linkname = kind, to
            evil.addfile(link)
        for member in tar:
            evil.addfile(member, tar.extractfile(member))
    cache.mkdir(parents=True)
    before = {*tmp_path.parent.iterdir(), *tmp_path.iterdir()}
    monkeypatch.setattr(extract.tempfile, "tempdir", str(cache))
    paths = both(tmp_path / "out", "valid")
    extract.testset("wmt13", "en-de", folder / "evil.tgz", paths, is_usual=False)
    assert written(tmp_path / "out", "valid") == pairs
    after = {*tmp_path.parent.iterdir(), *tmp_path.iterdir()}
    assert after - before == {tmp_path / "out"} and not [*cache.iterdir()]
    assert [*cache.parent.iterdir()] == [cache] and not Path("/tmp", escaped).exists()


def test_formats_of_iwslt14(made, tmp_path):
    folder, pairs = made[0], made[1]["iwslt14"]
    names = tuple(f"de-en/train.tags.de-en.{language}" for language in ("en", "de"))
    extract.from_archive(folder / "de-en.tgz", names, "ted-tags", both(tmp_path, "train"))
    train = written(tmp_path, "train")
    assert train == pairs["train"]
    assert train[:3] == [
        ("<speaker>A. Speaker</speaker>", "<speaker>A. Speaker</speaker>"),
        ("Talk 0: on cats", "Vortrag 0: über Katzen"),
        (" A speaker on cats. ", " Jemand über Katzen. "),
    ]
    names = tuple(f"de-en/IWSLT14.TED.tst2012.de-en.{language}.xml" for language in ("en", "de"))
    extract.from_archive(folder / "de-en.tgz", names, "ted-xml", both(tmp_path, "test"))
    # Its first sentence has curly apostrophes in the archive.
    expected = [("It's 5 &gt; 4", "Ist's 5 &gt; 4"), *pairs["TED.tst2012"][1:]]
    assert written(tmp_path, "test") == expected


def test_two_text_files(made, tmp_path):
    folder, pairs = made[0] / "multi30k", made[1]["multi30k"]
    paths = folder / "train.en.gz", folder / "train.de.gz"
    assert extract.from_files(paths, "lines", both(tmp_path, "train")) == len(pairs["train"])
    assert written(tmp_path, "train") == pairs["train"]
    (tmp_path / "a.en").write_text("a\nb\n")
    (tmp_path / "a.de.gz").write_bytes((folder / "val.de.gz").read_bytes())
    paths = tmp_path / "a.en", tmp_path / "a.de.gz"
    said = refused(extract.from_files, paths, "lines", both(tmp_path, "out"))
    assert f"a.en has 2 lines and {tmp_path}/a.de.gz has 20: " in said
    for content, reason in (
        (b"no gzip", "is damaged (Not a gzipped file"),
        (paths[1].read_bytes()[:-20], "is damaged or no such archive (Compressed file ended"),
    ):
        paths[1].write_bytes(content)
        said = refused(extract.from_files, paths, "lines", both(tmp_path, "out"))
        assert f"{paths[1]} {reason}" in said
    assert not [*tmp_path.glob("out*")]


# --- parallel_text.py ----------------------------------------------------------------------------


def put(folder, name, pairs):
    folder.mkdir(exist_ok=True)
    paths = both(folder, name)
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes(archives.text(side))
    return paths


def test_clean_keeps_what_is_worth_training_on(tmp_path, capsys):
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
    parallel_text.clean(files, both(tmp_path / "out", "train"), 2, 6, 1.5)
    assert written(tmp_path / "out", "train") == [
        ("a b", "c d"),
        ("a b c", "d e"),
        ("a b c d e f", "a b c d e f"),
        ("x" * 1000 + " y", "x y"),
    ]
    said = capsys.readouterr().out
    assert said == "clean: kept 4 of 12 pairs (2 to 6 tokens, ratio at most 1.5)\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["train.de", "train.en"]


def test_clean_in_place(tmp_path):
    pairs = [
        ("a " * 80, "a " * 80),
        ("a " * 81, "a " * 80),
        ("a " * 9, "a"),
        ("a", "a " * 10),
        ("", "a"),
    ]
    files = put(tmp_path, "train", pairs)
    parallel_text.clean(files, files, 0, 80, 9)  # an empty side is never kept
    assert [len(s.split()) for s, _ in written(tmp_path, "train")] == [80, 9]
    said = refused(parallel_text.clean, files, files, 81, 90, 9)
    assert said.startswith(f"none of the pairs of {files[0]} is worth training on (81 to 90 tokens")
    assert [len(s.split()) for s, _ in written(tmp_path, "train")] == [80, 9]


def test_split_moves_every_nth_pair(tmp_path, capsys):
    pairs = [(f"{i}", f"-{i}") for i in range(1, 51)]
    train = put(tmp_path, "train", pairs)
    train[0].write_bytes(b"\xef\xbb\xbf" + train[0].read_bytes().replace(b"\n", b"\r\n"))
    parallel_text.split(train, both(tmp_path, "valid"), 23)
    assert written(tmp_path, "valid") == [("23", "-23"), ("46", "-46")]
    assert written(tmp_path, "train") == pairs[:22] + pairs[23:45] + pairs[46:]
    assert capsys.readouterr().out == "split: 48 pairs stay in train, 2 go to valid\n"
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize("name", ["clean", "split"])
def test_clean_and_split_refuse_what_is_wrong(tmp_path, name):
    files, out = put(tmp_path, "train", [("a", "b"), ("c", "d")]), both(tmp_path, "out")

    def said():
        limits = {"clean": (1, 80, 9), "split": (2,)}[name]
        return refused(getattr(parallel_text, name), files, out, *limits)

    files[1].write_bytes(b"b\n")
    assert f"{files[0]} has 2 lines and {files[1]} has 1: they must be translations" in said()
    files[1].write_bytes(b"b\n\xff\n")
    assert f"{files[1]}, line 2 is not UTF-8 (byte 0xff" in said()
    files[1].unlink()
    assert said() == f"cannot read {files[1]}: No such file or directory"
    assert lines(files[0]) == ["a", "c"] and len([*tmp_path.iterdir()]) == 1


def test_split_refuses_to_leave_nothing(tmp_path):
    files, out = put(tmp_path, "train", [("a", "b"), ("c", "d")]), both(tmp_path, "valid")
    said = refused(parallel_text.split, files, out, 23)
    assert said == f"{files[0]} has 2 lines, fewer than 23"
    assert "would leave nothing to train on" in refused(parallel_text.split, files, out, 1)
    assert len([*tmp_path.iterdir()]) == 2


# --- A user's own text ---------------------------------------------------------------------------


def test_own_text_is_split(tmp_path):
    folder, raw = tmp_path / "my text", tmp_path / "raw"
    pairs = archives.sentences(400, 1)
    long = ["an address " + "x" * 2000, "word " * 180] * 30  # more tokens than a model takes
    pairs += [(f"{i} {text}", text) for i, text in enumerate(long)]
    put(folder, "train", [*pairs, ("", ""), ("", "only here")])
    parallel_text.hold_out(folder, ("en", "de"), raw)
    different = len({english for english, _ in pairs})
    sides = [[english for english, _ in written(raw, x)] for x in ("train", "valid", "test")]
    assert len(sides[1]) == len(sides[2]) == (different - len(long)) // 10
    assert sum(map(len, sides)) == different and "" not in sides[0]
    assert not {*sides[0]} & {*sides[1], *sides[2]} and not {*sides[1]} & {*sides[2]}


def test_spaces_make_no_other_sentence(tmp_path):
    """Else a sentence could be tested on that was trained on."""
    pairs = archives.sentences(400, 1)
    put(tmp_path, "train", [*pairs, *((f" {one}  ", other) for one, other in pairs)])
    parallel_text.hold_out(tmp_path, ("en", "de"), tmp_path / "raw")
    train, test = (
        {" ".join(one.split()) for one, _ in written(tmp_path / "raw", name)}
        for name in ("train", "test")
    )
    assert test and not train & test


def test_sentences_of_a_given_set_are_not_drawn_and_their_number_is_said(tmp_path, capsys):
    pairs = [(f"Sentence {i}.", f"Satz {i}.") for i in range(200)]
    put(tmp_path, "train", pairs)
    put(tmp_path, "test", [*pairs[:100], ("Another.", "Ein anderer.")])
    parallel_text.hold_out(tmp_path, ("en", "de"), tmp_path / "raw")
    train, valid, test = (written(tmp_path / "raw", x) for x in ("train", "valid", "test"))
    assert len(valid) == 10 and not {*valid} & {*test} and {*pairs[:100]} <= {*train}
    assert capsys.readouterr().out == "test: 100 source sentences of it stand in train, too\n"


def test_no_pair_that_is_worth_training_on(tmp_path):
    put(tmp_path, "train", [("x" * 2000, "y")] * 3)
    train, kept = ([tmp_path / f"{x}.{side}" for side in ("en", "de")] for x in ("train", "kept"))
    said = refused(parallel_text.clean, train, kept, 1, 80, 9)
    assert "is worth training on (1 to 80 tokens, ratio at most 9). Has the text no spaces" in said


def test_own_text_that_is_given_is_kept(tmp_path):
    sets = {name: archives.sentences(9, i) for i, name in enumerate(("train", "valid", "test"))}
    for name, pairs in sets.items():
        put(tmp_path, name, pairs)
    parallel_text.hold_out(tmp_path, ("de", "en"), tmp_path / "raw")
    for name, pairs in sets.items():
        assert written(tmp_path / "raw", name) == pairs


@pytest.mark.parametrize(
    "sets, sentence",
    [
        ({"test": [("One.", "Eins."), ("Two.", "")]}, "test.de, line 2 is empty"),
        (
            {"train": [("One.", "Eins.")] * 9},
            "has 1 different sentence, without long ones and",
        ),
    ],
)
def test_own_text_that_cannot_be_scored_is_refused(sets, sentence, tmp_path):
    for name, pairs in {"train": archives.sentences(50, 1), **sets}.items():
        put(tmp_path, name, pairs)
    said = refused(parallel_text.hold_out, tmp_path, ("en", "de"), tmp_path / "raw")
    assert sentence in said
