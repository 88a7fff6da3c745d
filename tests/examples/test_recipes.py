"""The recipes whole, on miniature archives of the real layout: killed, resumed, refused."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from common import stage_evaluate, stage_prepare
from helpers import archives
from helpers.paths import ROOT
from helpers.recipes import ARCHS, EXAMPLES, FAST, FLAGS, fingerprint, kill_recipe, recipe
from helpers.server import serve
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from macaron_fairseq.common import files
from macaron_fairseq.evaluation.scores.generated import lengths_in_tokens
from macaron_fairseq.evaluation.training import training_log

pytestmark = pytest.mark.recipe

# An update is an epoch.
ANY = ["--sizes", "any", "--workers", "1"]
EPOCHS = ["--max-update", "4", "--batch", "16384", "--max-tokens", "4096"]


# --- IWSLT14: from a folder at once; from a mirror, killed in every stage ------------------------


@pytest.fixture(scope="module")
def iwslt14(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives")
    archives.iwslt14(folder, test_size=2)
    return folder


@pytest.fixture(scope="module")
def iwslt14_work(iwslt14, tmp_path_factory):
    """All stages from a local folder, in one go."""
    work = tmp_path_factory.mktemp("the work 100%s")
    arguments = ["--from", iwslt14, "--work", work, "--archs", " ".join(ARCHS), *FAST, *EPOCHS]
    arguments += ["--workers", "2", *FLAGS]
    output = recipe("iwslt14/reproduce.sh", *arguments)
    assert "1 x 4096 tokens x update-freq 4 = 16384 tokens an update at most" in output
    assert "no GPU: training in fp32 on CPU cores" in output
    assert "since nothing says what checksum they should have: de-en.tgz (" in output
    return work


def test_iwslt14_prepares_as_everybody_does(iwslt14_work):
    clean, data = iwslt14_work / "prepare" / "clean", iwslt14_work / "data"
    count = {p.name: len(p.read_bytes().split(b"\n")) - 1 for p in clean.glob("*.de")}
    # 300 sentences, two talks' speakers, titles and descriptions, and of 7 odd pairs the 4 with 1
    # to 175 tokens on both sides: 310, every 23rd of which goes to valid. Five sets of 2 to 6.
    assert count == {"train.de": 297, "valid.de": 13, "test.de": 20}
    assert (data / "clean-from").read_text() == (clean / "made-from").read_text()
    assert stage_evaluate.is_text_of(data, clean) and not stage_evaluate.is_text_of(data, data)
    assert (data / "reference" / "test.en").read_text().split("\n")[-7] == "It's 5 &gt; 4"
    tokenized = (data / "tokenized" / "test.en").read_text()
    assert tokenized == tokenized.lower()
    described = json.loads((data / "preprocessing.json").read_text())
    assert sorted(described["sha256"]) == ["code", "dict.de.txt", "dict.en.txt"]
    sums = "".join(f"{digest}  {name}\n" for name, digest in described["sha256"].items())
    checked = subprocess.run(["sha256sum", "-c"], cwd=data, input=sums, text=True)
    assert checked.returncode == 0
    assert described["source_steps"] == described["target_steps"] == ["tokenize", "lowercase"]


def test_merges_are_those_of_both_languages_texts(iwslt14_work, tmp_path):
    folder, merges = iwslt14_work / "prepare", tmp_path / "code"
    texts = [(folder / "clean" / f"train.{language}").read_text() for language in ("de", "en")]
    with merges.open("w") as file:
        learn_bpe(io.StringIO("".join(texts)), file, 60)
    assert merges.read_text() == (folder / "code" / "code").read_text()
    assert merges.read_text().count("\n") == 1 + 60


def test_iwslt14_report(iwslt14_work):
    report = json.loads((iwslt14_work / "report" / "report.json").read_text())
    assert (iwslt14_work / "report" / "curves.png").read_bytes().startswith(b"\x89PNG")
    text = (iwslt14_work / "report" / "report.md").read_text()
    assert all(f"| `{arch}` | 1 |" in text for arch in ARCHS)
    assert [run["arch"] for run in report["runs"]] == list(ARCHS)
    # What the report says is what sacreBLEU's own command finds in the translations.
    run = iwslt14_work / ARCHS[1] / "seed1" / "test"
    sacrebleu = Path(sys.executable).with_name("sacrebleu")
    reference = iwslt14_work / "data" / "reference" / "test.en"
    words = [reference, "-i", run / "hypotheses.txt", "--chrf-lowercase", "-m", "chrf"]
    score = subprocess.run(
        [sacrebleu, *words, "-b", "-w", "4"], capture_output=True, text=True, check=True
    )
    scores = {
        s["metric"]: s["score"] for s in json.loads((run / "scores.json").read_text())["scores"]
    }
    assert scores["chrF"] == pytest.approx(float(score.stdout), abs=1e-4)
    assert set(scores) == {"tokenised BLEU", "BLEU", "chrF"}


def test_what_was_decoded_is_the_mean_of_the_last_epochs(iwslt14_work):
    run = iwslt14_work / ARCHS[1] / "seed1"
    paths = [run / f"{x}.pt" for x in ("averaged/checkpoint", "checkpoint3", "checkpoint4")]
    checksum = (run / "test" / "checkpoint.sha256").read_text().strip()
    assert checksum == files.sha256(paths[0])
    mean, third, fourth = (
        torch.load(path, weights_only=False)["model"]["encoder.layers.0.fc1.weight"]
        for path in paths
    )
    torch.testing.assert_close(mean, (third + fourth) / 2)


def test_lengths_are_counted_in_the_models_tokens(iwslt14_work):
    """With --max-len-a the maximum length follows those of the source."""
    data = iwslt14_work / "data"
    with (data / "code").open() as file:
        merges = BPE(file)
    lines = (data / "tokenized" / "test.de").read_text().splitlines()
    generated = iwslt14_work / ARCHS[1] / "seed1" / "test" / "generated.txt"
    lengths, sources_known = lengths_in_tokens(generated)
    expected = [len(merges.process_line(line).split()) for line in lines]
    assert sources_known and [lengths[i].source for i in range(len(lines))] == expected
    assert sum(expected) > sum(len(line.split()) for line in lines)


def test_killed_in_every_stage(iwslt14, iwslt14_work, tmp_path):
    work = tmp_path / "work"
    for name in ("corrupt", "slow"):
        (iwslt14 / name).symlink_to(".")
    behaviour = {
        "down/de-en.tgz": "missing",
        "corrupt/de-en.tgz": "corrupt",
        "slow/de-en.tgz": "trickle",
        "de-en.tgz": "truncated-once",
    }
    with serve(iwslt14, **behaviour) as server:
        arguments = ["--archs", ARCHS[1], *FAST, *EPOCHS, "--work", work]
        for folder in ("/down", "/slow", "/corrupt", ""):
            arguments += ["--mirror", server.url + folder]

        def stage(name, when=None, **env):
            command = ["iwslt14/reproduce.sh", name, *arguments, *FLAGS]
            return kill_recipe(when, *command, **env) if when else recipe(*command, **env)

        stage("prepare", "learning 60 BPE merges", FETCH_STALL_SECONDS="2")
        assert not (work / "data").exists()
        stage("prepare")
    assert fingerprint(work) == fingerprint(iwslt14_work)  # which two processes worked on

    run = work / ARCHS[1] / "seed1"
    stage("train", run / "checkpoint_last.pt")
    assert not (run / "trained").exists()
    stage("train")
    stage("evaluate", run / "averaged.part")
    assert not (run / "averaged").exists()
    stage("evaluate", "translating test")
    assert not (run / "test").exists()
    stage("evaluate")
    # As if nothing had happened, but that fairseq makes other batches of the same length after a
    # resume.
    curves = [
        training_log.read(work / ARCHS[1] / "seed1" / "train.log").valid_curve
        for work in (work, iwslt14_work)
    ]
    (updates, losses), (usual_updates, usual_losses) = (
        zip(*curve, strict=True) for curve in curves
    )
    assert updates == usual_updates and losses == pytest.approx(usual_losses, rel=0.01)
    assert len((run / "test" / "hypotheses.txt").read_text().splitlines()) == 20
    stage("report")
    text = (work / "report" / "report.md").read_text()
    assert "- translated with the mean of the last 2 checkpoints, --beam 5 --lenpen 1.0" in text
    # Scores of a model that is trained on are not taken for its own.
    arguments += ["--max-update", "5"]
    stage("train")
    assert (run / "trained").is_file()
    output = recipe("iwslt14/reproduce.sh", "report", *arguments, *FLAGS, status=1)
    assert "was trained on after test was scored" in output


def test_finished_work_is_recognised(iwslt14, iwslt14_work, tmp_path):
    work = tmp_path / "moved"
    shutil.copytree(iwslt14_work, work)
    arguments = ["--from", iwslt14, "--work", work, "--archs", " ".join(ARCHS)]
    arguments += [*FAST, *EPOCHS]
    run = work / ARCHS[0] / "seed1"

    def stages(*words, flags=(), status=0):
        names = [word for word in words if word in ("prepare", "train", "evaluate", "report")]
        options = words[len(names) :]
        command = ["iwslt14/reproduce.sh", *names, *arguments, *options, *FLAGS, *flags]
        return recipe(*command, status=status)

    output = stages("prepare", "train", "evaluate", "report")
    assert not any(word in output for word in ("learning", "translating", "updates/s"))
    (run / "checkpoint_last.pt").touch()  # as where a copy has times of its own
    stages("report")
    assert "updates/s" not in stages("train", flags=["--save-interval-updates", "3"])
    # What was trained is neither mixed with other settings nor trained on for fewer updates.
    before = (run / "checkpoint_last.pt").read_bytes()
    output = stages("train", flags=["--dropout", "0"], status=1)
    assert "--dropout" in output and "Traceback" not in output
    output = stages("train", "--batch", "8192", "--max-update", "12", status=1)
    assert "was trained with 16384 tokens an update" in output
    assert "has had 4 updates already" in stages("train", "--max-update", "2", status=1)
    (run / "trained").unlink()  # as if killed between the last update and this
    assert "updates/s" not in stages("train")
    assert (run / "checkpoint_last.pt").read_bytes() == before
    # What was not trained to its end is not set beside what was.
    (run / "trained").unlink()
    assert "scoring what there is" in stages("evaluate")
    assert "of an unfinished training, --beam 5" in stages("report", status=1)


def test_unusual_archives_are_noticed(iwslt14, tmp_path):
    command = ["iwslt14/reproduce.sh", "prepare", "--from", iwslt14, "--work", tmp_path / "work"]
    output = recipe(*command, "--workers", "1", status=1)
    assert "these should be 160239 7283 6750" in output and "--sizes any" in output
    assert not (tmp_path / "work" / "data").exists()


# --- WMT14 and Multi30k: several archives, through a mirror --------------------------------------


def test_wmt14(tmp_path):
    folder, work = tmp_path / "the archives", tmp_path / "the work"
    pairs = archives.wmt14(folder, test_size=5)
    archives.wmt13_of_sacrebleu(folder, pairs["newstest2013"])
    command = ["wmt14/reproduce.sh", "--work", work, "--archs", ARCHS[1], *FAST]
    command += ["--batch", "1024", "--max-tokens", "1024", "--max-update", "4", "--average", "0"]
    with serve(folder, **{"dev.tgz": "missing"}) as server:
        recipe(*command, "--mirror", server.url, *FLAGS, LC_ALL="C")
    _, german = zip(*pairs["newstest2014"], strict=True)
    # sacreBLEU takes entities as they are.
    assert (work / "data" / "reference" / "newstest2014.de").read_text().split("\n")[:-1] == [
        *german
    ]
    filtered = (work / "data" / "reference" / "newstest2014-filtered.de").read_text()
    assert filtered.split("\n")[:-1] == [*german[1:]]
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
    command = ["wmt14/reproduce.sh", "prepare", "--work", tmp_path / "work", *FAST]
    output = recipe(*command, "--from", tmp_path / "archives", status=1)
    assert "test-full.tgz is missing: fetch it from https://" in output
    assert not (tmp_path / "work" / "prepare").exists()


def test_wmt14_with_the_data_of_attention_is_all_you_need(tmp_path):
    pairs = archives.wmt14(tmp_path)
    command = ["wmt14/reproduce.sh", "prepare", "--setting", "v9-37k", *ANY]
    output = recipe(*command, "--from", tmp_path, "--work", tmp_path / "work")
    assert "learning 37000 BPE merges" in output
    train = tmp_path / "work" / "prepare" / "raw" / "train.de"
    lines = train.read_bytes().decode().split("\n")[:-1]
    assert lines[-100:] == [german for _, german in pairs["nc-v9"]]  # whose lines end in "\r\n"
    assert len(lines) == 300 + 150 + len(archives.ODD) + 100


def test_multi30k_pair_with_three_test_sets(tmp_path):
    folder, work = tmp_path / "archives", tmp_path / "work"
    pairs = archives.multi30k(folder, test_size=6)
    for path in folder.glob("*_flickr.*.gz"):
        path.unlink()
    archives.multi30k_of_sacrebleu(folder, pairs)
    with serve(folder) as server:
        command = ["multi30k/reproduce.sh", "--mirror", server.url, "--pair", "de-en"]
        command += ["--work", work, "--archs", ARCHS[1], *FAST, "--average", "0"]
        recipe(*command, "--max-update", "2", "--batch", "512", *FLAGS)
    english = (work / "prepare" / "raw" / "test_2017_flickr.en").read_text().splitlines()
    assert english == [x.rstrip() for x, _ in pairs["test_2017_flickr"]]
    text = (work / "report" / "report.md").read_text()
    assert all(f"## test_201{x}, " in text for x in ("6_flickr", "7_flickr", "7_mscoco"))
    assert "Wu et al." not in text  # whose scores are of the other direction


def test_multi30k_pair_without_english_keeps_case_where_asked(tmp_path):
    folder, work = tmp_path / "archives", tmp_path / "work"
    pairs = archives.multi30k(folder)
    command = ["multi30k/reproduce.sh", "prepare", "--pair", "de-cs", "--setting", "cased"]
    recipe(*command, "--from", folder, "--work", work, *ANY)
    sides = [
        (work / "data" / "reference" / f"test_2016_flickr.{language}").read_text()
        for language in ("de", "cs")
    ]
    german = "".join(line.rstrip() + "\n" for _, line in pairs["test_2016_flickr"])
    assert sides == [german, german]  # as what stands for Czech is German
    text = (work / "data" / "tokenized" / "test_2016_flickr.de").read_text()
    first = german.split()[0]
    assert first != first.lower() and text.startswith(first)


def test_archives_have_the_checksum_that_is_known(tmp_path):
    archives.multi30k(tmp_path)
    command = ["multi30k/reproduce.sh", "prepare", "--from", tmp_path, "--work", tmp_path / "work"]
    output = recipe(*command, status=1)
    checksum = files.sha256(tmp_path / "train.en.gz")
    assert f"train.en.gz has the SHA-256 {checksum}, but" in output and "--sizes any" in output


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text + b"one line more\n", "has 21 lines and"),
        (
            lambda text: text.replace(text.split(b"\n")[3], b" ", 1),
            "is empty, and cannot be scored",
        ),
    ],
)
def test_a_test_set_that_cannot_be_scored_is_refused(damage, said, tmp_path):
    archives.multi30k(tmp_path / "archives")
    path = tmp_path / "archives" / "test_2016_flickr.cs.gz"
    path.write_bytes(gzip.compress(damage(gzip.decompress(path.read_bytes()))))
    command = ["multi30k/reproduce.sh", "prepare", "--pair", "cs-en", "--work", tmp_path / "work"]
    output = recipe(*command, "--from", path.parent, *FAST, status=1)
    assert said in output.splitlines()[-1] and "Traceback" not in output
    assert not (tmp_path / "work" / "data").exists()


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_language_whose_words_cannot_be_counted_is_not_left_out(language, tmp_path):
    folder, real = tmp_path / "bin", Path(sys.executable).with_name("subword-nmt")
    folder.mkdir()
    stub = folder / "subword-nmt"
    fails = f"[[ $1 == get-vocab && $(readlink /proc/$$/fd/1) == *.{language} ]]"
    refusal = f"if {fails}; then echo full >&2; exit 3; fi"
    stub.write_text(f'#!/usr/bin/env bash\n{refusal}\n{real} "$@"\n')
    stub.chmod(0o755)
    archives.multi30k(tmp_path)
    command = ["multi30k/reproduce.sh", "prepare", "--from", tmp_path, *FAST, "--workers", "2"]
    path = os.pathsep.join((str(folder), str(real.parent), os.environ["PATH"]))
    output = recipe(*command, "--work", tmp_path / "work", status=1, PATH=path)
    assert "full\nmulti30k: subword-nmt failed; see " in output
    assert f"count-{language}.log" in output
    assert not (tmp_path / "work" / "prepare" / "code").exists()


# --- A user's own text, and the quickstart's -----------------------------------------------------


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
    arguments = ["--archs", ARCHS[1], "--cpu", "--max-update", "2", "--batch", "512"]
    arguments += ["--workers", "1", *FLAGS]
    recipe(*command, "--merges", "60", *arguments)
    assert not (work / ARCHS[1] / "seed1" / "averaged").exists()  # the best checkpoint is scored
    assert fingerprint(work) in (work / "report" / "report.md").read_text()
    write_text(folder, train=pairs[20:200])
    output = recipe(*command, "prepare", "--merges", "60", *arguments, status=1)
    assert f"{work / ARCHS[1] / 'seed1'} was trained on what {work / 'data'} holds" in output
    assert fingerprint(work) in (work / "report" / "report.md").read_text()
    other = [tmp_path / "other" if word == work else word for word in command]
    recipe(*other, "prepare", "--merges", "60", *arguments)
    shutil.rmtree(work / "data")
    shutil.copytree(tmp_path / "other" / "data", work / "data")
    for stage in ("evaluate", "report"):
        output = recipe(*command, stage, *arguments, status=1)
        assert "was trained on other data than" in output
    assert "other data" in recipe(*command, "train", *arguments, status=1)


def test_text_that_other_code_prepared_is_prepared_again(tmp_path, monkeypatch):
    """From the step on whose code it is: here tokenising, but not what came before."""
    write_text(tmp_path / "text", train=archives.sentences(50, 1))
    command = ["own-data/run.sh", "prepare", "--pair", "en-de", "--workers", "1", "--merges", "60"]
    command += ["--from", tmp_path / "text", "--work", tmp_path / "work"]
    steps = [tmp_path / "work" / "prepare" / name for name in ("raw", "tokenized", "clean")]

    def prepare():
        recipe(*command)
        return [(step.stat().st_ino, (step / "made-from").read_text()) for step in steps]

    first = prepare()
    assert prepare() == first
    version = stage_prepare.version
    other = {"sacremoses": "0.0.1"}
    monkeypatch.setattr(stage_prepare, "version", lambda name: other.get(name) or version(name))
    raw, tokenized, clean = prepare()
    assert raw == first[0] and tokenized[1] != first[1][1] and clean[1] != first[2][1]


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"one " * 1100 + b"\n", "test.en, line 1 is longer than 1023 tokens"),
        ("Käse\n".encode("latin-1"), "test.en, line 1 is not UTF-8 (byte 0xe4"),
        (b"One.\nTwo.\n", "translations of each other line by line"),
    ],
)
def test_own_text_that_cannot_be_used_is_refused(content, sentence, tmp_path):
    write_text(tmp_path / "text", train=archives.sentences(50, 1), test=[("one", "eins")])
    (tmp_path / "text" / "test.en").write_bytes(content)
    command = ["own-data/run.sh", "prepare", "--pair", "en-de", "--work", tmp_path / "work"]
    output = recipe(*command, "--from", tmp_path / "text", status=1)
    assert sentence in output and "Traceback" not in output
    assert not (tmp_path / "work" / "data").exists()


def test_own_text_is_where_it_is_said_to_be(tmp_path):
    command = ["own-data/run.sh", "prepare", "--pair", "en-de", "--work", tmp_path]
    assert "say where your text is: --from FOLDER" in recipe(*command, status=1, is_bare=True)


def test_words_that_a_user_has_split_are_not_scored(tmp_path):
    """The reference is Chinese as it is written; and what nobody sees is told of."""
    folder = tmp_path / "text"
    folder.mkdir()
    train = [f"a dog number {number}\u00adis here" for number in range(40)]
    (folder / "train.en").write_text("".join(line + "\n" for line in train))
    (folder / "train.zh").write_text("我 喜欢 狗 。\n" * 40)
    for name in ("valid", "test"):
        (folder / f"{name}.en").write_text("I like apples\n")
        (folder / f"{name}.zh").write_text("我 喜欢 苹果 OK 。\n")
    command = ["own-data/run.sh", "prepare", "--pair", "en-zh", "--work", tmp_path / "work"]
    said = recipe(*command, "--from", folder, "--merges", "20", "--workers", "1")
    assert "warning: 40 lines of train.en hold invisible characters or" in said
    reference = tmp_path / "work/data/reference"
    assert (reference / "test.zh").read_text() == "我喜欢苹果 OK 。\n"
    assert (reference / "test.en").read_text() == "I like apples\n"
    assert (tmp_path / "work/data/tokenized/test.zh").read_text() == "我 喜欢 苹果 OK 。\n"


@pytest.mark.skipif(bool(find_spec("MeCab")), reason="Japanese can be scored here")
def test_a_language_that_cannot_be_scored_is_refused_at_once(tmp_path):
    arguments = ["prepare", "--from", tmp_path, "--work", tmp_path / "work", "--pair", "en-ja"]
    output = recipe("own-data/run.sh", *arguments, status=1)
    assert "pip install 'sacrebleu[ja]'" in output


def test_the_quickstart_prepares_the_corpus_of_its_program(tmp_path):
    """A small one, by a benchmark file of its own in another folder."""
    quickstart, folder = EXAMPLES / "quickstart", tmp_path / "small"
    folder.mkdir()
    shutil.copy(quickstart / "benchmark.yaml", folder)
    sizes = [word for name in ("train", "valid", "test") for word in (f"--{name}", "50")]
    command = [sys.executable, str(quickstart / "make_corpus.py"), *sizes]
    program = f"import subprocess, sys\nsubprocess.run([*{command}, sys.argv[1]], check=True)\n"
    (folder / "make_corpus.py").write_text(program)
    words = ["prepare", "--workers", "1", "--merges", "60", "--work", tmp_path / "work"]
    output = recipe(folder / "benchmark.yaml", *words)
    assert "small: sentence pairs: train, valid, test: 50 50 50\n" in output
    assert f"small: {tmp_path}/work/data is ready" in output


# --- What is refused before any work -------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--archs", "macaron_transformer_tny"], "Did you mean macaron_transformer_tiny"),
        (["--", "--lrr", "1"], "fairseq-train would refuse this: unrecognized arguments: --lrr 1;"),
    ],
)
def test_what_fairseq_does_not_know_is_refused_before_any_work(arguments, sentence, tmp_path):
    work = tmp_path / "work"
    output = recipe("multi30k/reproduce.sh", "--cpu", "--work", work, *arguments, status=1)
    assert sentence in output.splitlines()[-1] and not list(work.iterdir())


def test_a_missing_tool_is_named(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for path in Path(sys.executable).parent.iterdir():
        if path.name not in ("subword-nmt", "python3"):
            (folder / path.name).symlink_to(path)
    (folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "python3").chmod(0o755)
    words = ["bash", EXAMPLES / "multi30k/reproduce.sh", "--work", tmp_path / "work"]
    environ = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.returncode == 1 and not (tmp_path / "work").exists()
    assert done.stderr.startswith("multi30k: subword-nmt is not on the PATH: install it")
    assert done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.parametrize(
    "folder", ["distillation", "glue", "language-modeling", "many-tasks", "multi30k"]
)
def test_a_python_without_the_package_is_told_in_a_sentence(folder, tmp_path):
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -E -S "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    words = ["bash", EXAMPLES / folder / "reproduce.sh", "--help"]
    environ = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(words, env=environ, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith(f"{folder}: macaron_fairseq is not installed for ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("before", ["", "/nowhere"])
def test_a_recipe_and_its_commands_take_the_package_next_to_it(before, tmp_path):
    """Not the installed one, which records would name though another trained."""
    examples, package = tmp_path / "examples", tmp_path / "macaron_fairseq"
    examples.mkdir()
    shutil.copy(EXAMPLES / "start.py", examples)
    package.mkdir()
    (package / "__init__.py").touch()
    program = examples / "program.py"
    program.write_text(
        "import subprocess, sys, macaron_fairseq\n"
        "print(macaron_fairseq.__file__, flush=True)\n"
        "if len(sys.argv) == 2:\n    subprocess.run([sys.executable, sys.argv[0]])\n"
    )
    environ = {**os.environ, "PYTHONPATH": before}
    words = [sys.executable, examples / "start.py", program, "again"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [str(package / "__init__.py")] * 2
