"""The recipes of WMT14, Multi30k and a user's own text, on miniatures of the real archives."""

import gzip
import shutil
from importlib.util import find_spec

import archives
import pytest
from conftest import ROOT
from recipes import ARCHS, EXAMPLES, FAST, FLAGS, fingerprint, kill_recipe, recipe
from server import serve

# --- WMT14 and Multi30k --------------------------------------------------------------------------


def test_wmt14(tmp_path):
    folder, work = tmp_path / "the archives", tmp_path / "the work"
    pairs = archives.wmt14(folder)
    archives.wmt13_of_sacrebleu(folder, pairs["newstest2013"])
    command = ["wmt14/reproduce.sh", "--work", work, "--archs", ARCHS[1], *FAST, "--average", "0"]
    with serve(folder, **{"dev.tgz": "missing"}) as server:
        output = recipe(*command, "--mirror", server.url, *FLAGS, LC_ALL="C")
    assert "1 x 512 tokens x update-freq 64 = 32768 tokens an update at most" in output
    _, german = zip(*pairs["newstest2014"], strict=True)
    # sacreBLEU takes entities as they are.
    assert (work / "data" / "reference" / "newstest2014.de").read_text().split("\n")[:-1] == [
        *german
    ]
    assert "##AT##" not in (work / "data" / "tokenized" / "newstest2014.en").read_text()
    train = (work / "prepare" / "clean" / "train.en").read_text().split("\n")
    assert "well @-@ known" in train and "Next line" in train
    # Of the odd pairs those with an empty side, 301 tokens or one of 1,500 characters are dropped.
    assert len(train) - 1 == 300 + 150 + 150 + len(archives.ODD) - 4
    report = (work / "report" / "report.md").read_text()
    assert "compound-split BLEU" in report


def test_wmt14_names_the_test_set_that_a_folder_lacks_before_any_work(tmp_path):
    archives.wmt14(tmp_path / "archives")
    (tmp_path / "archives" / "test-full.tgz").unlink()
    command = ["wmt14/reproduce.sh", "--from", tmp_path / "archives", "--work", tmp_path / "work"]
    output = recipe(*command, *FAST, status=1)
    assert "test-full.tgz is missing: fetch it from https://" in output
    assert not (tmp_path / "work" / "prepare").exists()


def test_wmt14_with_the_data_of_attention_is_all_you_need(tmp_path):
    pairs = archives.wmt14(tmp_path)
    command = ["wmt14/reproduce.sh", "prepare", "--setting", "v9-37k", "--sizes", "any"]
    output = recipe(*command, "--from", tmp_path, "--work", tmp_path / "work")
    assert "learning 37000 BPE merges" in output
    train = tmp_path / "work" / "prepare" / "raw" / "train.de"
    lines = train.read_bytes().decode().split("\n")[:-1]
    assert lines[-100:] == [german for _, german in pairs["nc-v9"]]  # whose lines end in "\r\n"
    assert len(lines) == 300 + 150 + len(archives.ODD) + 100


def test_multi30k_pair_with_three_test_sets(tmp_path):
    folder, work = tmp_path / "archives", tmp_path / "work"
    pairs = archives.multi30k(folder)
    for path in folder.glob("*_flickr.*.gz"):
        path.unlink()
    archives.multi30k_of_sacrebleu(folder, pairs)
    with serve(folder) as server:
        command = ["multi30k/reproduce.sh", "--mirror", server.url, "--pair", "de-en"]
        command += ["--work", work, "--archs", ARCHS[1], *FAST, "--average", "0"]
        recipe(*command, *FLAGS)
    english = (work / "prepare" / "raw" / "test_2017_flickr.en").read_text().splitlines()
    assert english == [x.rstrip() for x, _ in pairs["test_2017_flickr"]]
    text = (work / "report" / "report.md").read_text()
    assert all(f"## test_201{x}, " in text for x in ("6_flickr", "7_flickr", "7_mscoco"))
    assert "Wu et al." not in text  # whose scores are of the other direction


