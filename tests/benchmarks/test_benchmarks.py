"""benchmarks/: that they run and count what they say. No test asserts a time."""

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date

import ablation
import distillation
import generation
import kernels
import language_models
import particles
import prepare
import pytest
import scaling
import single_updates
import torch
import training
import versions
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.models import ARCH_MODEL_REGISTRY
from harness import corpora, fairseq_train, measuring, memory, sides
from helpers import served
from helpers.paths import ROOT
from helpers.recipes import environment
from subword_nmt.apply_bpe import BPE

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.fast import linear
from macaron_fairseq.model.architectures import ROBERTA_SIZES

FOLDER = ROOT / "benchmarks"


# Hands a command of a benchmark to the server, whose process is then the command's.
CHILD = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from helpers import served
words = [{str(measuring.CHILD)!r}, *sys.argv[1:]]
sys.exit(served.run(words, os.getcwd(), os.environ, [0, 1, 2]))
"""


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs a benchmark in this process; gives its JSON and what it printed."""
    monkeypatch.setattr(logging, "disable", lambda level: None)
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(measuring, "CHILD", tmp_path / "child.py")
    served.folder()  # which the child then finds
    threads = torch.get_num_threads()

    def run(benchmark, *words):
        out = tmp_path / "figures.json"
        monkeypatch.setattr(sys, "argv", [benchmark.__file__, *map(str, words), "--json", str(out)])
        benchmark.main()
        text, printed = out.read_text("utf-8"), capsys.readouterr()
        assert str(ROOT) not in text
        assert str(tmp_path) not in text
        result = json.loads(text)
        assert {"date", "machine", "versions", "code", "settings"} <= result.keys()
        for x in result["repetitions"]:  # each was told, as it is where nobody sees a bar
            assert f", side {x['side']}: " in printed.err
            assert x["stolen_seconds"] >= 0
        return result, printed

    yield run
    torch.set_num_threads(threads)


def refused(benchmark, monkeypatch, *words):
    """What a benchmark says of a mistake on its command line."""
    monkeypatch.setattr(sys, "argv", [benchmark.__file__, *map(str, words)])
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(logging, "disable", lambda level: None)
    with pytest.raises(UserError) as error:
        benchmark.main()
    return str(error.value)


# --- reading what fairseq prints -----------------------------------------------------------------

LOG = """\
2026-01-01 00:00:00 | INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 9)
... | INFO | train_inner | {"num_updates": "1", "wpb": "70", "wps": "0", "loss": "9"}
... | INFO | train_inner | {"num_updates": "2", "wpb": "100", "wps": "50", "loss": "8"}
... | INFO | train_inner | {"num_updates": "3", "wpb": "200", "wps": "200", "loss": "7.5"}
... | INFO | train | {"train_num_updates": "3", "train_wpb": "1", "train_wps": "1"}
"""


def test_training_log():
    # 100 tokens in 2 s and 200 in 1 s; the first update does not count.
    assert fairseq_train.read_log(LOG, skip=1, updates=2) == {
        "parameters": 1234,
        "tokens": 300,
        "seconds": 3.0,
        "tokens_per_second": 100.0,
        "loss": 7.5,
    }
    with pytest.raises(UserError, match="logged 2 of 5 updates"):
        fairseq_train.read_log(LOG, skip=1, updates=5)


def test_generation_summary():
    output = (
        "... | INFO | fairseq_cli.generate | Translated 1,000 sentences (13,500 tokens) in 7.6s "
        "(131.12 sentences/s, 1770.11 tokens/s)\n"
    )
    assert generation.read_summary(output) == {
        "sentences": 1000,
        "tokens_per_sentence": 13.5,
        "searched_per_second": 131.12,
    }
    with pytest.raises(UserError, match="did not say how fast"):
        generation.read_summary("killed")


# --- statistics and tables -----------------------------------------------------------------------


def repetitions(**speeds):
    return [
        {
            "side": side,
            "repetition": i,
            "sentences_per_second": speed,
            "searched_per_second": 2 * speed,
            "peak_memory_of_all_mib": 100,
        }
        for side, of_side in speeds.items()
        for i, speed in enumerate(of_side, 1)
    ]


