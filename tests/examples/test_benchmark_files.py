"""What benchmark.yaml, options and devices make of one another: decisions; nothing is run."""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch
from common import benchmark, downloads, options, stage_prepare, steps, train_command
from helpers import archives
from helpers.recipes import EXAMPLES, environment, recipe

from macaron_fairseq.evaluation.training import training_flags
from macaron_fairseq.preflight import gpus

FILES = sorted(EXAMPLES.glob("*/benchmark.yaml"))


@pytest.fixture(autouse=True)
def all_tools(monkeypatch):
    """Nothing is run here, so that nothing need be installed."""
    monkeypatch.setattr(shutil, "which", lambda name: None if "nvidia" in name else name)


def read(name, *words):
    return options.read(EXAMPLES / name / "benchmark.yaml", name, "", words)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_published_scores_are_of_the_benchmarks_models_and_sets(path):
    script = next(path.parent.glob("r*.sh")).read_text()
    described = [benchmark.read(path)]
    if "--setting big" in script:
        described.append(benchmark.read(path, "big"))
    archs = [arch for one in described for arch in one.training.archs]
    for row in described[0].published:
        assert row["arch"] in archs and row["test"] in described[0].sets
        metric = row["metric"].lower().replace(" ", "-")
        assert metric in described[0].evaluation.score and 20 < row["score"] < 50
        assert str(row["score"]) in script  # --help says so too


OF_ALL = {
    **{"--adam-betas": "(0.9,0.98)", "--lr-scheduler": "inverse_sqrt", "--warmup-updates": "8000"},
    **{"--warmup-init-lr": "1e-7", "--label-smoothing": "0.1", "--clip-norm": "0"},
    **{"--attention-dropout": "0.1", "--activation-dropout": "0.1"},
}


@pytest.mark.parametrize(
    ("name", "setting", "flags", "decode", "merges", "scores"),
    [
        (
            *("iwslt14", None, {"--lr": "0.0015", "--dropout": "0.3", "--weight-decay": "0.0001"}),
            *("--beam 5 --lenpen 1.0", 10000, (34.4, 35.4)),
        ),
        (
            *("wmt14", None, {"--lr": "0.0015", "--dropout": "0.1"}),
            *("--beam 4 --lenpen 0.6", 32764, (27.3, 28.9, 28.4, 30.2)),
        ),
        (
            *("wmt14", "big", {"--lr": "0.003", "--dropout": "0.3"}),
            *("--beam 4 --lenpen 0.6", 32764, (27.3, 28.9, 28.4, 30.2)),
        ),
    ],
)
def test_settings_are_those_of_the_released_scripts(name, setting, flags, decode, merges, scores):
    found = benchmark.read(EXAMPLES / name / "benchmark.yaml", setting)
    trained = training_flags.parse(found.training.words())
    wanted = {**OF_ALL, **flags}
    assert {x: trained[x] for x in wanted} == {x: [value] for x, value in wanted.items()}
    assert "--share-all-embeddings" in trained and ("--weight-decay" in trained) == (
        name == "iwslt14"
    )
    assert found.evaluation.decode.startswith(decode) and found.evaluation.average == 10
    assert found.preprocessing.merges == merges
    assert tuple(row["score"] for row in found.published) == scores
    macaron = ["macaron" in row["arch"] for row in found.published]
    assert macaron == [False, True] * (len(scores) // 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is no YAML file"),
        ("- a", "should hold sets, preprocessing"),
        ("{}", "the file lacks 'sets'"),
        ("sets: {train: {size: 3}}", "sets/train has no 'size'; it may have parts, pairs"),
        ("sets: {train: {pairs: many}}", "sets/train/pairs should be a whole number, not 'many'"),
        ("sets: {train: {parts: [{archive: [a]}]}}", "parts, item 1/archive should be text"),
        ("sets: []", "sets should be a mapping, not []"),
        ("sets: {}\npreprocessing: 3", "preprocessing should have steps, merges, clean"),
    ],
)
def test_a_benchmark_file_that_is_not_as_it_should_be(text, said, tmp_path):
    path = tmp_path / "benchmark.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit) as refusal:
        benchmark.read(path)
    assert said in refusal.value.code and "\n" not in refusal.value.code


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tokens: 4096", "tokens: 0", "training/tokens should be at least 1, not 0"),
        ("max_update: ", "max_update: -", "training/max_update should be at least 1, not -"),
        ("average: ", "average: -", "evaluation/average should be at least 0, not -10"),
        ("decode: ", "decode: --lenpen '1 #", "evaluation/decode should be flags as one types"),
        ("bleu bleu chrf", "blue chrf", "evaluation/score: argument --metric: invalid choice"),
        ("score: ", "score: --metrics bleu #", "evaluation/score: unrecognized arguments"),
        ("val.{language}.gz", "val.{lang}.gz", "sets/valid/parts, item 1/archive may have {lang"),
        ('"val.{language}.gz"', '""', "sets/valid/parts, item 1/archive or testset should be"),
        ('"val.{language}.gz"', '"val.gz", format: linse', "format should be one of lines, carr"),
        ("steps: [", "steps: [tokenise, ", "preprocessing/steps should be some of normalize, p"),
        ("merges: ", "merges: -", "preprocessing/merges should be at least 0, not -"),
        (
            "sha256: d79",
            "sha256: 79",
            "archives/train.en.gz/sha256 should be 64 hexadecimal digits",
        ),
        ("valid: {pairs: 1014", "test: {every: 9", "sets/test/every is for valid alone"),
        ("sets:", "sets: {}\nsets:", "sets stands twice in it"),
        ("sets:", "settings: [demo]\nsets:", "settings should be a mapping, not ['demo']"),
    ],
)
def test_values_with_which_nothing_could_be_trained_are_refused(old, new, said, tmp_path):
    path = tmp_path / "benchmark.yaml"
    text = (EXAMPLES / "multi30k" / "benchmark.yaml").read_text().partition("\nsettings:")[0]
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SystemExit) as refusal:
        benchmark.read(path)
    assert refusal.value.code.startswith(f"{path}: ") and said in refusal.value.code