def test_multi30k_pair_without_english_keeps_case_where_asked(tmp_path):
    folder, work = tmp_path / "archives", tmp_path / "work"
    pairs = archives.multi30k(folder)
    command = ["multi30k/reproduce.sh", "prepare", "--pair", "de-cs", "--setting", "cased"]
    recipe(*command, "--from", folder, "--work", work, "--sizes", "any")
    sides = [
        (work / "data" / "reference" / f"test_2016_flickr.{language}").read_text()
        for language in ("de", "cs")
    ]
    german = "".join(line.rstrip() + "\n" for _, line in pairs["test_2016_flickr"])
    assert sides == [german, german]  # as what stands for Czech is German
    text = (work / "data" / "tokenized" / "test_2016_flickr.de").read_text()
    first = german.split()[0]
    assert first != first.lower() and text.startswith(first)


def test_a_missing_reference_line_is_noticed(tmp_path):
    archives.multi30k(tmp_path)
    with gzip.open(tmp_path / "test_2016_flickr.cs.gz", "at") as file:
        file.write("one line more\n")
    command = ["multi30k/reproduce.sh", "prepare", "--from", tmp_path, "--pair", "cs-en", *FAST]
    output = recipe(*command, "--work", tmp_path / "work", status=1)
    assert "has 21 lines and" in output and "has 20" in output and "Traceback" not in output


def test_an_empty_line_of_a_test_set_is_refused(tmp_path):
    archives.multi30k(tmp_path / "archives")
    path = tmp_path / "archives" / "test_2016_flickr.de.gz"
    lines = gzip.decompress(path.read_bytes()).split(b"\n")
    path.write_bytes(gzip.compress(b"\n".join([*lines[:3], b" ", *lines[4:]])))
    command = ["multi30k/reproduce.sh", "prepare", "--from", path.parent, "--sizes", "any"]
    output = recipe(*command, "--work", tmp_path / "work", status=1)
    assert "test_2016_flickr.de, line 4 is empty" in output
    assert not (tmp_path / "work" / "data").exists()


# --- a user's own text ---------------------------------------------------------------------------


def test_own_text_is_split_and_cleaned(tmp_path):
    folder, work = tmp_path / "my text", tmp_path / "work"
    folder.mkdir()
    pairs = archives.sentences(400, 1)
    long = ["an address " + "x" * 2000, "word " * 180] * 30  # more tokens than a model takes
    pairs += [(f"{i} {text}", text) for i, text in enumerate(long)]
    for i, language in enumerate(("en", "de")):
        lines = [pair[i] for pair in pairs] + ["", "only here" if i else ""]
        (folder / f"train.{language}").write_bytes("".join(x + "\r\n" for x in lines).encode())
    command = ["own-data/run.sh", "prepare", "--from", folder, "--work", work]
    recipe(*command, "--pair", "en-de")
    different = len({english for english, _ in pairs})
    raw = work / "prepare" / "raw"
    sizes = {p.stem: p.read_bytes().count(b"\n") for p in raw.glob("*.en")}
    assert sizes["test"] == sizes["valid"] == (different - len(long)) // 10
    sides = [(raw / f"{name}.en").read_bytes().split(b"\n") for name in ("train", "valid", "test")]
    assert not set(sides[0]) & (set(sides[1]) | set(sides[2])) - {b""}
    assert b"\r" not in (work / "data" / "tokenized" / "test.de").read_bytes()

    assert "say which languages" in recipe(*command, status=1)
    assert "--from FOLDER" in recipe("own-data/run.sh", "--pair", "en-de", status=1)
    assert "not en twice" in recipe(*command, "--pair", "en-en", status=1)
    (folder / "train.de").write_bytes(b"one line\n")
    output = recipe(*command, "--pair", "en-de", status=1)
    assert "translations of each other line by line" in output


def write_text(folder, **sets):
    folder.mkdir(exist_ok=True)
    for name, pairs in sets.items():
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{language}").write_text("".join(line + "\n" for line in side))