def test_ratios_are_those_of_each_repetition():
    found = repetitions(stock=[10, 20, 40], ours=[30, 40, 60])
    assert measuring.median(found, "ours", "sentences_per_second") == 40
    assert measuring.ratios(found, "ours", "stock", "sentences_per_second") == [1.5, 2.0, 3.0]
    assert measuring.with_range([1.5, 2.0, 3.0]) == "2.00 (1.50-3.00)"
    assert measuring.median(found, "ours", "peak_gpu_memory_mib") is None
    assert measuring.ratios(found, "ours", "stock", "peak_gpu_memory_mib") == []
    del found[0]["sentences_per_second"]  # stock's first
    assert measuring.ratios(found, "ours", "stock", "sentences_per_second") == [1.5, 2.0]


def test_rows_of_generation():
    found = repetitions(stock=[10, 20, 40], ours=[30, 40, 60])
    _, rows = generation.rows_of(found, ["stock", "ours"])
    assert rows == [
        [
            "stock",
            "20.0",
            "1.00 (1.00-1.00)",
            "1.00 (1.00-1.00)",
            "-",
            "100",
            "1.00 (1.00-1.00)",
            "-",
        ],
        [
            "ours",
            "40.0",
            "2.00 (1.50-3.00)",
            "2.00 (1.50-3.00)",
            "-",
            "100",
            "1.00 (1.00-1.00)",
            "-",
        ],
    ]


def test_rows_of_training():
    ceiling = measuring.Ceiling(measuring.Device(False, "fp32", 1))
    ceiling.products = [
        {"precision": "fp32", "size": 4096, "gflops": gflops} for gflops in (150, 200)
    ]
    both = {"repetition": 1, "parameters": 5000, "loss": 7, "precision": "fp32"}
    found = [
        {"side": "a", "tokens_per_second": 1000, "gflops": 50, "peak_memory_mib": 800, **both},
        {"side": "b", "tokens_per_second": 2000, "gflops": 100, "peak_memory_mib": 600, **both},
    ]
    _, rows = training.rows_of(found, ["a", "b"], ceiling)
    assert rows[1] == (
        ["b", "5,000", "2,000", "2.00", "0.50", "600", "0.75", "-", "7.000", "50% of fp32"]
    )


def test_sides_are_taken_in_turn_and_each_measurement_is_told(capsys, monkeypatch):
    monkeypatch.setattr(measuring.time, "perf_counter", iter(range(0, 400, 38)).__next__)
    order = []

    def measure(side, repetition):
        order.append((side, repetition))
        return {"value": len(order)}

    found = measuring.interleave(["a", "b"], 2, measure)
    assert order == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert [(x["side"], x["repetition"]) for x in found] == order
    assert [x["value"] for x in found] == [1, 2, 3, 4]
    lines = capsys.readouterr().err.split("\n")
    assert lines == [
        *(f"repetition {repetition}/2, side {side}: 38 s" for side, repetition in order),
        "",
    ]
    assert [measuring.duration(x) for x in (1234.5, 9.54, 0.012345)] == [
        "1,234 s",
        "9.5 s",
        "0.012 s",
    ]


def test_quartiles_by_hand():
    assert measuring.with_quartiles([1, 2, 3, 4, 9]) == "3.00 (2.00-4.00)"
    assert measuring.with_quartiles([1, 2]) == "1.50 (1.25-1.75)"


# --- data ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    data = tmp_path_factory.mktemp("synthetic") / "data"
    corpora.write_synthetic(data, types=100, lengths=(3, 9), train=50, test=20)
    return data


def binary(data, name, language):
    return MMapIndexedDataset(str(data / "data-bin" / f"{name}.en-de.{language}"))


def test_synthetic_data(synthetic):
    types = Dictionary.load(str(synthetic / "data-bin" / "dict.en.txt"))
    assert len(types) == 100
    source, target = (binary(synthetic, "train", language) for language in ("en", "de"))
    assert len(source) == 50
    assert list(source.sizes) == list(target.sizes)
    assert {*source.sizes} == {*range(3, 10)}
    assert not any(torch.equal(a, b) for a, b in zip(source, target, strict=True))
    # What subword-nmt makes of the raw text is what the binary file holds.
    bpe = BPE((synthetic / "code").open(encoding="utf-8"))
    lines = (synthetic / "reference" / "test.en").read_text("utf-8").split("\n")[:-1]
    encoded = [types.encode_line(bpe.process_line(line)).tolist() for line in lines]
    assert encoded == [sentence.tolist() for sentence in binary(synthetic, "test", "en")]


