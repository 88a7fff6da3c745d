"""The recipes of language models whole, on miniature text: trained, scored, resumed, refused."""

import json
import os
import random
import re
import shutil
import zipfile
from pathlib import Path

import glue
import language_modeling
import pytest
from common import launch
from helpers import commands
from helpers.paths import FIXTURES
from helpers.recipes import EXAMPLES, environment, printed

pytestmark = pytest.mark.recipe

WORDS = [
    "the",
    "a",
    "captain",
    "whale",
    "sailed",
    "ship",
    "sea",
    "saw",
    "white",
    "old",
    "of",
    "and",
    "never",
    "again",
    "slept",
]
TINY = ["--embed-dim", "16", "--layers", "1", "--attention-heads", "2", "--ffn-embed-dim", "32"]


def sentence(rng):
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 12))).capitalize() + "."


def book(path, title, lines, seed):
    rng = random.Random(seed)
    with path.open("a") as file:
        file.write(f"# Title: {title}\n" + "".join(sentence(rng) + "\n" for _ in range(lines)))


def of_side(side):
    return [f"--{side}{x[1:]}" if x.startswith("--") else x for x in TINY]


def run_program(script, words):
    """Run a program of the recipes, in a process that need not import fairseq anew."""
    environ = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    return commands.run_forked(script, words, environ=environ)


@pytest.fixture(autouse=True)
def scores(monkeypatch):
    """Texts are scored in processes that need not import fairseq anew."""

    def score(log, words, name, stdout):
        *_, script, path = [*map(str, words[:5])]
        log.touch()
        rest = [path, *map(str, words[5:])]
        done = run_program(script, rest)
        assert done.returncode == 0, done.stdout
        Path(stdout.name).write_text(done.stdout)

    monkeypatch.setattr(language_modeling, "logged", score)


def run(recipe, *words, status=0):
    return printed(recipe.main, [str(word) for word in words], status, environment())


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "books.txt"
    for number, (title, lines) in enumerate({"Emma": 400, "Omoo": 40, "Typee": 40}.items()):
        book(path, title, lines, number)
    return path


SHORT = ["--cpu", "--workers", "1", "--merges", "30", "--max-update", "3", "--batch", "256"]
SHORT += ["--max-tokens", "256", "--tokens-per-sample", "32"]


def test_from_books_to_perplexities(books, tmp_path):
    archs = ("transformer_lm_tiny_pre_norm", "macaron_transformer_lm_tiny")
    options = ["--text", books, "--split-at", "# Title: ", "--valid", "Omoo", "--test", "Typee"]
    options += ["--work", tmp_path, "--archs", " ".join(archs), *SHORT]
    flags = ["--", "--warmup-updates", "1", *of_side("decoder")]
    printed_text = run(language_modeling, *options, *flags)
    assert "test: 41 lines of Typee" in printed_text and "| bits per character |" in printed_text
    counts = json.loads((tmp_path / "data" / "held-out" / "counts.json").read_text())["test"]
    raw = [x for x in books.read_text().split("# Title: ") if x.startswith("Typee")]
    assert counts["characters"] == len("# Title: " + raw[0])
    for arch in archs:
        found = json.loads((tmp_path / arch / "seed1/test/perplexity.json").read_text())
        # Hardly trained, it is near a uniform choice among all types.
        assert 5 < found["per_token"] < 200
        assert found["bits"] == pytest.approx(found["bits_per_character"] * counts["characters"])
        logs = (tmp_path / arch / "seed1" / "test" / x for x in ("printed.log", "eval-lm.log"))
        [loss] = re.findall(r"Loss \(base 2\): ([\d.]+)", "".join(x.read_text() for x in logs))
        assert f"{found['bits'] / counts['tokens']:.4f}" == loss
    again = run(language_modeling, *options, *flags)
    assert "scoring" not in again and "learning" not in again
    before = (tmp_path / "data" / "preprocessing.json").read_text()
    other = run(language_modeling, "prepare", *options, "--merges", "20", *flags, status=1)
    assert f"{tmp_path / archs[1] / 'seed1'} was trained on what {tmp_path / 'data'} holds" in other
    assert (tmp_path / "data" / "preprocessing.json").read_text() == before
    short = run(language_modeling, "prepare", *options, "--tokens-per-sample", "999", status=1)
    assert "999 tokens does not fit into batches of 256" in short
    options[options.index("--max-tokens") + 1] = options[options.index("--batch") + 1] = "4096"
    short = run(
        language_modeling, "prepare", *options, "--tokens-per-sample", "2000", *flags, status=1
    )
    assert "less than 8 samples of 2000" in short and "Traceback" not in short
    options[options.index("--work") + 1] = tmp_path / "other"
    run(language_modeling, "prepare", *options, status=1)
    assert not [*(tmp_path / "other").glob("data*")]


