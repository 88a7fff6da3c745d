"""The recipes whole, on miniature archives of the real layout: killed, resumed, refused."""

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import archives
import pytest
import torch
from conftest import ROOT, SMALL, free_port
from server import serve

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(
    [
        *EXAMPLES.glob("*/run.sh"),
        *EXAMPLES.glob("*/reproduce.sh"),
        *EXAMPLES.glob("*/*.sbatch"),
        *ROOT.glob("*.sh"),
        ROOT / ".ci" / "run",
    ]
)
ARCHS = ("transformer_tiny_pre_norm", "macaron_transformer_tiny")
# Models and trainings of seconds; what follows -- wins over the recipe's own flags.
FAST = ["--sizes", "any", "--cpu", "--max-update", "8", "--max-tokens", "512", "--average", "2"]
FLAGS = ["--", *SMALL, "--lr", "0.01", "--warmup-updates", "1", "--validate-interval-updates", "4"]


def start(script, *args, **env):
    """A recipe in a process group of its own, with this environment's commands first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", EXAMPLES / script, *map(str, args)],
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def recipe(script, *args, status=0, **env):
    """Run it to its end; returns what it printed."""
    process = start(script, *args, **env)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == status, output
    return output


def kill_recipe(when, script, *args, **env):
    """SIGKILL to all of its processes once it has printed a line or written a file."""
    process = start(script, *args, **env)
    if isinstance(when, Path):
        while not when.exists():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.02)
    else:
        for line in process.stdout:
            if when in line:
                break
        else:
            pytest.fail(f"ended before '{when}'")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def fingerprint(work):
    return json.loads((work / "data" / "preprocessing.json").read_text())["fingerprint"]


def test_shellcheck():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    for arguments in (SCRIPTS, ["--shell=bash", *EXAMPLES.glob("common/*.sh")]):
        done = subprocess.run([shellcheck, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


# --- IWSLT14: from a folder at once; from a mirror, killed in every stage ------------------------


@pytest.fixture(scope="module")
def iwslt14(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives")
    archives.iwslt14(folder)
    return folder


@pytest.fixture(scope="module")
def iwslt14_work(iwslt14, tmp_path_factory):
    """All stages from a local folder, in one go."""
    work = tmp_path_factory.mktemp("work")
    arguments = ["--from", iwslt14, "--work", work, "--archs", " ".join(ARCHS), *FAST, *FLAGS]
    output = recipe("iwslt14/reproduce.sh", *arguments)
    assert "1 x 512 tokens x update-freq 8 = 4096 tokens an update at most" in output
    assert "no GPU: training in fp32 on CPU cores" in output
    return work


def test_iwslt14_prepares_as_everybody_does(iwslt14_work):
    clean, data = iwslt14_work / "prepare" / "clean", iwslt14_work / "data"
    count = {p.name: len(p.read_bytes().split(b"\n")) - 1 for p in clean.glob("*.de")}
    # 300 sentences, two talks' speakers, titles and descriptions, and of 7 odd pairs the 4 with 1
    # to 175 tokens on both sides: 310, every 23rd of which goes to valid. Five sets of 10 to 14.
    assert count == {"train.de": 297, "valid.de": 13, "test.de": 60}
    assert (data / "reference" / "test.en").read_text().split("\n")[-15] == "It's 5 &gt; 4"
    assert (data / "tokenized" / "test.en").read_text() == (
        (data / "tokenized" / "test.en").read_text().lower()
    )


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
    score = subprocess.run(
        [
            sacrebleu,
            reference,
            "-i",
            run / "hypotheses.txt",
            "--chrf-lowercase",
            "-m",
            "chrf",
            "-b",
            "-w",
            "4",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    scores = {
        s["metric"]: s["score"] for s in json.loads((run / "scores.json").read_text())["scores"]
    }
    assert scores["chrF"] == pytest.approx(float(score.stdout), abs=1e-4)
    assert set(scores) == {"tokenised BLEU", "BLEU", "chrF"}


def test_killed_in_every_stage(iwslt14, iwslt14_work, tmp_path):
    work = tmp_path / "work"
    with serve(iwslt14, **{"down/de-en.tgz": "missing", "de-en.tgz": "truncated-once"}) as server:
        arguments = ["--mirror", f"{server.url}/down", "--mirror", server.url, "--work", work]
        arguments += ["--archs", ARCHS[1], "--workers", "1", *FAST]

        def stage(name, when=None):
            command = ["iwslt14/reproduce.sh", name, *arguments, *FLAGS]
            return kill_recipe(when, *command) if when else recipe(*command)

        stage("prepare", "learning 10000 BPE merges")
        assert not (work / "data").exists()
        stage("prepare")
    assert fingerprint(work) == fingerprint(iwslt14_work)  # which all cores worked on

    run = work / ARCHS[1] / "seed1"
    stage("train", run / "checkpoint_last.pt")
    assert not (run / "trained").exists()
    stage("train")
    stage("evaluate", "translating test")
    assert not (run / "test").exists()
    stage("evaluate")
    # As if nothing had happened.
    uninterrupted = iwslt14_work / ARCHS[1] / "seed1" / "test" / "hypotheses.txt"
    assert (run / "test" / "hypotheses.txt").read_text() == uninterrupted.read_text()
    stage("report", work / "report" / "curves.png")
    stage("report")
    text = (work / "report" / "report.md").read_text()
    assert "- translated with the mean of the last 2 checkpoints, --beam 5 --lenpen 1.0" in text
    # Scores of a model that is trained on are not taken for its own.
    arguments += ["--max-update", "12"]
    stage("train")
    assert (run / "trained").is_file()
    output = recipe("iwslt14/reproduce.sh", "report", *arguments, *FLAGS, status=1)
    assert "was trained on after test was scored" in output
    stage("evaluate")
    stage("report")


def test_finished_work_is_recognised(iwslt14, iwslt14_work, tmp_path):
    work = tmp_path / "moved"
    shutil.copytree(iwslt14_work, work)
    arguments = ["--from", iwslt14, "--work", work, "--archs", " ".join(ARCHS), *FAST]
    run = work / ARCHS[0] / "seed1"

    def stages(*words, flags=(), status=0):
        names = [word for word in words if word in ("prepare", "train", "evaluate", "report")]
        options = words[len(names) :]
        command = ["iwslt14/reproduce.sh", *names, *arguments, *options, *FLAGS, *flags]
        return recipe(*command, status=status)

    output = stages("prepare", "train", "evaluate", "report")
    assert not any(word in output for word in ("learning", "translating", "updates ["))
    (run / "checkpoint_last.pt").touch()  # as where a copy has times of its own
    stages("report")
    assert "updates [" not in stages("train", flags=["--save-interval-updates", "3"])
    # What was trained is neither mixed with other settings nor trained on for fewer updates.
    before = (run / "checkpoint_last.pt").read_bytes()
    output = stages("train", flags=["--dropout", "0"], status=1)
    assert "--dropout" in output and "Traceback" not in output
    output = stages("train", "--batch", "2048", "--max-update", "12", status=1)
    assert "was trained with 4096 tokens an update" in output
    assert "has had 8 updates already" in stages("train", "--max-update", "4", status=1)
    (run / "trained").unlink()  # as if killed between the last update and this
    assert "updates [" not in stages("train")
    assert (run / "checkpoint_last.pt").read_bytes() == before
    # What was not trained to its end is not set beside what was.
    (run / "trained").unlink()
    assert "scoring what there is" in stages("evaluate")
    assert "of an unfinished training, --beam 5" in stages("report", status=1)


def test_unusual_archives_are_noticed(iwslt14, tmp_path):
    command = ["iwslt14/reproduce.sh", "prepare", "--from", iwslt14, "--work", tmp_path / "work"]
    output = recipe(*command, status=1)
    assert "these should be 160239 7283 6750" in output and "--sizes any" in output
    assert not (tmp_path / "work" / "data").exists()


@pytest.mark.parametrize(
    "every, counts, status, sentence",
    [
        ("23", "160239 7283 6750", 0, ""),
        ("23", "160242 7283 6750", 0, "notice: usually there are 160239 pairs and not 160242"),
        ("23", "160239 7276 6750", 0, "notice: usually there are 7283 pairs and not 7276"),
        ("23", "160400 7283 6750", 1, "these should be"),
        ("23", "160239 7283 6749", 1, "these should be"),
        ("", "160239 7276 6750", 1, "these should be"),  # where valid is a set of its own
    ],
)
def test_sizes_may_be_off_by_what_tokenisers_differ(every, counts, status, sentence):
    script = (
        'source "$0"; name=x clean=x valid_every=$1 sizes=(160239 7283 6750); check_sizes ${@:2}'
    )
    recipe_sh = EXAMPLES / "common" / "recipe.sh"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script, recipe_sh, every, *counts.split()],
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    assert done.returncode == status and (sentence in output if sentence else not output)


# --- WMT14 and Multi30k --------------------------------------------------------------------------


@pytest.fixture(params=["folder", "mirror"])
def archives_from(request):
    """A function from a folder to the options that take the archives from it, or over HTTP."""
    with ExitStack() as servers:

        def options(folder):
            if request.param == "folder":
                return ["--from", folder]
            return ["--mirror", servers.enter_context(serve(folder)).url]

        yield options


def test_wmt14(archives_from, tmp_path):
    folder, work = tmp_path / "the archives", tmp_path / "the work"
    pairs = archives.wmt14(folder)
    known = tmp_path / "known to sacreBLEU"
    archives.wmt14_of_sacrebleu(known, pairs)
    command = ["wmt14/reproduce.sh", *archives_from(folder), "--work", work]
    command += ["--archs", ARCHS[1], *FAST, *FLAGS]
    output = recipe(*command, LC_ALL="C", SACREBLEU=str(known))
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


def test_wmt14_with_the_data_of_attention_is_all_you_need(tmp_path):
    pairs = archives.wmt14(tmp_path)
    command = ["wmt14/reproduce.sh", "prepare", "--setting", "v9-37k", "--sizes", "any"]
    output = recipe(*command, "--from", tmp_path, "--work", tmp_path / "work")
    assert "learning 37000 BPE merges" in output
    train = tmp_path / "work" / "prepare" / "raw" / "train.de"
    lines = train.read_bytes().decode().split("\n")[:-1]
    assert lines[-100:] == [german for _, german in pairs["nc-v9"]]  # whose lines end in "\r\n"
    assert len(lines) == 300 + 150 + len(archives.ODD) + 100


def test_multi30k_pair_with_three_test_sets(archives_from, tmp_path):
    folder, work = tmp_path / "archives", tmp_path / "work"
    pairs = archives.multi30k(folder)
    known = tmp_path / "known to sacreBLEU"
    options = archives_from(folder)
    if "--mirror" in options:  # which has no test sets of Flickr
        for year in ("2016", "2017"):
            archives.multi30k_of_sacrebleu(known, year, pairs[f"test_{year}_flickr"])
            for language in ("en", "de"):
                (folder / f"test_{year}_flickr.{language}.gz").unlink()
    command = ["multi30k/reproduce.sh", *options, "--pair", "de-en", "--work", work]
    recipe(*command, "--archs", ARCHS[1], *FAST, *FLAGS, SACREBLEU=str(known))
    english = (work / "prepare" / "raw" / "test_2017_flickr.en").read_text().splitlines()
    assert english == [x.rstrip() for x, _ in pairs["test_2017_flickr"]]
    text = (work / "report" / "report.md").read_text()
    assert all(f"## test_201{x}, " in text for x in ("6_flickr", "7_flickr", "7_mscoco"))
    assert "Wu et al." not in text  # whose scores are of the other direction


def test_multi30k_pair_without_english(archives_from, tmp_path):
    pairs = archives.multi30k(tmp_path / "archives")
    command = ["multi30k/reproduce.sh", "prepare", "--pair", "de-cs", "--work", tmp_path / "work"]
    recipe(*command, *archives_from(tmp_path / "archives"), "--sizes", "any")
    sides = [
        (tmp_path / "work" / "data" / "reference" / f"test_2016_flickr.{language}").read_text()
        for language in ("de", "cs")
    ]
    german = "".join(line.rstrip() + "\n" for _, line in pairs["test_2016_flickr"])
    assert sides == [german, german]  # as what stands for Czech is German


def test_multi30k_keeps_case_where_asked(tmp_path):
    pairs = archives.multi30k(tmp_path / "archives")
    command = [
        "multi30k/reproduce.sh",
        "prepare",
        "--setting",
        "cased",
        "--work",
        tmp_path / "work",
    ]
    recipe(*command, "--from", tmp_path / "archives", "--sizes", "any")
    text = (tmp_path / "work" / "data" / "tokenized" / "test_2016_flickr.de").read_text()
    first = pairs["test_2016_flickr"][0][1].split()[0]
    assert first != first.lower() and text.startswith(first)


# --- a user's own text ---------------------------------------------------------------------------


def test_own_text_is_split_and_cleaned(tmp_path):
    folder, work = tmp_path / "my text", tmp_path / "work"
    folder.mkdir()
    pairs = archives.sentences(400, 1)
    for i, language in enumerate(("en", "de")):
        lines = [pair[i] for pair in pairs] + ["", "only here" if i else ""]
        (folder / f"train.{language}").write_bytes("".join(x + "\r\n" for x in lines).encode())
    command = ["own-data/run.sh", "prepare", "--from", folder, "--work", work]
    recipe(*command, "--pair", "en-de")
    different = len({english for english, _ in pairs})
    raw = work / "prepare" / "raw"
    sizes = {p.stem: p.read_bytes().count(b"\n") for p in raw.glob("*.en")}
    assert sizes["test"] == sizes["valid"] == (different + 1) // 10
    sides = [(raw / f"{name}.en").read_bytes().split(b"\n") for name in ("train", "valid", "test")]
    assert not set(sides[0]) & (set(sides[1]) | set(sides[2])) - {b""}
    assert b"\r" not in (work / "data" / "tokenized" / "test.de").read_bytes()

    assert "say which languages" in recipe(*command, status=1)
    assert "--from FOLDER" in recipe("own-data/run.sh", "--pair", "en-de", status=1)
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


def test_a_checkpoint_that_was_cut_short_is_replaced(tmp_path):
    for number in (1, 2):
        torch.save({"model": {"x": torch.ones(number)}}, tmp_path / f"checkpoint{number}.pt")
    whole = (tmp_path / "checkpoint2.pt").read_bytes()
    last = tmp_path / "checkpoint_last.pt"
    command = [sys.executable, EXAMPLES / "common" / "mend.py", tmp_path]
    last.write_bytes(whole)
    assert not subprocess.run(command, capture_output=True, check=True).stdout
    last.write_bytes(whole[:-100])
    os.utime(tmp_path / "checkpoint1.pt", (1, 1))
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "going on from checkpoint2.pt" in done.stdout and last.read_bytes() == whole
    assert (tmp_path / "checkpoint_last.pt.cut").read_bytes() == whole[:-100]
    last.write_bytes(b"")
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "going on from checkpoint2.pt" in done.stdout and last.read_bytes() == whole
    for path in tmp_path.glob("checkpoint*.pt"):
        path.write_bytes(whole[:-100])
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "starting anew" in done.stdout and not last.exists()


def test_a_dry_run_does_nothing(tmp_path):
    output = recipe("multi30k/reproduce.sh", "--dry-run", "--gpus", "1", "--work", tmp_path)
    assert output.count("fairseq-train") == 2 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [*EXAMPLES.glob("*/published.json")], ids=lambda p: p.parent.name)
def test_published_scores_are_of_the_recipes_models(path):
    script = (path.parent / "reproduce.sh").read_text()
    for entry in json.loads(path.read_text()):
        assert entry["arch"] in script and entry["test"] in script
        assert entry["metric"].lower().replace(" ", "-") in script and 20 < entry["score"] < 50


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["train"], "run the stage prepare first"),
        (["evaluate"], "run the stage prepare first"),
        (["trian"], "trian is no stage and no option"),
        (["--seeds"], "--seeds needs a value"),
        (["--seeds", "one"], "'one' should be a whole number"),
        (["--batch", "many"], "'many' should be a whole number"),
        (["--", "--max-update", "9"], "name it before --"),
        (["--setting", "huge"], "there is no setting huge"),
        (["--pair", "en-zz"], "the pairs are"),
        (["--from", "nowhere"], "is no folder"),
        (["--gpus", "2"], "--gpus is for --dry-run"),
        (["train", "--dry-run", "--gpus", "2", "--processes", "2"], "--processes is for a CPU"),
        (["train", "--dry-run", "--gpus", "3"], "cannot be made of 4096 tokens on each of 3"),
        (["--cpu", "--processes", "3"], "cannot be made of 4096 tokens on each of 3"),  # at once
    ],
)
def test_refused(arguments, sentence, tmp_path):
    output = recipe("multi30k/reproduce.sh", *arguments, "--work", tmp_path / "work", status=1)
    assert sentence in output and output.count("\n") <= 2


def test_a_folder_that_fairseq_would_take_for_two_is_refused(tmp_path):
    output = recipe("multi30k/reproduce.sh", "prepare", "--work", tmp_path / "12:30", status=1)
    assert "choose another --work" in output


def test_archives_have_the_checksum_that_is_known(tmp_path):
    archives.multi30k(tmp_path)
    command = ["multi30k/reproduce.sh", "prepare", "--from", tmp_path, "--work", tmp_path / "work"]
    output = recipe(*command, status=1)
    digest = hashlib.sha256((tmp_path / "train.en.gz").read_bytes()).hexdigest()
    assert f"train.en.gz has the SHA-256 {digest}, but" in output and "--sizes any" in output


def test_a_missing_tool_is_named(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for path in Path(sys.executable).parent.iterdir():
        if path.name != "subword-nmt":
            (folder / path.name).symlink_to(path)
    path = f"{folder}:/usr/bin:/bin"
    output = recipe("multi30k/reproduce.sh", "--work", tmp_path / "work", status=1, PATH=path)
    assert output.startswith("multi30k: subword-nmt is not on the PATH: install it")
    assert output.count("\n") == 1 and not (tmp_path / "work").exists()


def test_a_search_path_of_cd_does_not_lead_astray():
    done = subprocess.run(
        ["bash", "examples/multi30k/reproduce.sh", "--help"],
        cwd=ROOT,
        env={**os.environ, "CDPATH": "."},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.startswith("Multi30k") and not done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "arguments, environ, expected",
    [
        # The paper's: 4 GPUs x 8192 tokens.
        ([], {}, ["--update-freq 1 ", "--max-tokens 8192 ", "--fp16"]),
        (["--gpus", "2", "--bf16"], {}, ["--update-freq 2 ", "--bf16"]),
        # More GPUs than batches: smaller batches each.
        (["--gpus", "16"], {}, ["--update-freq 1 ", "--max-tokens 2048 "]),
        (["--gpus", "8", "--max-tokens", "4096"], {}, ["--update-freq 1 "]),
        (["--batch", "65536"], {}, ["--update-freq 2 ", "--max-tokens 8192 "]),
        (["--batch", "4096", "--gpus", "1"], {}, ["--update-freq 1 ", "--max-tokens 4096 "]),
        (["--average", "12"], {}, ["--keep-last-epochs 10 --keep-last-epochs 12 "]),
        # 4 GPUs x 16 x 4096.
        (["--setting", "big"], {}, ["--update-freq 16 ", "--lr 0.003", "wmt_en_de_big"]),
        (
            ["--setting", "big", "--gpus", "8"],
            {"NNODES": "4", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            [
                "torchrun --nproc_per_node 8 --nnodes 4 --node_rank 1 ",
                "--distributed-world-size 32 ",
                "--update-freq 2 ",
            ],
        ),
    ],
)
def test_wmt14_keeps_the_papers_batch(arguments, environ, expected, tmp_path):
    arguments = ["--gpus", "4", *arguments, "--work", tmp_path]
    output = recipe("wmt14/reproduce.sh", "train", "--dry-run", *arguments, **environ)
    commands = [line for line in output.split("\n") if "fairseq-train" in line]
    assert len(commands) == 2
    for command in commands:
        assert all(flag in command for flag in expected), command
    # Baseline and Macaron differ in --arch and where they are saved.
    words = [line.split() for line in commands]
    assert [i for i, pair in enumerate(zip(*words, strict=True)) if len({*pair}) > 1] == [
        i + 1
        for i, word in enumerate(words[0])
        if word in ("--save-dir", "--arch", "--tensorboard-logdir")
    ]


def test_a_slurm_job_starts_the_recipe_on_each_node(tmp_path):
    stubs = {
        "scontrol": 'printf "node7\\nnode8\\n"',  # as for SLURM_JOB_NODELIST=node[7-8]
        "srun": 'echo "$1 on $SRUN_CPUS_PER_TASK cores"; shift; SLURM_NODEID=1 exec "$@"',
    }
    for name, line in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    folders = str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]
    slurm = {"JOB_NODELIST": "node[7-8]", "NNODES": "2", "JOB_ID": "42", "CPUS_PER_TASK": "32"}
    done = subprocess.run(
        ["bash", "examples/wmt14/train.sbatch", "--setting", "big", "--dry-run", "--gpus", "8"],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": os.pathsep.join(folders),
            **{f"SLURM_{name}": value for name, value in slurm.items()},
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--kill-on-bad-exit=1 on 32 cores\n")
    commands = [line for line in done.stdout.split("\n") if "fairseq-train" in line]
    launch = "torchrun --nproc_per_node 8 --nnodes 2 --node_rank 1 --master_addr node7 "
    assert len(commands) == 2 and all(x.startswith(launch) for x in commands)
    # 4 GPUs x 16 x 4096 tokens.
    assert all("--distributed-world-size 16 " in x and "--update-freq 4 " in x for x in commands)


@pytest.mark.parametrize("is_there", [True, False])
def test_tensorboard_is_logged_to_where_it_is_installed(is_there, tmp_path):
    (tmp_path / "tensorboard.py").write_text("" if is_there else "raise ImportError")
    command = ["multi30k/reproduce.sh", "--dry-run", "--gpus", "1", "--work", tmp_path / "work"]
    output = recipe(*command, PYTHONPATH=str(tmp_path))
    assert output.count("pip install tensorboard") == (0 if is_there else 1)
    assert output.count("seed1/tensorboard") == (2 if is_there else 0)


def test_each_seed_is_trained_and_counts_in_the_mean(tmp_path):
    archives.multi30k(tmp_path / "archives")
    work, arch, seeds = tmp_path / "work", ARCHS[1], ("1", "7")
    command = ["multi30k/reproduce.sh", "--pair", "cs-en", "--from", tmp_path / "archives"]
    command += ["--work", work, "--archs", arch, *FAST, "--seeds", " ".join(seeds)]
    recipe(*command, *FLAGS)
    report = json.loads((work / "report" / "report.json").read_text())
    assert [str(run["seed"]) for run in report["runs"]] == [*seeds]
    text = (work / "report" / "report.md").read_text()
    assert re.search(rf"^\| `{arch}` .* ± .* \| 2 \|$", text, re.M)
    weights = [
        torch.load(work / arch / f"seed{seed}" / "checkpoint_last.pt", weights_only=False)
        for seed in seeds
    ]
    one, other = (x["model"]["decoder.embed_tokens.weight"] for x in weights)
    assert not torch.equal(one, other)
    if find_spec("tensorboard"):
        folder = work / arch / "seed1" / "tensorboard"
        assert any(b"loss" in x.read_bytes() for x in folder.rglob("events.out.tfevents.*"))


def test_processes_and_nodes_train_the_model_of_one(tmp_path):
    """By torchrun, on a CPU; without dropout, whose draws are each process's own."""
    archives.multi30k(tmp_path / "archives")
    script, pair = "multi30k/reproduce.sh", ("--pair", "cs-en", "--archs", ARCHS[1])
    folders = ("--from", tmp_path / "archives", "--work", tmp_path / "one")
    recipe(script, "prepare", *folders, *pair, *FAST, "--merges", "30")
    assert (tmp_path / "one" / "data" / "code").read_text().count("\n") == 1 + 30
    for name in ("processes", "nodes"):
        shutil.copytree(tmp_path / "one", tmp_path / name)

    def command(name, *options):
        folders = ("--work", tmp_path / name)
        return script, "train", *folders, *pair, *FAST, *options, *FLAGS, "--dropout", "0"

    def last_valid_loss(name):
        log = (tmp_path / name / ARCHS[1] / "seed1" / "train.log").read_text()
        line = [line for line in log.split("\n") if "valid_loss" in line][-1]
        figures = json.loads(line[line.index("{") :])
        return figures["valid_num_updates"], float(figures["valid_loss"])

    assert "1 x 512 tokens x update-freq 16 " in recipe(*command("one"))
    assert "2 x 512 tokens x update-freq 8 " in recipe(*command("processes", "--processes", "2"))
    node = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    second = start(*command("nodes"), NODE_RANK="1", **node)
    assert "2 x 512 tokens x update-freq 8 " in recipe(*command("nodes"), NODE_RANK="0", **node)
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0, output
    script_alone = (script, "--cpu", "--work", tmp_path / "one", *pair)
    assert "several nodes are for the stage train" in recipe(
        *script_alone, status=1, NODE_RANK="0", **node
    )

    updates, loss = last_valid_loss("one")
    assert updates == "8"
    for name in ("processes", "nodes"):
        assert last_valid_loss(name) == (updates, pytest.approx(loss, abs=2e-3))
    # What one process has begun goes on in two.
    recipe(*command("one", "--processes", "2", "--max-update", "12"))
    assert last_valid_loss("one")[0] == "12"
    log = (tmp_path / "one" / ARCHS[1] / "seed1" / "train.log").read_text()
    assert re.search(r"Loaded checkpoint .* @ 8 updates\)", log)