def test_a_benchmark_is_one_file(tmp_path):
    """A user's: its comment is its help, and its name that of its folder."""
    path = tmp_path / "mine" / "benchmark.yaml"
    path.parent.mkdir()
    own = (EXAMPLES / "multi30k" / "benchmark.yaml").read_text()
    path.write_text("# My corpus\n" + own)
    assert recipe(path, "--help", is_bare=True).startswith("My corpus\n")
    output = recipe(path, "--dry-run", "--gpus", "1", "--work", tmp_path / "w", is_bare=True)
    assert output.startswith("mine: 1 x 4096 tokens") and output.count("fairseq-train") == 2


def test_a_setting_says_what_is_otherwise():
    usual, other = (read("wmt14", *words).benchmark for words in ((), ("--setting", "v9-37k")))
    assert other.preprocessing.merges == 37000 and not other.published
    assert other.preprocessing.steps == usual.preprocessing.steps
    assert other.sets["train"].parts[:2] == usual.sets["train"].parts[:2]
    assert "nc-v9" in other.sets["train"].parts[2].archive
    assert other.sets["newstest2014"] == usual.sets["newstest2014"]


def test_rdrop_is_another_criterion_and_nothing_else(tmp_path):
    usual, other = (read("multi30k", *words).benchmark for words in ((), ("--setting", "rdrop")))
    criterion = "--criterion chunked_label_smoothed_cross_entropy_with_rdrop --rdrop-alpha 5"
    assert other.training.more_flags == criterion and not other.published
    assert replace(other.training, more_flags="") == usual.training
    assert (other.sets, other.preprocessing) == (usual.sets, usual.preprocessing)
    assert other.evaluation == usual.evaluation
    words = "train", "--dry-run", "--gpus", "1", "--work", tmp_path
    output = recipe("multi30k/reproduce.sh", *words, "--setting", "rdrop", is_bare=True)
    assert output.count(criterion) == 2


