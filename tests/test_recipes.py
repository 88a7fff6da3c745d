"""The recipes whole, on miniature archives of the real layout: killed, resumed, refused."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import archives
import pytest
from conftest import ROOT
from recipes import ARCHS, EXAMPLES, FAST, FLAGS, fingerprint, kill_recipe, recipe
from server import serve
from subword_nmt.learn_bpe import learn_bpe

SCRIPTS = sorted(
    [
        *EXAMPLES.glob("*/run.sh"),
        *EXAMPLES.glob("*/reproduce.sh"),
        *EXAMPLES.glob("*/*.sbatch"),
        *ROOT.glob("*.sh"),
        ROOT / ".ci" / "run",
    ]
)


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
    work = tmp_path_factory.mktemp("the work 100%s")
    arguments = ["--from", iwslt14, "--work", work, "--archs", " ".join(ARCHS), *FAST]
    arguments += ["--workers", "2", *FLAGS]
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


def test_merges_are_those_of_both_languages_texts(iwslt14_work, tmp_path):
    folder, merges = iwslt14_work / "prepare", tmp_path / "code"
    texts = [(folder / "clean" / f"train.{language}").read_text() for language in ("de", "en")]
    with merges.open("w") as file:
        learn_bpe(io.StringIO("".join(texts)), file, 10_000)
    assert merges.read_text() == (folder / "code" / "code").read_text()
    assert merges.read_text().count("\n") > 100


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
    for name in ("corrupt", "slow"):
        (iwslt14 / name).symlink_to(".")
    behaviour = {
        "down/de-en.tgz": "missing",
        "corrupt/de-en.tgz": "corrupt",
        "slow/de-en.tgz": "trickle",
        "de-en.tgz": "truncated-once",
    }
    with serve(iwslt14, **behaviour) as server:
        arguments = ["--archs", ARCHS[1], *FAST, "--work", work]
        for folder in ("/down", "/slow", "/corrupt", ""):
            arguments += ["--mirror", server.url + folder]

        def stage(name, when=None, **env):
            command = ["iwslt14/reproduce.sh", name, *arguments, *FLAGS]
            return kill_recipe(when, *command, **env) if when else recipe(*command, **env)

        stage("prepare", "learning 10000 BPE merges", FETCH_STALL_SECONDS="1")
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
    # As if nothing had happened.
    uninterrupted = iwslt14_work / ARCHS[1] / "seed1" / "test" / "hypotheses.txt"
    assert (run / "test" / "hypotheses.txt").read_text() == uninterrupted.read_text()
    stage("report")
    text = (work / "report" / "report.md").read_text()
    assert "- translated with the mean of the last 2 checkpoints, --beam 5 --lenpen 1.0" in text
    # Scores of a model that is trained on are not taken for its own.
    arguments += ["--max-update", "12"]
    stage("train")
    assert (run / "trained").is_file()
    output = recipe("iwslt14/reproduce.sh", "report", *arguments, *FLAGS, status=1)
    assert "was trained on after test was scored" in output


def test_what_a_kill_leaves_is_not_taken_for_done(tmp_path):
    """At each command of `step`, in a shell of which nothing but that function is run."""
    script = """
        source "$0"
        folder=$1 text=$2 after=$3
        fill() { echo "$text" > "$1/one"; echo "$text" > "$1/two"; }
        commands=0
        trap '((commands++ < after)) || kill -9 $$' DEBUG
        set -T
        step "$folder" "inputs $text" fill
        trap - DEBUG
        echo "whole"
    """
    recipe_sh = EXAMPLES / "common" / "recipe.sh"

    def step(folder, text, after):
        command = ["bash", "-euo", "pipefail", "-c", script, recipe_sh, folder, text, str(after)]
        return subprocess.run(command, capture_output=True, text=True).stdout == "whole\n"

    killed = 0
    for after in range(1000):
        folder = tmp_path / str(after)
        assert step(folder, "old", 1000)
        is_whole = step(folder, "new", after)
        content = {path.name: path.read_text() for path in folder.glob("[ot]*")}
        if (folder / "made-from").exists():  # old or new, and nothing between
            assert content in ({"one": f"{text}\n", "two": f"{text}\n"} for text in ("old", "new"))
        assert step(folder, "new", 1000)
        assert {path.read_text() for path in folder.glob("[ot]*")} == {"new\n"}
        assert not [*tmp_path.glob("*.part"), *tmp_path.glob("*.old")]
        if is_whole:
            break
        killed += 1
    assert 10 < killed < 1000


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


def test_a_dry_run_does_nothing(tmp_path):
    output = recipe("multi30k/reproduce.sh", "--dry-run", "--gpus", "1", "--work", tmp_path / "new")
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
        (["report"], "run the stage prepare first"),
        (["trian"], "trian is no stage and no option"),
        (["--seeds"], "--seeds needs a value"),
        (["--seeds", "one"], "'one' should be a whole number"),
        (["--batch", "many"], "'many' should be a whole number"),
        (["--", "--max-update", "9"], "--max-update is an option: name it before --"),
        (["--", "--max-tokens=9"], "--max-tokens is an option: name it before --"),
        (["--", "--lr", "1", "--update-freq", "2"], "--update-freq is set by the recipe"),
        (["--", "--arch", "transformer"], "--arch is set by the recipe: see --archs"),
        (["--seeds", "1", "--seeds", "2"], "--seeds is given twice"),
        (["--", "--batch-size", "8"], "--batch-size would make updates smaller"),
        (["--", "--keep-last-epochs=3"], "the last 10 epochs are to be averaged"),
        (["--", "--no-epoch-checkpoints"], "leave out --no-epoch-checkpoints"),
        (["--setting", "huge"], "there is no setting huge"),
        (["--pair", "en-zz"], "the pairs are"),
        (["--from", "nowhere"], "is no folder"),
        (["--gpus", "2"], "--gpus is for --dry-run"),
        (["train", "--dry-run", "--gpus", "2", "--processes", "2"], "--processes is for a CPU"),
        (["train", "--dry-run", "--gpus", "3"], "cannot be made by 3 devices alike"),
        (["--dry-run", "--gpus", "2", "--max-tokens", "8192"], "of 8192 tokens on each of 2"),
        (["--cpu", "--processes", "3"], "cannot be made by 3 devices alike"),  # at once
    ],
)
def test_refused(arguments, sentence, tmp_path):
    output = recipe("multi30k/reproduce.sh", *arguments, "--work", tmp_path / "work", status=1)
    assert sentence in output and output.count("\n") <= 2


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--archs", "macaron_transformer_tny"], "did you mean macaron_transformer_tiny?"),
        (["--", "--lrr", "1"], "fairseq-train would refuse this: unrecognized arguments: --lrr 1;"),
    ],
)
def test_what_fairseq_does_not_know_is_refused_before_any_work(arguments, sentence, tmp_path):
    work = tmp_path / "work"
    output = recipe("multi30k/reproduce.sh", "--cpu", "--work", work, *arguments, status=1)
    assert sentence in output.splitlines()[-1] and not list(work.iterdir())


def test_a_folder_that_fairseq_would_take_for_two_is_refused(tmp_path):
    output = recipe("multi30k/reproduce.sh", "prepare", "--work", tmp_path / "12:30", status=1)
    assert "choose another --work" in output


def test_archives_have_the_checksum_that_is_known(tmp_path):
    archives.multi30k(tmp_path)
    command = ["multi30k/reproduce.sh", "prepare", "--from", tmp_path, "--work", tmp_path / "work"]
    output = recipe(*command, status=1)
    digest = hashlib.sha256((tmp_path / "train.en.gz").read_bytes()).hexdigest()
    assert f"train.en.gz has the SHA-256 {digest}, but" in output and "--sizes any" in output


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
    arguments = ["prepare", "--from", tmp_path, "--work", tmp_path / "work", "--sizes", "any"]
    path = os.pathsep.join((str(folder), str(real.parent), os.environ["PATH"]))
    output = recipe("multi30k/reproduce.sh", *arguments, "--workers", "2", status=1, PATH=path)
    assert "full\nmulti30k: subword-nmt failed; see " in output
    assert f"count-{language}.log" in output
    assert not (tmp_path / "work" / "prepare" / "code").exists()


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