SYSTEMS = """systems:
  none: {}
  trajectory:
    flags: >
      --criterion distilled_label_smoothed_cross_entropy --teacher {teacher} --trajectory-weight 2
  across:
    merges: 20
    baseline: trajectory
    flags: >
      --criterion cross_vocabulary_label_smoothed_cross_entropy --teacher {teacher}
      --teacher-data {teacher_data}
"""


def test_from_books_to_students(books, tmp_path):
    options = ["--text", books, "--split-at", "# Title: ", "--valid", "Omoo", "--test", "Typee"]
    options += ["--work", tmp_path, *SHORT, "--archs"]
    flags = ["--", "--warmup-updates", "1", *of_side("decoder")]
    run(language_modeling, *options, "macaron_transformer_lm_tiny", *flags)
    (tmp_path / "ways.yaml").write_text(SYSTEMS)
    teacher = tmp_path / "macaron_transformer_lm_tiny/seed1/checkpoint_last.pt"
    options += ["transformer_lm_tiny_pre_norm", "--teacher", teacher]
    options += ["--students", tmp_path / "ways.yaml"]
    output = run(language_modeling, *options, *flags)
    assert "`across` less `none`: " in output and "`across` less `trajectory`: " in output
    place = tmp_path / "students" / "transformer_lm_tiny_pre_norm"
    found = json.loads((place / "report" / "report.json").read_text())
    assert [*found["runs"]] == ["none", "trajectory", "across"]
    assert found["tokens"]["across"] > found["test"]["tokens"]  # it has fewer merges
    for name, loss in (("trajectory", "trajectory_loss"), ("across", "cross_loss")):
        log = (place / name / "seed1" / "train.log").read_text()
        assert f'"train_{loss}"' in log and f'"valid_{loss}"' not in log
    again = run(language_modeling, *options, *flags)
    assert "scoring" not in again and "learning" not in again and "updates" not in again
    # Of a teacher that does not fit no student is trained, not even those that learn without.
    options[options.index(teacher)] = FIXTURES / "stored" / "checkpoint.pt"
    refused = run(language_modeling, *options, "--seeds", "2", *flags, status=1)
    assert "is a translation model (encoder and decoder), but the student is" in refused
    assert not [*place.glob("*/seed2")]


def write_glue(folder):
    rng = random.Random(1)

    def write(name, header, lines):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in [*header, *lines]))

    for name, count in (("train", 24), ("dev", 9)):
        lines = [f"x\t{i % 2}\t\t{sentence(rng)}" for i in range(count)]
        write(f"CoLA/{name}.tsv", [], lines)
        lines = [f"{i}\t{sentence(rng)}\t{sentence(rng)}\t{i % 6}.0" for i in range(count)]
        write(f"STS-B/{name}.tsv", ["index\tsentence1\tsentence2\tscore"], lines)
    write("CoLA/test.tsv", ["index\tsentence"], [f"{i}\t{sentence(rng)}" for i in range(5)])
    lines = [f"{i}\t{sentence(rng)}\t{sentence(rng) * 9}" for i in range(5)]  # longer than a sample
    write("STS-B/test.tsv", ["index\tsentence1\tsentence2"], lines)


def forked(jobs, at_a_time):
    """As `launch.local`, in processes that need not import fairseq anew."""
    for job in jobs:
        *_, script, folder = job.words
        done = run_program(script, [folder])
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.write_text(done.stdout)
        yield job, done.returncode


def trained_on(log):
    """The samples of each update of a training, whose log has a line for each."""
    lines = log.read_text().splitlines()
    found = [json.loads(x.split(" | ")[-1]) for x in lines if " | train_inner | " in x]
    return {int(x["num_updates"]): float(x["bsz"]) for x in found}