@pytest.mark.parametrize("name", ["quickstart", "own-data", "multi30k", "iwslt14", "wmt14"])
def test_published_settings_have_no_limit_of_length_by_the_source(name):
    """Those of the papers are decoded as there; elsewhere a model that loops is cut short."""
    described = benchmark.read(EXAMPLES / name / "benchmark.yaml")
    limit = "--max-len-a 1.5 --max-len-b 10"
    assert (limit in described.evaluation.decode) == (not described.published)


def test_languages_have_the_sets_that_there_are():
    assert read("multi30k").tests == ["test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"]
    czech = read("multi30k", "--pair", "cs-en")
    assert czech.tests == ["test_2016_flickr"] and not czech.benchmark.published


def test_the_usual_pair_has_the_usual_folder():
    usual, named = read("multi30k"), read("multi30k", "--pair", "en-de")
    assert usual == named and usual.work.name == "multi30k"
    assert read("multi30k", "--pair", "de-en").work.name == "multi30k-de-en"


def test_a_recipe_needs_a_test_set(tmp_path):
    path = tmp_path / "benchmark.yaml"
    text = (EXAMPLES / "quickstart" / "benchmark.yaml").read_text()
    path.write_text(text.replace(", test: {}", ""))
    with pytest.raises(SystemExit, match="sets should have train, valid, and a test set of en-de"):
        options.read(path, "mine", "", [])


def test_a_test_set_comes_from_where_it_is(tmp_path):
    """From sacreBLEU, unless it lacks the languages, or a given folder has other archives."""

    def archives_of(*words):
        recipe = read(*words)
        return [
            name
            for content in recipe.sets.values()
            for part in content.parts
            for name in downloads.names_of(recipe, downloads.chosen(recipe, part))
        ]

    tar = "multi30k_test_sets_d3ec2a38.tar.gz"
    train = ["train.en.gz", "train.cs.gz", "val.en.gz", "val.cs.gz"]
    assert archives_of("multi30k", "--pair", "en-cs") == [*train, tar]
    flickr = ["test_2016_flickr.de.gz", "test_2016_flickr.cs.gz"]
    assert archives_of("multi30k", "--pair", "de-cs")[4:] == flickr
    archives.multi30k(tmp_path, 5, 5)
    flickr = ["test_2016_flickr.en.gz", "test_2016_flickr.cs.gz"]
    assert archives_of("multi30k", "--pair", "en-cs", "--from", str(tmp_path))[4:] == flickr
    tests = ["test-full.tgz", "test-filtered.tgz"]
    assert archives_of("wmt14")[3:] == ["test.tgz", *tests]
    (tmp_path / "dev.tgz").touch()
    assert archives_of("wmt14", "--from", str(tmp_path))[3:] == ["dev.tgz", *tests]