def test_sample_of_a_test_set(synthetic, tmp_path):
    assert corpora.sample(synthetic, "test", 4, tmp_path / "some") == 4
    for language in ("en", "de"):
        whole, some = (binary(data, "test", language) for data in (synthetic, tmp_path / "some"))
        for i, sentence in enumerate(some):
            assert torch.equal(sentence, whole[5 * i])  # every fifth of twenty
    lines = (synthetic / "reference" / "test.en").read_text("utf-8").split("\n")[:-1]
    sampled = tmp_path / "some" / "reference" / "test.en"
    assert sampled.read_text("utf-8").split("\n")[:-1] == lines[::5]
    assert corpora.sample(synthetic, "test", None, tmp_path / "all") == 20
    with pytest.raises(UserError, match=r"holds no set 'test7'; there are: test, train$"):
        corpora.sample(synthetic, "test7", 4, tmp_path / "other")


# --- whole runs ----------------------------------------------------------------------------------


def result_of(run, benchmark, *words):
    """The JSON of a quick run, which must have printed a row for each of its sides."""
    result, printed = run(benchmark, *words, "--quick", "--cpu", "--threads", 1)
    assert result["machine"]["threads"] == 1
    for side in result["sides"]:
        assert f"| {side} |" in printed.out
    assert [x["side"] for x in result["repetitions"]] == list(result["sides"])
    assert all(x["peak_memory_mib"] > 10 for x in result["repetitions"])
    return result


@pytest.mark.slow
def test_training_runs(run):
    result = result_of(run, training)
    stock, ours = result["repetitions"]
    assert stock["tokens"] == ours["tokens"] > 0
    # 3d more parameters a layer: 2+2 layers, 16 wide.
    assert ours["parameters"] - stock["parameters"] == 4 * 3 * 16
    for x in (stock, ours):
        assert x["gflops"] > 0
        assert x["tokens_per_second"] == pytest.approx(x["tokens"] / x["seconds"])
    assert {x["precision"] for x in result["ceiling"]} == {"fp32", "bf16"}


@pytest.mark.slow
def test_language_models_run(run):
    """The causal one; its blocks of 16 tokens fill batches of 64."""
    result = result_of(run, language_models, "--causal", "--sides", "ours")
    (ours,) = result["repetitions"]
    assert ours["tokens"] == 3 * 64
    assert ours["tokens_per_second"] == pytest.approx(ours["tokens"] / ours["seconds"])
    assert ours["parameters"] > 4 * 12 * 256**2  # 4 layers, 256 wide


@pytest.mark.slow
def test_generation_runs(run):
    """With CTranslate2; the next one runs fairseq-generate."""
    pytest.importorskip("ctranslate2")
    result = result_of(run, generation, "--sides", "ours-float32")
    (exported,) = result["repetitions"]
    assert exported["sentences"] == 200
    assert exported["sentences_per_second"] > 0 < exported["start_seconds"]