def test_from_books_to_glue(books, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "local", forked)
    write_glue(tmp_path / "glue data")
    arch, work = "macaron_roberta_tiny", tmp_path / "work"
    options = ["--text", books, "--split-at", "# Title: ", "--valid", "Omoo", "--work", work]
    options += ["--glue", tmp_path / "glue data", "--archs", arch, *SHORT, "--sizes", "any"]
    options += ["--short-samples", "8:2", "--learning-rates", "1e-3", "--finetune-max-update", "2"]
    flags = ["--", "--warmup-updates", "1", "--log-interval", "1", *of_side("encoder")]
    answers = tmp_path / "glue data" / "STS-B" / "test.tsv"
    text = answers.read_text()
    answers.write_text(text.replace("sentence2", "other"))
    output = run(glue, *options, *flags, status=1)
    assert "names no column 'sentence2'" in output and not [*work.glob("*/*")]  # no work on text
    answers.write_text(text)
    output = run(glue, *options, *flags)
    assert f"2/2 STS-B, {arch}, learning rate 0.001, seed 1: Pearson" in output
    updates = trained_on(work / arch / "seed1" / "train.log")
    assert updates == {1: 32, 2: 32, 3: 8}
    with zipfile.ZipFile(work / "report" / f"{arch}.zip") as archive:
        lines = archive.read("STS-B.tsv").decode().splitlines()
        assert set(archive.read("CoLA.tsv").decode().split("\t")[-1]) <= {"0", "1", "\n"}
    assert lines[0] == "index\tprediction" and [x.split("\t")[0] for x in lines[1:]] == [*"01234"]
    assert all(0 <= float(line.split("\t")[1]) <= 5 for line in lines[1:])
    run_folder = work / "finetuned" / arch / "CoLA" / "rate0.001-seed1"
    assert not [*run_folder.glob("*.pt")] and json.loads((run_folder / "result.json").read_text())
    plan = json.loads((run_folder / "plan.json").read_text())
    assert plan["flags"][plan["flags"].index("--finetune-from-model") + 1].startswith(str(work))
    # The control: of one task, which is enough to be set beside the other.
    control = ["--tasks", "CoLA", "--from-scratch"]
    output = run(glue, "finetune", "report", *options, *control, *flags)
    assert "1/1 CoLA" in output and f"`{arch}` less `{arch}` from scratch" in output
    output = run(glue, "finetune", *options, *flags)
    assert "2 of 2 runs are done already" in output
    options[-1] = "1"
    output = run(glue, "report", *options, *flags, status=1)
    assert f"{arch}: 2 of 2 finished runs were made with other options" in output
    options[-1] = "2"
    output = run(glue, "finetune", *options, "--pretrain-seeds", "2", *flags, status=1)
    assert "has not been pre-trained to its end: run the stage pretrain" in output
    # Records of both systems, from which a machine without the models draws the same table.
    kept = ["--records", tmp_path / "records.json"]
    run(glue, "report", *options, *kept, *flags)
    report = (work / "report" / "report.md").read_text()
    shutil.rmtree(work / "finetuned")
    shutil.rmtree(work / arch)
    output = run(glue, "finetune", "report", *options, *kept, *flags)
    assert "2 runs are taken from" in output and f"No `{arch}.zip`" in output
    assert not (work / "report" / f"{arch}.zip").exists()  # of the runs before
    assert report.split("\n`")[0] == (work / "report" / "report.md").read_text().split("\nNo")[0]
    other = run(glue, "finetune", *options, "--epochs", "1", *kept, *flags, status=1)
    assert "with other options, text or start: name another file" in other


def test_from_a_model_of_the_authors_to_glue(tmp_path, monkeypatch):
    """Nothing is pre-trained. Text goes through the model's dictionary, and begins with <cls>."""
    monkeypatch.setattr(launch, "local", forked)
    write_glue(tmp_path / "glue data")
    theirs = FIXTURES / "reference" / "bert_small"
    words = (theirs / "dict.txt").read_text()
    (tmp_path / "dict.txt").write_text(f"<mask> 1\n<cls> 1\n{words}")
    (tmp_path / "codes").write_text("#version: 0.2\nt h\nth e</w>\n")
    arch, work = "transformer_bert_base_macaron", tmp_path / "work"
    options = ["--pretrained", theirs / "macaron" / "checkpoint.pt", "--work", work]
    options += ["--codes", tmp_path / "codes", "--dictionary", tmp_path / "dict.txt"]
    options += ["--glue", tmp_path / "glue data", "--archs", arch, *SHORT, "--sizes", "any"]
    options += ["--learning-rates", "1e-3", "--finetune-max-update", "2"]
    sizes = ["--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-attention-heads", "2"]
    flags = ["--", *sizes, "--encoder-ffn-embed-dim", "24"]
    output = run(glue, *options, *flags)
    assert f"2/2 STS-B, {arch}, learning rate 0.001, seed 1: Pearson" in output
    folder = work / "finetuned" / arch / "CoLA" / "rate0.001-seed1"
    given = json.loads((folder / "plan.json").read_text())["flags"]
    assert given[given.index("--init-token") + 1] == "5" and "--separator-token" not in given
    # A file that does not fit is refused before any run, for what is prepared, too.
    whole, options[1] = options[1], theirs / "classifier_3way" / "checkpoint.pt"
    output = run(glue, "finetune", *options, "--tasks", "CoLA", *flags, status=1)
    assert "lacks 'embed_out' and 'mid_layer.0.weight' and 3 more, which each pre-tr" in output
    assert "runs" not in output
    # What a run refuses: the recipe shows why.
    options[1], tokens = whole, work / "glue" / "CoLA" / "input0" / "train.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    output = run(glue, "finetune", *options, "--tasks", "CoLA", "--seeds", "2", *flags, status=1)
    *_, last = (folder.with_name("rate0.001-seed2") / "run.log").read_text().splitlines()
    assert f"seed 2 failed: {last[:40]}" in output and "1 of 1 runs failed" in output