# --- Options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["train"], "run the stage prepare first"),
        (["evaluate"], "run the stage prepare first"),
        (["report"], "run the stage prepare first"),
        (["trian"], "trian is neither a stage nor an option. Did you mean train? See --help"),
        (["--seeds", "1", "2"], "2 is neither a stage nor an option (several values are one word,"),
        (["--max-updates", "3"], "no option --max-updates. Did you mean --max-update or"),
        (["--max-updat=3"], "no option --max-updat. Did you mean --max-update"),
        (
            ["--dry-run", "--cpu", "--archs", "macaron_tiny"],
            "there is no architecture macaron_tiny",
        ),
        (
            ["--cpu", "--archs", "macaron_roberta_tiny"],
            "macaron_roberta_tiny is not for translation",
        ),
        (["--seeds"], "--seeds: expected one argument"),
        (["--seeds", "one"], "one is not a whole number from 1 to below 2^32"),
        (["--seeds", "5000000000"], "5000000000 is not a whole number from 1 to below 2^32"),
        (["--average", "-1"], "-1 is not a whole number of 0 or more"),
        (["--seeds", "1 1"], "'1 1' should name seeds, each once"),
        (["--seeds", " "], "' ' should name seeds, each once"),
        (["--archs", " "], "' ' should name architectures"),
        (["--work", ""], "--work is empty: was a variable not set?"),
        (["--bf16", "--fp32"], "--bf16 and --fp32 exclude each other: give one of them"),
        (["--", "--user-dir", "mine"], "--user-dir is this package, and fairseq takes one alone"),
        (["--batch", "many"], "many is not a whole number above 0"),
        (["--sizes", "all"], "--sizes: invalid choice: 'all'"),
        (["--", "--max-update", "9"], "--max-update is an option: name it before --"),
        (["--", "--max-tokens=9"], "--max-tokens is an option: name it before --"),
        (["--", "--bf16"], "--bf16 is an option: name it before --"),
        (["--", "--fp16"], "--fp16 is set by the recipe: see --bf16 and --fp32"),
        (["--", "--lr", "1", "--update-freq", "2"], "--update-freq is set by the recipe"),
        (["--", "--arch", "transformer"], "--arch is set by the recipe: see --archs"),
        (
            ["--archs", "macaron_transformer/parallel", "--", "--macaron-scheme=yoshida4"],
            "--macaron-scheme would override what --archs says, macaron_transformer/parallel",
        ),
        (
            ["--archs", "a b/parallel/rk4", "--", "--macaron-substep", "midpoint"],
            "--macaron-substep would override what --archs says, b/parallel/rk4: give one of",
        ),
        (["--archs", "a/strang-marchuk b a"], "'a/strang-marchuk' and 'a' are the same model"),
        (["--archs", "a/parallel a/parallel"], "an architecture is named twice"),
        (["--seeds", "1", "--seeds", "2"], "--seeds is given twice"),
        (["--", "--batch-size", "8"], "the recipe's: see --batch and --max-tokens"),
        (["--", "--no-save-optimizer-state"], "would count updates from 0 again where a run goes"),
        (["--", "--log-format=simple"], "--log-format is set by the recipe, which reads the log"),
        (["--", "--restore-file", "a.pt"], "--restore-file would begin anew at each start"),
        (["--", "--reset-optimizer"], "--reset-optimizer would begin anew at each start"),
        (["--", "--no-save"], "--no-save would leave nothing to score: leave it out"),
        (["--average", "0", "--", "--disable-validation"], "leave out --disable-validation"),
        (["--", "--keep-last-epochs=3"], "averaged: keep as many, or give --average 3"),
        (["--", "--no-epoch-checkpoints"], "leave out --no-epoch-checkpoints"),
        (["--setting", "huge"], "there is no setting huge"),
        (["--pair", "en-zz"], "the pairs are"),
        (["--from", "nowhere"], "is not a folder"),
        (["--gpus", "2"], "--gpus is for --dry-run"),
        (["train", "--dry-run", "--gpus", "2", "--processes", "2"], "--processes is for a CPU"),
        (["train", "--dry-run", "--gpus", "3"], "3 devices cannot share an update"),
        (["--dry-run", "--gpus", "2", "--max-tokens", "8192"], "of 8192 tokens on each of 2"),
        (["--cpu", "--processes", "3"], "3 devices cannot share an update"),  # at once
    ],
)
def test_refused(arguments, sentence, tmp_path):
    work = ["--work", tmp_path / "work"]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    words = [*arguments[:split], *work, *arguments[split:]]
    output = recipe("multi30k/reproduce.sh", *words, status=1, is_bare=True)
    assert output.startswith("multi30k: ") and sentence in output.splitlines()[-1]
    assert output.count("\n") <= 4  # devices, batch, what TensorBoard lacks


@pytest.mark.parametrize("words", [["--work", ""], ["--tokens", "3"]])
def test_words_are_refused_whatever_argparse_calls_for_them(words, monkeypatch):
    """Python 3.13.1 calls no method there that a subclass could extend."""

    def newer(self, args, namespace):
        return argparse.Namespace(), []

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_intermixed_args", newer)
    parser = options.parser("", "reproduce.sh")
    with pytest.raises(SystemExit, match=r"is empty|no option --tokens"):
        parser.parse_intermixed_args(words)