@pytest.mark.slow
def test_scaling_runs(run):
    result = result_of(run, scaling, "generation", "--sides", "ours")
    found = [(x["length"], x["types"], x["tokens_per_sentence"]) for x in result["repetitions"]]
    assert found == [(8, 100, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sides", "cases"),
    [("attention", {"products", "kernel"}, 3), ("linear", {"MKL", "oneDNN"}, 19)],
)
def test_kernels_run(kind, sides, cases, run):
    if kind == "linear" and not linear.is_known_here():
        pytest.skip("this PyTorch has no such operator of oneDNN")
    result, printed = run(kernels, kind, "--quick")
    found = result["repetitions"]
    assert len(found) == 2 * cases and all(x["seconds"] > 0 for x in found)
    assert {x["side"] for x in found} == sides
    assert all(f"| {x['row']} |" in printed.out for x in found)


@pytest.mark.slow
def test_versions_take_the_same_batches_in_turn(data_bin, trained, run):
    model = trained / "checkpoint_last.pt"
    sides = f"one={ROOT}", f"two={ROOT},translation,{model}"
    words = ["--data", data_bin, "--model", model, "--batch-size", "8", "--batches", "2"]
    result, printed = run(versions, *sides, *words, "--repetitions", "2")
    assert [x["task"] for x in result["sides"].values()] == ["macaron_translation", "translation"]
    assert result["sides"]["two"]["model"] == model.name
    found = result["repetitions"]
    turns = [(x["repetition"], x["batch"], x["side"]) for x in found]
    first, second = ["one", "two"], ["two", "one"]
    # After a repetition that does not count.
    order = [(1, 0, second), (1, 1, first), (2, 0, first), (2, 1, second)]
    assert turns == [(repetition, batch, x) for repetition, batch, both in order for x in both]
    assert all(x["seconds"] > 0 for x in found)
    assert printed.out.count("\n| one | ") == printed.out.count("\n| two | ") == 1


@pytest.mark.slow
def test_updates_are_taken_in_turn(data_bin, run):
    result, printed = run(single_updates, "--quick", "--data", data_bin, "--threads", "1")
    found = result["repetitions"]
    turns = [(x["repetition"], x["side"]) for x in found]
    # The first update is left out.
    assert turns == [
        *((2, side) for side in ("ours", "lie-trotter", "stock")),
        *((3, side) for side in ("lie-trotter", "stock", "ours")),
    ]
    losses = {(x["side"], x["repetition"]): x["loss"] for x in found}
    for update in (2, 3):  # the same network on the same batches, dropout included
        assert losses["lie-trotter", update] == pytest.approx(losses["stock", update], rel=1e-4)
    assert losses["stock", 2] != losses["stock", 3]
    assert all(f"\n| {side} | " in printed.out for side in result["sides"])


@pytest.mark.slow
def test_ablation_leaves_out_what_it_says_and_nothing_else(run, monkeypatch):
    # Even the smallest linear maps are oneDNN's where it is the faster one.
    for least in ("LEAST_WEIGHTS", "LEAST_PRODUCT", "LEAST_WIDTH", "LEAST_ROWS"):
        monkeypatch.setattr(linear, least, 1)
    replaced, asked, found = set(), set(), {}
    works = {"training": ablation.TRAINING, "gelu": ablation.GELU}
    for kind, work in {**works, "translation": ablation.TRANSLATION}.items():
        for name, row in work.items():
            if not row.instead:
                continue
            [(*where, other)] = row.instead

            def spy(*args, kind=kind, name=name, other=other, **kwargs):
                asked.add((kind, name))
                return other(*args, **kwargs)

            replaced.add((kind, name))
            monkeypatch.setitem(work, name, dataclasses.replace(row, instead=((*where, spy),)))
    translate = ablation.Translator.translate

    def remember(translator, batch):
        hypotheses = translate(translator, batch)
        best = tuple(tuple(beam[0]["tokens"].tolist()) for beam in hypotheses)
        found.setdefault(batch, set()).add(best)
        return hypotheses

    monkeypatch.setattr(ablation.Translator, "translate", remember)
    parallel = ablation.WHOLE[ablation.PARALLEL]
    two = dataclasses.replace(parallel, flags=("--decoding-processes", "2"))  # at one thread each
    monkeypatch.setitem(ablation.WHOLE, ablation.PARALLEL, two)
    result, printed = run(ablation, "--quick", "--threads", "1")
    assert asked == replaced
    # Each batch was translated in two ways: by our model, whatever was left out, and by stock.
    assert [len(ways) for ways in found.values()] == [2, 2]
    measured = {work: set() for work in ablation.ROWS}
    losses = {}
    for x in result["repetitions"]:
        assert x["seconds"] > 0 and x["size"] == "tiny"
        measured[x["work"]].add(x["side"])
        if x["work"] in works:
            losses.setdefault((x["work"], x["repetition"]), {})[x["side"]] = x["loss"]
    assert measured == {work: set(rows) for work, rows in ablation.ROWS.items()}
    # The first two are left out.
    assert sorted(losses) == [("gelu", 3), ("gelu", 4), ("training", 3), ("training", 4)]
    for update in (3, 4):
        of_gelu, of_update = losses["gelu", update], losses["training", update]
        assert of_gelu["GELU"] == pytest.approx(of_gelu["everything"], rel=1e-6)
        assert of_gelu["GELU"] != pytest.approx(of_update["everything"], rel=1e-6)
        for side in ("criterion", "dropout", "linear maps by oneDNN"):
            assert of_update[side] == pytest.approx(of_update["everything"], rel=1e-4), side
        assert of_update["stock fairseq"] != pytest.approx(of_update["everything"], rel=1e-4)
    assert all(f"\n| {side} | " in printed.out for rows in ablation.ROWS.values() for side in rows)


def test_measured_batches_are_of_all_lengths():
    assert ablation.spread(3, 8) == [1, 4, 6]
    assert ablation.spread(8, 8) == [*range(8)]
    assert ablation.spread(4, 2) == [0, 0, 1, 1]


def test_gains_by_hand():
    def figures(work, **seconds):
        return [
            {"work": work, "size": "tiny", "side": side, "repetition": i, "seconds": x}
            for side, times in seconds.items()
            for i, x in enumerate(times)
        ]

    trained = figures("training", everything=(1, 2, 4), dropout=(1, 4, 12))
    translated = figures("translation", everything=(1, 1), attention=(2, 4))
    whole = {ablation.PARALLEL: (10, 20), ablation.IN_TURN: (15, 40)}
    header, rows = ablation.rows_of(trained + translated + figures("translation", **whole))
    assert header == ["left out", "training, tiny", "translation, tiny"]
    assert rows == [
        ["everything", "2,000 ms", "1,000 ms"],
        ["attention", "-", "3.00 (2.50-3.50)"],
        ["dropout", "2.00 (1.50-2.50)", "-"],
        [ablation.PARALLEL, "-", "15,000 ms"],
        [ablation.IN_TURN, "-", "1.75 (1.62-1.88)"],
    ]


@pytest.mark.slow
def test_text_work_is_of_the_pairs_and_words_of_its_corpus(tmp_path, monkeypatch, capsys):
    """150 pairs, repeated until there are 400."""
    words = ["lower", "newest", "wide", "low", "new", "widest"]
    sizes = [3 + i % 7 for i in range(150)]
    lines = [" ".join(words[(i * k) % 6] for k in range(1, n + 1)) for i, n in enumerate(sizes)]
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "prepare.json"
    pairs.write_text("".join(f"{line}\t{line.upper()}\n" for line in lines) + "no pair\n")
    monkeypatch.setattr(prepare, "OWN", environment())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    flags = ["--lines", "400", "--merges", "20", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", [prepare.__file__, str(pairs), *flags])
    prepare.main()
    found, english = json.loads(out.read_text()), sum(sizes[i % 150] for i in range(400))
    assert (found["lines"], found["words"], found["merges"]) == (400, english, 20)
    assert f"400 pairs, {english:,} English words" in capsys.readouterr().out
    *steps, every = found["steps"]
    assert [x["step"] for x in steps] == [
        *("extract", "tokenise", "clean", "hold out"),
        *("count words", "learn BPE", "apply BPE", "binarise"),
    ]
    for x in found["steps"]:
        for which in ("1", "all"):
            assert x[f"pairs_per_second_{which}"] * x[f"seconds_{which}"] == pytest.approx(400)
        minutes = x["seconds_all"] * 116_000_000 / english / 60
        assert x["wmt14_minutes"] == pytest.approx(minutes)
    assert every["seconds_1"] == pytest.approx(sum(x["seconds_1"] for x in steps))
    assert not [*tmp_path.glob("prepare-*")]


def test_text_work_of_what_holds_no_pairs(tmp_path, monkeypatch):
    path = tmp_path / "pairs.tsv"
    assert refused(prepare, monkeypatch, path) == f"{path}: no such file"
    path.write_text("no tab\n")
    assert "has no line with a tab: give source<TAB>target" in refused(prepare, monkeypatch, path)


def test_rows_of_updates_by_hand():
    seconds = {"a": (4, 6, 2), "b": (1, 3, 2)}
    found = [
        {"side": side, "repetition": i, "seconds": x}
        for side, times in seconds.items()
        for i, x in enumerate(times)
    ]
    assert single_updates.rows_of(found, ["a", "b"])[1] == [
        ["a", "2000", "4000", "12.00", "1.00", "1.00 (1.00-1.00)"],
        ["b", "1000", "2000", "6.00", "2.00", "2.00 (1.50-3.00)"],
    ]


@pytest.mark.slow
def test_each_version_is_its_own_checkout(synthetic, tmp_path, monkeypatch):
    (tmp_path / "macaron_fairseq").mkdir()
    (tmp_path / "macaron_fairseq" / "__init__.py").write_text("raise SystemExit(3)")
    model = tmp_path / "any.pt"
    model.touch()
    sentence = refused(
        versions, monkeypatch, f"other={tmp_path}", "--data", synthetic, "--model", model
    )
    assert sentence == "other ended with status 3: --verbose shows why"


def test_ratios_of_versions_by_hand():
    seconds = {("a", 0): (4, 6), ("a", 1): (2, 2), ("b", 0): (2, 2), ("b", 1): (1, 4)}
    found = [
        {"side": side, "batch": batch, "seconds": x}
        for (side, batch), times in seconds.items()
        for x in times
    ]
    # Least: 4 + 2 and 2 + 1; medians: 5 + 2 and 2 + 2.5; ratios 2, 3, 2 and 0.5.
    assert versions.rows_of(found, ["a", "b"]) == [
        ["a", "6.00", "1.00", "7.00", "1.00", "1.00"],
        ["b", "3.00", "2.00", "4.50", "1.56", "2.00"],
    ]


@pytest.mark.parametrize(
    "sides, sentence",
    [
        (["a=nowhere"], "give NAME=CHECKOUT"),
        (["a"], "give NAME=CHECKOUT"),
        ([f"a={ROOT}"], "a has no model"),
        ([f"a={ROOT},translation,nowhere.pt"], "a has no model"),
        (["a=x", "a=y"], "two sides have the same name"),
    ],
)
def test_versions_refuse_what_is_not_there(sides, sentence, synthetic, monkeypatch):
    assert sentence in refused(versions, monkeypatch, *sides, "--data", synthetic)


@pytest.mark.slow
def test_peak_memory_counts_all_processes(monkeypatch):
    """Two with 200 MiB each, of which neither has all; they hold it until it was seen."""
    held = "import sys; x = b'1' * 200 * 2**20; sys.stdin.read()"
    script = (
        "import subprocess, sys\n"
        f"other = subprocess.Popen([sys.executable, '-c', {held!r}])\n"
        f"{held}; other.wait()"
    )
    look, deadline = memory.of_tree, time.monotonic() + 120

    def look_and_let_go(pid):
        found = look(pid)
        if found > 400 * 2**20 or time.monotonic() > deadline:
            process.stdin.close()
        return found

    monkeypatch.setattr(memory, "of_tree", look_and_let_go)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert 400 < memory.wait(process) < 500
        assert process.returncode == 0


def test_peak_memory_is_the_most_there_was():
    code = (
        "from harness import child; before = child.peak_memory(); x = b'1' * 200 * 2**20; del x;"
        "print(child.peak_memory() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True)
    assert 190 < float(done.stdout) < 230, done.stderr


@pytest.mark.slow
def test_terminated_benchmark_ends_its_process(tmp_path):
    child = tmp_path / "child.py"
    child.write_text(
        "import os, pathlib, sys, time\n"
        "path = pathlib.Path(sys.argv[2])\n"
        "path.with_suffix('.part').write_text(str(os.getpid()))\n"
        "path.with_suffix('.part').rename(path)\n"
        "time.sleep(300)\n"
    )
    code = (
        "import pathlib, sys\n"
        "from harness import measuring, program\n"
        "measuring.CHILD = pathlib.Path(sys.argv[1])\n"
        "device = measuring.Device(False, 'fp32', 1)\n"
        "program.start(lambda: measuring.run(device, sys.argv[2]))\n"
    )
    pid = tmp_path / "pid"
    command = [sys.executable, "-c", code, str(child), str(pid)]
    benchmark = subprocess.Popen(command, cwd=FOLDER, stderr=subprocess.PIPE, text=True)
    while not pid.exists():
        assert benchmark.poll() is None, benchmark.stderr.read()
        time.sleep(0.05)
    benchmark.send_signal(signal.SIGTERM)
    _, errors = benchmark.communicate(timeout=60)
    assert benchmark.returncode == 143
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


# --- mistakes ------------------------------------------------------------------------------------


def test_mistakes_are_told_in_a_sentence(monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "only-test").mkdir()
    (tmp_path / "only-test" / "dict.en.txt").write_text("a 1\n")
    (tmp_path / "text.pt").write_text("no checkpoint")
    for benchmark, words, sentence in (
        (training, [], "what should be trained on? Give --data DATA or --synthetic"),
        (generation, [], "what should be translated? Give --data DATA or --synthetic"),
        (
            training,
            ["--quick", "--sides", "stock", "mine"],
            "there is no side 'mine': choose from stock, ours, ",
        ),
        (training, ["--quick", "--side", "mine"], "--side mine has no '='"),
        (
            training,
            ["--synthetic", "--cpu", "--precision", "fp16"],
            "--precision fp16 needs a GPU: leave it out on a CPU",
        ),
        (training, ["--data", tmp_path / "empty"], "holds no dictionary: give the folder"),
        (training, ["--data", tmp_path / "only-test"], "holds no set 'train': prepare it"),
        (
            generation,
            ["--quick", "--sides", "ours", "--ours", tmp_path / "text.pt"],
            "text.pt is truncated or not a checkpoint",
        ),
        (
            generation,
            ["--quick", "--sides", "ours", "--ours", tmp_path / "none.pt"],
            "none.pt: no such file",
        ),
        (training, ["--synthetic", "--types", "99999"], "choose 5 to 46660"),
        (
            generation,
            ["--quick", "--ours", tmp_path],
            "both --stock and --ours, or to neither",
        ),
        (
            generation,
            ["--quick", "--sides", "ours", "--stock", tmp_path / "text.pt"],
            "text.pt: no side of --sides uses it",
        ),
        (language_models, [], "what should be trained on? Give --data DATA or --synthetic"),
        (language_models, ["--data", tmp_path / "only-test"], "holds no train.idx: give what"),
        (scaling, ["training", "--lengths", "1"], "--lengths below 2"),
        (ablation, [], "what should be trained on and translated? Give --data DATA"),
        (ablation, ["--data", tmp_path, "--repetitions", "1"], "has no quartiles: give 2"),
        (ablation, ["--data", tmp_path, "--runs", "1"], "--runs 1 has no quartiles: give 2"),
    ):
        assert sentence in refused(benchmark, monkeypatch, *words)


@pytest.mark.parametrize("benchmark", [training, generation, language_models])
def test_flags_with_a_quotation_mark_too_few(benchmark, monkeypatch, capsys):
    words = [benchmark.__file__, "--quick", "--flags", "--dropout '0"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        benchmark.main()
    assert end.value.code == 2
    assert "argument --flags: --dropout '0: no closing quotation" in capsys.readouterr().err


def test_language_models_of_each_size_have_architectures():
    for causal, flags in ((False, language_models.MASKED), (True, language_models.CAUSAL)):
        for size in ROBERTA_SIZES:
            for side in language_models.sides_of([*flags], causal, size).values():
                assert side[side.index("--arch") + 1] in ARCH_MODEL_REGISTRY


def test_bf16_products_are_not_timed_where_they_are_slow(monkeypatch):
    monkeypatch.setattr(sides.bf16, "is_fast_here", lambda: False)
    sentence = refused(training, monkeypatch, "--quick", "--cpu", "--sides", "stock", "ours-bf16")
    assert "not for this CPU" in sentence


def test_a_command_that_fails_is_shown():
    with pytest.raises(UserError, match=r"(?s)there is no command.*macaron-fairseq failed"):
        measuring.run(measuring.Device(False, "fp32", 1), "macaron-fairseq", "nothing")


# --- distillation --------------------------------------------------------------------------------


def test_each_loss_of_distillation_is_measured(capsys):
    sizes = ["--types", "60", "--sentences", "2", "--length", "5", "--repetitions", "1"]
    archs = ["--student", "macaron_transformer_student_tiny", "--teacher", "transformer_tiny"]
    distillation.main([*archs, *sizes])
    *lines, machine = capsys.readouterr().out.splitlines()
    rows = [line.split("|")[1:4] for line in lines[2:]]
    names = ["no teacher", "word level"]
    names += [f"word level and trajectory on {spans}" for spans in ("words", "tokens")]
    names.append("no teacher, its own vocabulary")
    names += [f"across vocabularies by {kind}" for kind in ("sra", "uld", "mined")]
    assert [row[0].strip() for row in rows] == names
    assert float(rows[1][2]) == 1
    assert machine.startswith(f"{date.today()}, ") and machine.endswith("; threads: 1")


def test_a_student_across_vocabularies_splits_the_words_that_it_does_not_have():
    dictionary = distillation.own_dictionary(2)  # aaa, aab; not aac
    found = distillation.own_tokens(dictionary, torch.tensor([[0, 2, 1], [2, 2, 2]]), 3)
    assert [[dictionary[i] for i in row] for row in found] == [
        ["aaa", "aa@@", "c"],
        ["aa@@", "c", "aa@@"],
    ]


# --- particles -----------------------------------------------------------------------------------


def test_a_velocity_of_particles_is_measured(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # set anew by what is measured, and then put back
    clock, processor, memory = map(float, particles.measure("blocks, 2 threads", 30, 3, 2))
    assert clock > 0 and processor >= 0 and memory >= 0