def test_own_text_that_changes_is_not_scored_with_the_old_model(tmp_path):
    folder, work = tmp_path / "text", tmp_path / "work"
    pairs = archives.sentences(220, 1)
    write_text(folder, train=pairs[:200], valid=pairs[200:210], test=pairs[210:])
    command = ["own-data/run.sh", "--from", folder, "--work", work, "--pair", "en-de"]
    arguments = ["--archs", ARCHS[1], *FAST[: FAST.index("--average")], *FLAGS]
    recipe(*command, *arguments)
    assert not (work / ARCHS[1] / "seed1" / "averaged").exists()  # the best checkpoint is scored
    assert fingerprint(work) in (work / "report" / "report.md").read_text()
    write_text(folder, train=pairs[20:200])
    recipe(*command, "prepare", *arguments)
    for stage in ("evaluate", "report"):
        output = recipe(*command, stage, *arguments, status=1)
        assert "was trained on other data than" in output
    assert "other data" in recipe(*command, "train", *arguments, status=1)


def test_text_that_other_code_prepared_is_prepared_again(tmp_path):
    """From the step on whose code it is: cleaning, but not what came before."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "macaron_fairseq").symlink_to(ROOT / "macaron_fairseq")
    write_text(tmp_path / "text", train=archives.sentences(50, 1))
    command = [tmp_path / "examples/own-data/run.sh", "prepare", "--pair", "en-de"]
    command += ["--from", tmp_path / "text", "--work", tmp_path / "work"]
    steps = [tmp_path / "work" / "prepare" / name for name in ("raw", "tokenized", "clean")]

    def prepare():
        kill_recipe("learning", *command)
        return [(step.stat().st_ino, (step / "made-from").read_text()) for step in steps]

    first = prepare()
    assert prepare() == first
    with (tmp_path / "examples" / "common" / "clean.py").open("a") as file:
        file.write("# another program\n")
    raw, tokenized, cleaned = prepare()
    assert [raw, tokenized] == first[:2] and cleaned[1] != first[2][1]


@pytest.mark.parametrize(
    "sets, sentence",
    [
        ({"test": [("One.", "Eins."), ("Two.", "")]}, "test.de, line 2 is empty"),
        ({"train": [("One.", "Eins.")] * 9}, "has 1 different sentences, too few"),
        ({"test": [("one " * 1100, "eins")]}, "test.en, line 1 is longer than 1023 tokens"),
    ],
)
def test_own_text_that_cannot_be_scored_is_refused_at_once(sets, sentence, tmp_path):
    write_text(tmp_path / "text", **{"train": archives.sentences(50, 1), **sets})
    command = ["own-data/run.sh", "prepare", "--pair", "en-de", "--work", tmp_path / "work"]
    output = recipe(*command, "--from", tmp_path / "text", status=1)
    assert sentence in output and "Traceback" not in output


def test_own_text_that_is_not_utf8_is_refused_at_once(tmp_path):
    folder, work = tmp_path / "text", tmp_path / "work"
    write_text(folder, train=archives.sentences(50, 1))
    for language, line in (("en", b"Cheese\n"), ("de", "Käse\n".encode("latin-1"))):
        path = folder / f"train.{language}"
        path.write_bytes(path.read_bytes() + line)
    command = ["own-data/run.sh", "prepare", "--pair", "en-de", "--work", work]
    output = recipe(*command, "--from", folder, status=1)
    assert "train.de, line 51 is not UTF-8 (byte 0xe4" in output and "Traceback" not in output
    assert not (work / "data").exists()


@pytest.mark.skipif(bool(find_spec("MeCab")), reason="Japanese can be scored here")
def test_a_language_that_cannot_be_scored_is_refused_at_once(tmp_path):
    arguments = ["--from", tmp_path, "--work", tmp_path / "work", "--pair", "en-ja"]
    output = recipe("own-data/run.sh", *arguments, "--cpu", status=1)
    assert "pip install 'sacrebleu[ja]'" in output