def test_languages_must_be_two(tmp_path):
    command = "own-data/run.sh", "--from", tmp_path, "--work", tmp_path / "work"
    assert "say which languages" in recipe(*command, status=1, is_bare=True)
    assert "not en twice" in recipe(*command, "--pair", "en-en", status=1, is_bare=True)


def test_a_folder_that_fairseq_would_take_for_two_is_refused(tmp_path):
    command = "multi30k/reproduce.sh", "prepare", "--work", tmp_path / "12:30"
    assert "choose another --work" in recipe(*command, status=1, is_bare=True)


def test_a_dry_run_does_nothing(tmp_path):
    command = "multi30k/reproduce.sh", "--dry-run", "--gpus", "1", "--work", tmp_path / "new"
    output = recipe(*command, is_bare=True)
    assert output.count("fairseq-train") == 2 and not list(tmp_path.iterdir())


def test_a_driver_that_is_too_old_is_refused_before_any_work(monkeypatch, tmp_path):
    """fairseq-train says the same, hours later."""
    monkeypatch.setattr(
        gpus, "why_unusable", lambda: "PyTorch cannot use the GPU: update its driver"
    )
    command = "multi30k/reproduce.sh", "--work", tmp_path
    output = recipe(*command, status=1, is_bare=True)
    assert output == "multi30k: PyTorch cannot use the GPU: update its driver, or give --cpu\n"
    assert not list(tmp_path.iterdir())


def test_bf16_on_a_gpu_without_it_is_refused_before_any_work(monkeypatch, tmp_path):
    answers = {"device_count": 1, "is_available": True, "is_bf16_supported": False}
    answers |= {"get_device_name": "Tesla V100", "get_device_capability": (7, 0)}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    command = "multi30k/reproduce.sh", "--bf16", "--work", tmp_path
    output = recipe(*command, status=1, is_bare=True)
    assert "needs a GPU of compute capability 8.0 or higher, and this one, Tesla V100" in output
    assert not list(tmp_path.iterdir())


# --- The command of a training -------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, environ, expected",
    [
        # The paper's: 4 GPUs x 8192 tokens.
        ([], {}, ["--update-freq 1 ", "--max-tokens 8192 ", "--memory-efficient-fp16 "]),
        (["--gpus", "2", "--bf16"], {}, ["--update-freq 2 ", "--memory-efficient-bf16 "]),
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
        (
            ["--cpu", "--processes", "2"],
            {"OMP_NUM_THREADS": "3"},
            [
                "env OMP_NUM_THREADS=3 torchrun --nproc_per_node 2 --standalone ",
                "--distributed-world-size 2 --distributed-init-method env:// ",
            ],
        ),
    ],
)
def test_wmt14_keeps_the_papers_batch(arguments, environ, expected, tmp_path):
    devices = [] if "--cpu" in arguments else ["--gpus", "4"]
    words = ["train", "--dry-run", *devices, *arguments, "--work", tmp_path]
    output = recipe("wmt14/reproduce.sh", *words, is_bare=True, **environ)
    commands = [line for line in output.split("\n") if " --arch " in line]
    assert len(commands) == 2
    for command in commands:
        assert all(flag in command for flag in expected), command
    # Baseline and Macaron differ in --arch and where they are saved.
    words = [shlex.split(line) for line in commands]
    assert [i for i, pair in enumerate(zip(*words, strict=True)) if len({*pair}) > 1] == [
        i + 1
        for i, word in enumerate(words[0])
        if word in ("--save-dir", "--arch", "--tensorboard-logdir")
    ]


def test_a_recipe_without_checkpoints_of_epochs_averages_none(tmp_path):
    words = ["--average", "3", "--dry-run", "--cpu", "--work", tmp_path]
    output = recipe("quickstart/run.sh", *words, status=1, is_bare=True)
    assert "--average 3: this recipe keeps no checkpoints of epochs; leave it out" in output