def test_a_failed_training_shows_its_end(tmp_path):
    folder = tmp_path / "archives"
    archives.multi30k(folder)
    command = ["multi30k/reproduce.sh", "--from", folder, "--work", tmp_path, "--pair", "cs-en"]
    recipe(*command, "prepare", *FAST)
    output = recipe(*command, "train", *FAST, "--", "--no-such-flag", status=1)
    assert "training ended early" in output and "--no-such-flag" in output
    # A truncated archive, a missing reference line.
    with gzip.open(folder / "val.cs.gz", "at") as file:
        file.write("one line more\n")
    output = recipe(*command, "prepare", "--work", tmp_path / "other", *FAST, status=1)
    assert "21" in output and "20" in output and "Traceback" not in output


def test_the_reason_of_a_failure_is_shown_and_not_what_torchrun_says_of_it(tmp_path):
    log = (
        "Traceback (most recent call last):\n"
        '  File "torch/distributed/elastic/rendezvous/api.py", line 1, in a_frame\n'
        "DistNetworkError: the port is taken\n"
        "E torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
        "=====\n"
    )
    command = [sys.executable, EXAMPLES / "common/progress.py", "tiny", tmp_path / "train.log"]
    done = subprocess.run(command, input=log, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("DistNetworkError: the port is taken\n\n")


def test_progress_goes_on_where_the_checkpoint_was(tmp_path):
    log = (
        "| INFO | fairseq_cli.train | {'optimization': {'max_update': 8000}}\n"
        "| INFO | fairseq.trainer | Loaded checkpoint x.pt (epoch 9 @ 2170 updates)\n"
        '| INFO | train_inner | {"num_updates": "21| INFO | train_inner | {"loss": "3"}\n'
        "| INFO | fairseq_cli.train | done training in 0.1 seconds\n"
    )
    done = subprocess.run(
        [sys.executable, EXAMPLES / "common/progress.py", "tiny", tmp_path / "train.log"],
        input=log,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "2170/8000" in done.stderr.splitlines()[-1]
    assert (tmp_path / "train.log").read_text() == log