@pytest.mark.parametrize(
    ("name", "value", "least"), [("NNODES", "two", 1), ("NNODES", "0", 1), ("NODE_RANK", "-1", 0)]
)
def test_variables_of_nodes_are_numbers(name, value, least, tmp_path):
    words = ["train", "--dry-run", "--cpu", "--work", tmp_path]
    output = recipe("multi30k/reproduce.sh", *words, status=1, is_bare=True, **{name: value})
    sentence = f"{name} is '{value}': it should be a whole number from {least} on"
    assert sentence in output


def test_stages_are_done_in_their_order():
    assert options.in_order(["report", "train"], options.STAGES) == ["train", "report"]
    assert options.in_order([], options.STAGES) == [*options.STAGES]


def test_a_script_is_found_where_cd_would_go_elsewhere(tmp_path):
    """With CDPATH, cd looks for a relative name there first."""
    (tmp_path / "examples" / "quickstart").mkdir(parents=True)
    done = subprocess.run(
        ["examples/quickstart/run.sh", "--help"],
        cwd=EXAMPLES.parent,
        env={**os.environ, "CDPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "on a small corpus made on the spot" in done.stdout


def test_a_containers_share_of_the_cores_is_heeded(monkeypatch):
    """PyTorch takes those of the machine."""
    monkeypatch.setattr(train_command, "available_cores", lambda: 1)
    monkeypatch.setattr(train_command, "visible_cores", lambda: 4)
    recipe = read("multi30k", "--cpu")
    assert train_command.plan(recipe, 0, {}).launch == ["env", "OMP_NUM_THREADS=1", "fairseq-train"]
    told = train_command.plan(recipe, 0, {"OMP_NUM_THREADS": "2"})
    assert told.launch == ["fairseq-train"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--variants", "baseline paralel"], "unknown splitting scheme 'paralel'"),
        (["--variants", "parallel parallel"], "schemes: --variants: a variant is named twice"),
        (["--", "--work", "elsewhere"], "schemes: --work is not for the recipe here: give it"),
        (["--", "--seeds=1"], "schemes: --seeds is not for the recipe here: give "),
        (
            ["--cpu"],
            "schemes: there is no option --cpu; options of the recipe follow a word",
        ),
        (
            ["--", "--cpu", "--", "--macaron-substep=rk4"],
            "--macaron-substep would make the models",
        ),
    ],
)
def test_schemes_are_refused_before_anything_is_trained(flags, sentence, tmp_path):
    work = tmp_path / "work"
    words = [EXAMPLES / "schemes" / "run.sh", "--work", work, *flags]
    words += ["--cpu"] if "--" in flags else ["--", "--cpu"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1 and sentence in done.stderr
    assert not work.exists() or [*work.iterdir()] == []


@pytest.mark.parametrize(
    "words, optimizer, precision",
    [
        (["--gpus", "1"], "fused_adam", "--memory-efficient-fp16"),
        (["--gpus", "1", "--bf16"], "fused_adam", "--memory-efficient-bf16"),
        (["--gpus", "1", "--fp32"], "fused_adam", ""),
        (["--cpu"], "adam", "--cpu"),
        # What the user chooses holds, as in runs that fairseq's Adam has begun.
        (["--gpus", "1", "--", "--optimizer", "adam"], "adam", "--fp16"),
        (["--gpus", "1", "--bf16", "--", "--optimizer=cpu_adam"], "cpu_adam", "--bf16"),
        (["--gpus", "1", "--", "--fp16-adam-stats"], "adam", "--fp16"),
    ],
)
def test_on_gpus_adam_is_computed_by_fused_adam(words, optimizer, precision, tmp_path):
    output = recipe(
        "iwslt14/reproduce.sh", "--dry-run", "--work", tmp_path / "w", *words, is_bare=True
    )
    commands = [shlex.split(line) for line in output.split("\n") if " --arch " in line]
    assert len(commands) == 2
    for command in commands:
        flags = training_flags.parse(command)
        assert flags["--optimizer"] == [optimizer]
        found = {"--fp16", "--bf16", "--memory-efficient-fp16", "--memory-efficient-bf16", "--cpu"}
        assert found & {*flags} == {precision} - {""}
    assert ("fused_adam computes Adam's updates" in output) == (optimizer == "fused_adam")


@pytest.mark.parametrize(
    ("script", "flags"),
    [("iwslt14/reproduce.sh", []), ("own-data/run.sh", ["--pair", "en-de", "--from", EXAMPLES])],
)
@pytest.mark.parametrize(("visible", "gpus"), [(None, 1), ("0,1", 2)])
def test_a_small_benchmark_takes_one_gpu_unless_the_user_names_more(
    script, flags, visible, gpus, tmp_path, monkeypatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    words = [script, *flags, "--dry-run", "--gpus", "2", "--work", tmp_path / "w"]
    output = recipe(*words, is_bare=True)
    assert f"{gpus} x {4096 // gpus} tokens" in output


def test_what_is_trained_is_the_same_wherever(tmp_path, monkeypatch):
    """It is finished though it lies elsewhere, is divided otherwise or was saved more often."""

    def identity(*words, of="f", arch="a", seed=1):
        return train_command.identity(read("multi30k", *words), of, arch, seed)

    usual = identity()
    saved = "--", "--save-interval-updates", "3", "--num-workers", "2"
    for words in (("--work", str(tmp_path)), ("--max-tokens", "512"), ("--processes", "2"), saved):
        assert identity(*words) == usual
    for optimizer in ("adam", "fused_adam"):
        assert identity("--", "--optimizer", optimizer) == usual
    hold = {"a": "a teacher", "b": "a teacher", "c": "another"}
    for name, text in hold.items():
        (tmp_path / name).write_text(text)
    of = [identity("--", "--teacher", str(tmp_path / name)) for name in hold]
    manifest_of_a = hashlib.sha256(b"a teacher").hexdigest()
    assert (
        of[0] == of[1] == identity("--", "--teacher", str(tmp_path / "a"), "--teacher-memory", "4")
    )
    assert len({usual, *of}) == 3
    run = read("multi30k").run("a", 1)
    monkeypatch.setattr(
        train_command.manifest,
        "learnt_before",
        lambda folder: ({"--teacher": manifest_of_a} if folder == run else {}),
    )
    (tmp_path / "a").unlink()
    assert identity("--", "--teacher", str(tmp_path / "a")) == of[0]
    # As before recipes chose between them: what is finished stays so.
    own = read("multi30k").benchmark.training.words()
    assert usual == steps.hash_of("f", "a", "1", *own, "8000", "")
    nag = steps.hash_of("f", "a", "1", *own, "8000", "--optimizer", "nag", "")
    assert identity("--", "--optimizer", "nag") == nag
    others = [
        identity("--batch", "4096"),
        identity("--max-update", "9"),
        identity("--bf16"),
        identity("--", "--dropout", "0"),
        identity(of="another fingerprint"),
        identity(arch="b"),
        identity(seed=2),
    ]
    assert len({usual, *others}) == 8


# --- Sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, counts, sentence",
    [
        ("iwslt14", (160239, 7283, 6750), ""),
        ("iwslt14", (160242, 7283, 6750), "notice: usually there are 160239 pairs and not 160242"),
        ("iwslt14", (160239, 7276, 6750), "notice: usually there are 7283 pairs and not 7276"),
        ("iwslt14", (160400, 7283, 6750), "these should be 160239 7283 6750: "),
        ("iwslt14", (160239, 7283, 6749), "these should be"),
        ("wmt14", (4000000, 3000, 3003, 2737), ""),
        ("wmt14", (4000000, 3001, 3003, 2737), "these should be any 3000 3003 2737: "),
    ],
)
def test_sizes_may_be_off_by_what_tokenisers_differ(name, counts, sentence, capsys):
    found = read(name)
    refusal = ""
    try:
        stage_prepare.check_sizes(found, dict(zip(found.sets, counts, strict=True)))
    except SystemExit as end:
        refusal = end.code
    said = capsys.readouterr().out + refusal
    assert sentence in said if sentence else not said
    assert bool(refusal) == sentence.startswith("these")
