"""The recipe for GLUE: its files, metrics, choices and comparisons; nothing is trained."""

import dataclasses
import json
import math
import shutil
import statistics
import subprocess
import sys
import zipfile
from argparse import Namespace
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import glue
import glue_data
import glue_flags
import glue_metrics
import glue_options
import glue_records
import glue_report
import glue_run
import glue_tasks
import numpy as np
import pytest
import torch
from common import ask_fairseq, stage_train, train_command
from fairseq import checkpoint_utils
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask
from glue_records import Key
from glue_report import Result, System
from glue_tasks import TASKS
from helpers.commands import sentence_of
from helpers.paths import FIXTURES
from helpers.recipes import EXAMPLES
from helpers.small import SMALL_ENCODER, arguments, build, masked_task

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.training import training_flags

# --- The files -----------------------------------------------------------------------------------


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line.replace("|", "\t") + "\n" for line in lines))
    return path


def test_quotes_are_characters_as_others(tmp_path):
    path = write(tmp_path / "train.tsv", "index|sentence1|sentence2|label", '1|"a|b" c|entailment')
    found = glue_tasks.read(TASKS["RTE"], path)
    assert found.sentences == [('"a', 'b" c')] and found.labels == ["entailment"]


def test_sizes_are_glues():
    """As its data set cards count them: train, dev and test."""
    sizes = {
        **{"CoLA": (8551, 1043, 1063), "SST-2": (67349, 872, 1821), "MRPC": (3668, 408, 1725)},
        **{"STS-B": (5749, 1500, 1379), "QQP": (363846, 40430, 390965)},
        **{"QNLI": (104743, 5463, 5463), "RTE": (2490, 277, 3000), "WNLI": (635, 71, 146)},
        "MNLI": (392702, 9815, 9832, 9796, 9847),  # matched and mismatched
    }
    found = {
        name: tuple(x.examples for x in (task.train, *task.dev, *task.test))
        for name, task in TASKS.items()
    }
    assert found == sizes


def test_broken_lines_are_left_out_and_numbered(tmp_path):
    head = "id|qid1|qid2|question1|question2|is_duplicate"
    lines = [head, "1|2|3|a|b|1", "4|5|6|c", "7|8|9|d|e|", "", "10|11|12||g|0", "13|14|15|h|i|0"]
    found = glue_tasks.read(TASKS["QQP"], write(tmp_path / "train.tsv", *lines))
    assert found.sentences == [("a", "b"), ("h", "i")] and found.broken == [3, 4, 5, 6]


def test_cola_has_no_line_of_names(tmp_path):
    path = write(tmp_path / "train.tsv", "gj04|1||Fine.", "gj04|0|*|Not fine this.")
    found = glue_tasks.read(TASKS["CoLA"], path, glue_tasks.COLA)
    assert found.sentences == [("Fine.",), ("Not fine this.",)] and found.labels == ["1", "0"]


@pytest.mark.parametrize(
    ("task", "lines", "said"),
    [
        ("CoLA", ["gj04|1|Fine.", "gj04|0|Not."], "line 1 has 3 of the 4 columns source, label, "),
        ("CoLA", ["", "gj04||*|Not."], "line 1 has 1 of the 4 columns"),
        ("CoLA", ["gj04||*|Not."], "line 1 has no label, and no other line is whole"),
        (
            "RTE",
            ["index|sentence1|sentence2|label", "1|a|b"],
            "line 2 has 3 of the 4 columns index",
        ),
        ("RTE", ["index|sentence1|label", "1|a|b"], "line 1 names no column 'sentence2'"),
        ("RTE", ["index|sentence1|sentence2|label", "1|a|b|maybe"], "line 2 has the label 'maybe'"),
        ("SST-2", ["sentence|label", "a|1", "b|2"], "line 3 has the label '2': SST-2 has 0, 1"),
        ("STS-B", ["sentence1|sentence2|score", "a|b|5.5"], "it should be from 0 to 5"),
        ("STS-B", ["sentence1|sentence2|score", "a|b|good"], "line 2 has the score 'good'"),
    ],
)
def test_a_file_that_is_not_right_is_refused_by_its_line(task, lines, said, tmp_path):
    path = write(tmp_path / "train.tsv", *lines)
    columns = TASKS[task].train.columns
    said_of_file = sentence_of(glue_tasks.read, TASKS[task], path, columns)
    assert said in said_of_file and str(path) in said_of_file


def test_every_line_of_a_test_file_is_answered(tmp_path):
    path = write(tmp_path / "test.tsv", "index|sentence1|sentence2", "0|a|b", "1|c")
    assert "line 3 lacks a column" in sentence_of(glue_tasks.read_test, TASKS["RTE"], path)
    path = write(tmp_path / "test.tsv", "id|question1|question2", "0|a|b", "x|c|d")
    assert "line 3 has the id 'x'" in sentence_of(glue_tasks.read_test, TASKS["QQP"], path)
    path = write(tmp_path / "test.tsv", "id|question1|question2", "0|a|b", "1|c|d", "0|e|f")
    assert "line 4 has the id '0' of line 2" in sentence_of(
        glue_tasks.read_test, TASKS["QQP"], path
    )


MRPC = "Quality|#1 ID|#2 ID|#1 String|#2 String"


def test_mrpc_is_the_same_from_either_layout(tmp_path):
    pairs = ["1|10|11|a b|b a", '0|12|13|"c|d', "1|14|15|e|f"]
    one, other = tmp_path / "one" / "MRPC", tmp_path / "other" / "MRPC"
    write(one / "msr_paraphrase_train.txt", MRPC, *pairs)
    write(one / "dev_ids.tsv", "12|13")
    write(one / "msr_paraphrase_test.txt", MRPC, "1|1|2|x|y", "0|3|4|z|w")
    write(other / "train.tsv", "\ufeff" + MRPC, pairs[0], pairs[2])
    write(other / "dev.tsv", MRPC, pairs[1])
    write(other / "test.tsv", MRPC.replace("Quality", "index"), "0|1|2|x|y", "1|3|4|z|w")
    found = [glue_tasks.load(TASKS["MRPC"], x.parent, False, print) for x in (one, other)]
    assert found[0] == found[1] and found[0]["dev"].sentences == [('"c', "d")]
    (one / "dev_ids.tsv").unlink()
    said = sentence_of(glue_tasks.load, TASKS["MRPC"], one.parent, False, print)
    assert "has no dev_ids.tsv" in said


def test_mnli_has_two_dev_and_test_sets_and_the_diagnostic_one(tmp_path):
    own, head = tmp_path / "MNLI", "index|genre|sentence1|sentence2"
    write(own / "train.tsv", f"{head}|label1|gold_label", "0|x|a|b|neutral|entailment")
    for name in ("matched", "mismatched"):
        write(own / f"dev_{name}.tsv", f"{head}|label1|gold_label", f"0|x|a|{name}|neutral|neutral")
        write(own / f"test_{name}.tsv", head, f"5|x|c|{name}")
    write(tmp_path / "diagnostic" / "diagnostic.tsv", "index|sentence1|sentence2", "0|e|f")
    found = glue_tasks.load(TASKS["MNLI"], tmp_path, False, print)
    assert found["train"].labels == ["entailment"]
    assert found["dev_mismatched"].sentences == [("a", "mismatched")]
    assert found["test_matched"].indices == [5] and found["diagnostic"].sentences == [("e", "f")]


def test_counts_are_glues(tmp_path):
    own = tmp_path / "WNLI"
    head, pair = "index|sentence1|sentence2", "0|a|b"
    write(own / "train.tsv", f"{head}|label", *[f"{pair}|1"] * 635)
    write(own / "dev.tsv", f"{head}|label", *[f"{pair}|0"] * 70)
    write(own / "test.tsv", head, *[f"{i}|a|b" for i in range(146)])
    arguments = TASKS["WNLI"], tmp_path
    said = sentence_of(glue_tasks.load, *arguments, True, print)
    assert "WNLI, dev holds 70 examples, and GLUE has 71" in said and "--sizes any" in said
    assert len(glue_tasks.load(*arguments, False, print)["dev"].labels) == 70
    assert "has no folder RTE" in sentence_of(glue_tasks.load, TASKS["RTE"], tmp_path, True, print)


def test_a_line_of_a_thousand_may_lack_in_train():
    """As of MRPC in a copy that goes round; none of dev."""
    heard, task = [], TASKS["MRPC"]
    found = glue_tasks.Examples(sentences=[("a", "b")] * 3667, broken=[7])
    glue_tasks.check(task, task.train, found, True, heard.append)
    assert "line 7, which" in heard[0] and "3667 examples, and GLUE has 3668" in heard[1]
    found.sentences = found.sentences[:407]
    assert "holds 407" in sentence_of(
        glue_tasks.check, task, task.dev[0], found, True, heard.append
    )


def test_subsets_are_named_as_fairseq_does():
    mnli = TASKS["MNLI"]
    splits = [mnli.train, *mnli.dev, *mnli.test, glue_tasks.DIAGNOSTIC]
    names = ["train", "valid", "valid1", "test", "test1", "test2"]
    assert [glue_data.subset(mnli, split) for split in splits] == names


# --- Metrics -------------------------------------------------------------------------------------

GIVEN = list("1101001110")
RIGHT = list("1001011010")


def test_metrics_are_those_of_the_formulas():
    tp = sum(a == b == "1" for a, b in zip(GIVEN, RIGHT, strict=True))
    tn = sum(a == b == "0" for a, b in zip(GIVEN, RIGHT, strict=True))
    fp, fn = GIVEN.count("1") - tp, RIGHT.count("1") - tp
    found = glue_metrics.of_set(["Matthews", "F1", "accuracy"], GIVEN, RIGHT)
    under = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert found["Matthews"] == pytest.approx(100 * (tp * tn - fp * fn) / under)
    assert found["F1"] == pytest.approx(200 * tp / (2 * tp + fp + fn))
    assert found["accuracy"] == pytest.approx(100 * (tp + tn) / 10)


def test_correlations_are_those_of_numbers_and_of_ranks():
    given, right = ["1.0", "2.5", "0.5", "4.0"], ["0.0", "5.0", "2.0", "3.0"]
    found = glue_metrics.of_set(["Pearson", "Spearman"], given, right)
    a, b = np.array(given, float), np.array(right, float)
    assert found["Pearson"] == pytest.approx(100 * np.corrcoef(a, b)[0, 1])
    # Ranks 2 3 1 4 and 1 4 2 3: 1 - 6 * (1 + 1 + 1 + 1) / (4 * 15).
    assert found["Spearman"] == pytest.approx(100 * (1 - 6 * 4 / 60))
    flat = glue_metrics.of_set(["Pearson", "Spearman"], ["1.0"] * 4, right)
    assert flat == {"Pearson": 0, "Spearman": 0}


def test_mnli_has_an_accuracy_for_each_dev_set():
    given = {"dev_matched": ["neutral", "neutral"], "dev_mismatched": ["entailment"]}
    right = {"dev_matched": ["neutral", "entailment"], "dev_mismatched": ["entailment"]}
    found = glue_metrics.of_task(TASKS["MNLI"], given, right)
    assert found == {"matched": 50, "mismatched": 100}


def test_scores_of_sts_b_come_back():
    assert [glue_metrics.target(x) for x in ("0", "3", "5")] == [-1.5, 0, 1]
    answers = glue_metrics.answers(TASKS["STS-B"], [[-9.0], [glue_metrics.target("3.8")], [2.0]])
    assert answers == ["0.0000", "3.8000", "5.0000"]
    assert glue_metrics.answers(TASKS["RTE"], [[0.1, 0.2], [3.0, -1.0]]) == [
        "entailment",
        "not_entailment",
    ]


# --- Choices and comparisons ---------------------------------------------------------------------

BASE, MACARON = System("base", True), System("macaron", True)
SCRATCH = System("macaron", False)


def results(task, scores, rate="1e-05"):
    metric = TASKS[task].metrics[0]
    return [Result(task, seed, rate, {metric: score}) for seed, score in scores.items()]


def test_the_rate_with_the_best_mean_on_dev_is_taken():
    runs = results("RTE", {1: 50, 2: 60}, "3e-05") + results("RTE", {1: 49, 2: 62}, "5e-05")
    assert glue_report.best_rate(runs) == "5e-05"
    assert {seed: one.score for seed, one in glue_report.chosen(runs)["RTE"].items()} == {
        1: 49,
        2: 62,
    }
    same = results("RTE", {1: 50}, "3e-05") + results("RTE", {1: 50}, "5e-05")
    assert glue_report.best_rate(same) == "3e-05"


def test_rates_are_compared_on_the_seeds_that_all_have():
    """A run that has just begun may have one lucky seed at one rate."""
    runs = results("RTE", {1: 60}, "1e-05") + results("RTE", {1: 61, 2: 58, 3: 58.5}, "3e-05")
    assert glue_report.best_rate(runs) == "3e-05"
    apart = results("RTE", {1: 60}, "1e-05") + results("RTE", {2: 58, 3: 59}, "3e-05")
    assert glue_report.best_rate(apart) == "1e-05"  # no seed is shared


def test_averages_say_whether_wnli_is_in_them():
    runs = [*results("RTE", {1: 60, 2: 70}), *results("CoLA", {1: 10, 2: 20})]
    runs += results("WNLI", {1: 50, 2: 57})
    scores = glue_report.chosen(runs)
    assert glue_report.averages(scores) == {1: 40, 2: 49}
    assert glue_report.averages(scores, "WNLI") == {1: 35, 2: 45}
    table = glue_report.table({BASE: scores}, [])
    assert "| 44.5 ± 6.4 | 40.0 ± 7.1 |" in table
    del scores["WNLI"]
    assert "| - | 40.0 ± 7.1 |" in glue_report.table({BASE: scores}, [])


def test_averages_are_of_systems_that_have_all_tasks():
    both = [*results("RTE", {1: 60, 2: 70}), *results("CoLA", {1: 10, 2: 20})]
    text, data = glue_report.report({BASE: both, MACARON: results("RTE", {1: 51, 2: 53})}, [])
    base, other = data["systems"]
    assert base["average"] == {} and base["average_without_wnli"] == {1: 35, 2: 45}
    assert other["average"] == {} == other["average_without_wnli"]
    assert "| 52.0 ± 1.4 | - | - |" in text.replace("| - | - | - |", "| - | - |")


def test_equal_differences_and_a_single_unequal_one_are_no_error():
    """The first have no interval, and of the latter either sign is as likely."""
    base, other = results("RTE", {1: 60, 2: 70}), results("RTE", {1: 61, 2: 71})
    text, _ = glue_report.report({BASE: base, MACARON: other}, [])
    assert "Mean of 2 pairs of runs on 1 task: +1.00, 95 % interval none, since all are" in text
    same = results("CoLA", {1: 10, 2: 20})
    _, data = glue_report.report({BASE: base + same, MACARON: other + same}, [])
    assert data["differences"][0]["wilcoxon"] == 1


def test_systems_are_compared_by_task_and_seed():
    base = results("RTE", {1: 60, 2: 61, 3: 59}) + results("CoLA", {1: 10, 2: 12, 3: 11})
    other = results("RTE", {1: 62, 2: 62, 3: 62}) + results("CoLA", {1: 13, 2: 13, 3: 12})
    scratch = results("RTE", {1: 52, 2: 53, 3: 55})
    runs = {BASE: base, MACARON: other, SCRATCH: scratch}
    found = glue_report.comparisons({x: glue_report.chosen(y) for x, y in runs.items()})
    assert [(x.one, x.other) for x in found] == [(MACARON, BASE), (MACARON, SCRATCH)]
    averages = [(2 + 3) / 2, (1 + 1) / 2, (3 + 1) / 2]
    assert found[0].difference == pytest.approx(statistics.mean(averages))
    margin = 4.302653 * statistics.stdev(averages) / math.sqrt(3)  # Student's t with 2 degrees
    ends = statistics.mean(averages) - margin, statistics.mean(averages) + margin
    assert found[0].over_seeds == pytest.approx(ends, rel=1e-5)
    effect = found[0].effect
    assert effect.low < effect.estimate < effect.high and found[0].pairs == 6
    assert effect.estimate == pytest.approx(11 / 6)
    assert found[1].tasks == 1 and found[1].wilcoxon is None
    text, data = glue_report.report(runs, [])
    low, high = ends
    assert f"+1.83, 95 % interval over seeds {low:+.2f} to {high:+.2f}. Mixed-effects m" in text
    assert "2 differences are looked at, each with intervals for itself." in text
    assert "Learning rates were chosen" not in text
    assert data["differences"][0]["over_seeds"] == pytest.approx(ends, rel=1e-5)
    assert found[1].difference == pytest.approx(62 - 160 / 3)


def test_p_values_are_corrected_and_chosen_rates_are_told():
    """Three tasks of one seed, where the one is always ahead: p is 1/4, twice that by Holm."""
    names = "RTE", "CoLA", "SST-2"
    base, other, third = (
        [
            one
            for i, task in enumerate(names)
            for one in results(task, {1: 50 + i * (1 + shift) + shift})
        ]
        for shift in (0, 1, 2)
    )
    rates = results("RTE", {1: 40}, "3e-05")
    text, data = glue_report.report(
        {BASE: base + rates, MACARON: other, System("x", True): third}, []
    )
    assert text.count("Wilcoxon over tasks p = 0.250, 0.500 by Holm") == 2
    assert "Mean of 3 pairs of runs on 3 tasks:" in text and "Mixed-effects" not in text
    assert [x["wilcoxon_holm"] for x in data["differences"]] == [0.5, 0.5]
    assert "Learning rates were chosen by these dev sets" in text


def test_published_rows_are_the_papers():
    rows = json.loads((EXAMPLES / "glue" / "published.json").read_text())
    scores = rows[0]["scores"]
    means = [statistics.mean(scores[task]) for task in TASKS if task != "WNLI"]
    # The paper's average counts WNLI, which it does not print.
    assert statistics.mean([*means, 65.1]) == pytest.approx(rows[0]["average"], abs=0.05)
    every = {task: results(task, {1: 1}) for task in TASKS}
    runs = glue_report.chosen([one for found in every.values() for one in found])
    runs = {t: {1: Result(t, 1, "1", dict.fromkeys(TASKS[t].metrics, 1.0))} for t in runs}
    table = glue_report.table({BASE: runs}, rows)
    assert "| 88.4/84.4 |" in table and "| 79.7 | 81.5 |" in table
    assert all(len(rows[0]["scores"][t]) == len(TASKS[t].metrics) for t in scores)
    # Of fewer tasks the average is over these, and WNLI is not there to be counted.
    few = {task: runs[task] for task in ("CoLA", "WNLI")}
    assert f"| - | {statistics.mean(scores['CoLA']):.1f} |" in glue_report.table({BASE: few}, rows)


def test_one_seed_says_nothing_and_the_report_says_so():
    for seeds, said in (({1: 60}, True), ({1: 60, 2: 61}, False)):
        runs = {BASE: results("RTE", seeds), MACARON: results("RTE", seeds)}
        text, _ = glue_report.report(runs, [])
        assert ("One seed: this says nothing about the architecture." in text) is said
        assert f"Mean of {len(seeds)} pair{'s' * (len(seeds) > 1)} of runs on 1 task:" in text


def test_the_server_gets_a_file_for_each_test_set():
    splits = ("test_matched", "test_mismatched", "diagnostic")
    answers = {split: ["neutral", "entailment"] for split in splits}
    worse = Result("MNLI", 1, "1", {"matched": 1.0, "mismatched": 1.0}, {})
    better = Result("MNLI", 2, "1", {"matched": 2.0, "mismatched": 2.0}, answers)
    scores = {"MNLI": {1: worse, 2: better}}
    examples = {"MNLI": {split: {"indices": [7, 8]} for split in splits}}
    with zipfile.ZipFile(BytesIO(glue_report.submission(scores, examples))) as archive:
        assert archive.namelist() == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
        text = archive.read("MNLI-mm.tsv").decode()
    assert text == "index\tprediction\n7\tneutral\n8\tentailment\n"
    lacks = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "QNLI", "RTE", "WNLI"]
    assert glue_report.missing(scores) == lacks


def test_a_run_goes_on_by_its_own_plan_alone(tmp_path):
    plan = glue_run.Plan("RTE", ["--lr", "1"], 4, True, {}, "one", "", False, "")
    glue_run.plan_of(tmp_path, plan)
    (tmp_path / "result.json").write_text('{"settings": "one", "start": ""}')
    (tmp_path / "checkpoint_last.pt").touch()
    glue_run.plan_of(tmp_path, plan)
    assert (tmp_path / "result.json").exists() and (tmp_path / "checkpoint_last.pt").exists()
    other = replace(plan, flags=["--lr", "2"], settings="two")
    said = sentence_of(glue_run.plan_of, tmp_path, other)
    assert said.startswith(f"{tmp_path} has an unfinished run of other options, text or start:")
    assert json.loads((tmp_path / "plan.json").read_text())["settings"] == "one"
    assert (tmp_path / "checkpoint_last.pt").exists()
    (tmp_path / "checkpoint_last.pt").unlink()
    glue_run.plan_of(tmp_path, other)  # nothing is lost


# --- Records -------------------------------------------------------------------------------------


def record(**changes):
    fields = {
        **{"arch": "a/lie-trotter", "pretrained": True, "task": "RTE", "rate": "0.001", "seed": 1},
        **{"scores": {"accuracy": 52.5}, "settings": "one", "start": "two"},
        **{
            "pretraining": "three",
            "updates": 3,
            "seconds": 1.5,
            "date": "2026-11-25",
            "environment": {"cpu": "some"},
        },
    }
    return glue_records.Record(**{**fields, **changes})


def test_records_are_kept_a_line_each(tmp_path):
    path = tmp_path / "records.json"
    first, second = record(), record(seed=2)
    glue_records.add(path, [second])
    glue_records.add(path, [first, second])
    assert glue_records.read(path) == {first.key: first, second.key: second}
    assert len(path.read_text().splitlines()) == 4
    glue_records.add(path, [record(date="2026-11-26")])  # the same result: the older one stays
    assert glue_records.read(path)[first.key] == first


@pytest.mark.parametrize(
    "change", [{"scores": {"accuracy": 1.0}}, {"settings": "x"}, {"start": ""}]
)
def test_another_result_of_a_run_is_refused(change, tmp_path):
    path = tmp_path / "records.json"
    glue_records.add(path, [record()])
    with pytest.raises(UserError, match="another result of RTE, a/lie-trotter, learning rate"):
        glue_records.add(path, [record(**change)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda runs: runs + runs, "holds a run twice"),
        (lambda runs: [{**runs[0], "seed": "1"}], "item 1/seed should be a whole number"),
        (lambda runs: [{"seed": 1}], "item 1 lacks 'arch'"),
        (lambda runs: runs[0], "the file should be a list"),
    ],
)
def test_a_damaged_file_of_records_is_refused(change, said, tmp_path):
    path = tmp_path / "records.json"
    glue_records.add(path, [record()])
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(UserError, match=said):
        glue_records.read(path)


# --- Runs and records ----------------------------------------------------------------------------


def test_half_precision_is_for_a_gpu(tmp_path, monkeypatch):
    found = prepared(tmp_path)
    monkeypatch.setattr(ask_fairseq, "count_gpus", lambda recipe: 1)
    flags = glue_flags.plan(found, RTE._replace(pretrained=False)).flags
    assert "--fp16" in flags and "--cpu" not in flags


@pytest.mark.parametrize(
    ("task", "classes", "decay", "updates", "warmup"),
    [("RTE", "2", "0", 24, 2), ("STS-B", "1", "0", 30, 3), ("QNLI", "2", "0.01", 24, 2)],
)
def test_a_run_has_the_flags_of_its_task_seed_and_rate(
    task, classes, decay, updates, warmup, tmp_path
):
    """90 examples are six batches of 16; finetuning.yaml has four epochs, and five of STS-B."""
    words = ["finetune", "--work", str(tmp_path), "--tasks", task, "--archs", "a", "--cpu"]
    found = glue_options.read(words)
    write(found.recipe.data / "data-bin" / "dict.txt", "the 9")
    write(found.recipe.data / "preprocessing.json", '{"fingerprint": "text"}')
    split = {"subset": "train", "examples": 90, "labels": [], "indices": []}
    write(glue_data.where(found.recipe, task) / "examples.json", json.dumps({"train": split}))
    flags = glue_flags.plan(found, Key("a", False, task, "3e-05", 7)).flags
    for name, value in {
        "--seed": "7",
        "--lr": "3e-05",
        "--num-classes": classes,
        "--batch-size": "16",
        "--weight-decay": decay,
        "--total-num-update": str(updates),
        "--max-update": str(updates),
        "--warmup-updates": str(warmup),
    }.items():
        assert flags.count(name) == 1 and flags[flags.index(name) + 1] == value, name
    assert ("--regression-target" in flags) is (task == "STS-B")
    assert "--cpu" in flags and "--finetune-from-model" not in flags


def prepared(work, *words):
    """The recipe on RTE with prepared data, of which nothing is trained."""
    found = glue_options.read(
        ["finetune", "--work", str(work), "--tasks", "RTE", "--archs", "a", "--learning-rates", "1"]
        + [*words, "--cpu"]
    )
    write(found.recipe.data / "data-bin" / "dict.txt", "the 9")
    write(found.recipe.data / "preprocessing.json", '{"fingerprint": "text"}')
    split = {"subset": "valid", "examples": 9, "labels": [], "indices": []}
    content = {name: split for name in ("train", "dev", "test")}
    write(glue_data.where(found.recipe, "RTE") / "examples.json", json.dumps(content))
    return found


RTE = Key("a", True, "RTE", "1", 1)


def pretrained(found, seed, content="weights"):
    folder = found.recipe.run("a", seed)
    write(folder / "checkpoint_last.pt", content)
    write(folder / "trained", train_command.identity(found.recipe, "text", "a", seed))


def made(found, seed=1, **changes):
    """The record of a run as these options make it, from a model that is elsewhere."""
    fields = {"arch": "a", "rate": "1", "seed": seed, "start": "model"}
    fields["settings"] = glue_flags.settings_hash(found, RTE._replace(seed=seed))
    fields["pretraining"] = glue_flags.pretraining(found, RTE._replace(seed=seed))
    return record(**{**fields, **changes})


def test_a_record_of_another_pretraining_is_none_of_these_runs(tmp_path):
    found = prepared(tmp_path)
    assert glue.is_of(found, made(found))
    longer = prepared(tmp_path, "--max-update", "2000000")
    assert not glue.is_of(longer, made(found)) and glue.is_of(longer, made(longer))
    other_seed = prepared(tmp_path, "--pretrain-seeds", "2")
    assert not glue.is_of(other_seed, made(found))
    pretrained(longer, 1)
    assert not glue.is_of(longer, made(longer))  # now that there is a model to compare
    start = glue_flags.sha256(longer.recipe.run("a", 1) / "checkpoint_last.pt")
    assert glue.is_of(longer, made(longer, start=start))


def test_a_plan_is_of_a_model_that_these_options_pretrained(tmp_path):
    found = prepared(tmp_path)
    pretrained(found, 1)
    plan = glue_flags.plan(found, RTE)
    assert plan.pretraining == glue_flags.pretraining(found, RTE)
    for change in ({"max_update": 2000000}, {"extra": ["--macaron-scheme", "parallel"]}):
        other = replace(found, recipe=replace(found.recipe, **change))
        said = sentence_of(glue_flags.plan, other, RTE)
        assert said.startswith(f"{found.recipe.run('a', 1)} was pre-trained with other options")


def test_machines_that_share_seeds_start_from_the_same_models(tmp_path):
    both = prepared(tmp_path, "--seeds", "1 2 3", "--pretrain-seeds", "5 7")
    one = prepared(tmp_path, "--seeds", "2", "--pretrain-seeds", "5 7")
    assert [glue_flags.pretrain_seed(both, seed) for seed in (1, 2, 3)] == [5, 7, 5]
    assert glue_flags.pretrain_seed(one, 2) == 7


def test_runs_of_two_models_do_not_share_a_row(tmp_path):
    path = tmp_path / "records.json"
    found = prepared(tmp_path, "--seeds", "1 2", "--records", str(path))
    glue_records.add(path, [made(found), made(found, 2, start="another")])
    for stage in (glue.jobs_left, glue.report):
        assert "of a start from different pre-trained models" in sentence_of(stage, found)


def test_a_result_of_other_options_is_not_lost(tmp_path):
    found = prepared(tmp_path)
    pretrained(found, 1)
    path = glue.place(found, RTE) / "result.json"
    write(path, '{"settings": "other", "start": ""}')
    said = sentence_of(glue.jobs_left, found)
    assert f"{path} was made with other options" in said
    assert [x.name for x in path.parent.iterdir()] == ["result.json"]


def test_a_record_of_other_options_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "records.json"
    found = prepared(tmp_path, "--seeds", "1 2", "--records", str(path))
    pretrained(found, 1)
    glue_records.add(path, [made(found, 2, settings="other")])
    said = sentence_of(glue.jobs_left, found)
    assert "RTE, a, rate 1, seed 2 with other options" in said and "name another file" in said
    assert not (tmp_path / "finetuned").exists()


def local_result(found, seed, **changes):
    one = made(found, seed, **changes)
    content = {name: getattr(one, name) for name in glue.OF_RUN}
    folder = glue_flags.place(found, RTE._replace(seed=seed))
    write(folder / "result.json", json.dumps({**content, "answers": {}}))


def test_a_record_stands_for_a_stale_local_result(tmp_path, monkeypatch):
    path = tmp_path / "records.json"
    found = prepared(tmp_path, "--records", str(path))
    local_result(found, 1, settings="stale", scores={"accuracy": 1.0})
    glue_records.add(path, [made(found)])
    shown = []
    monkeypatch.setattr(glue_report, "write", lambda runs, *_: shown.append(runs) or "")
    glue.report(found)
    assert [x.scores for x in shown[0][System("a", True)]] == [{"accuracy": 52.5}]


def test_records_are_kept_as_each_run_ends(tmp_path, monkeypatch):
    """A machine that goes in the second run has kept the first."""
    path = tmp_path / "records.json"
    found = prepared(tmp_path, "--seeds", "1 2", "--records", str(path))
    pretrained(found, 1)
    start = glue_flags.sha256(found.recipe.run("a", 1) / "checkpoint_last.pt")

    def local(jobs, at_a_time):
        local_result(found, 1, start=start)
        yield jobs[0], 0
        assert [key.seed for key in glue_records.read(path)] == [1]
        yield jobs[1], 1

    monkeypatch.setattr(glue.launch, "local", local)
    assert "1 of 2 runs failed" in sentence_of(glue.finetune, found, glue.jobs_left(found))


def test_what_is_done_is_reported_though_a_run_failed(tmp_path, monkeypatch):
    found = prepared(tmp_path, "finetune", "report", "--seeds", "1 2")
    pretrained(found, 1)
    start, reported = glue_flags.sha256(found.recipe.run("a", 1) / "checkpoint_last.pt"), []

    def local(jobs, at_a_time):
        local_result(found, 2, start=start)
        yield from ((job, 1) for job in jobs)  # of which a result tells more

    monkeypatch.setattr(glue.launch, "local", local)
    monkeypatch.setattr(glue_options, "read", lambda words: found)
    monkeypatch.setattr(glue, "report", reported.append)
    monkeypatch.setattr(glue, "refuse_unknown_flags", lambda glue: None)  # as of this architecture
    assert "1 of 2 runs failed" in sentence_of(glue.run, [])
    assert reported == [found]
    monkeypatch.setattr(glue, "report", lambda glue: sys.exit("no finished run of these"))
    assert "1 of 2 runs failed" in sentence_of(glue.run, [])
    monkeypatch.setattr(glue, "report", lambda glue: sys.exit(143))  # by a signal
    with pytest.raises(SystemExit, match="143"):
        glue.run([])


def test_labels_are_part_of_what_a_run_is_made_from(tmp_path):
    """STS-B's are no .bin files."""
    write(tmp_path / "input0" / "train.bin", "tokens")
    paths = tmp_path / "label" / "train.label", tmp_path / "examples.json"
    found = set()
    for contents in (("0.2", "{}"), ("0.4", "{}"), ("0.4", "[]")):
        for path, content in zip(paths, contents, strict=True):
            write(path, content)
        found.add(glue_data.fingerprint(tmp_path))
    assert len(found) == 3


@pytest.fixture
def binarise(tmp_path, monkeypatch):
    """Makes RTE's data with these options; returns fairseq's task that reads it, and its labels.

    First sentences have one to nine tokens, second ones one.
    """
    monkeypatch.setattr(ask_fairseq, "apart", lambda function, *words: function(*words))
    monkeypatch.setattr(
        glue_data.stage_prepare,
        "tokenize",
        lambda recipe, steps, before, out, *_: [
            (out / x.name).write_text(x.read_text()) for x in (out.parent / before).iterdir()
        ],
    )

    def made(*words):
        found, out = prepared(tmp_path / "work", *words).recipe, tmp_path / "RTE"
        write(found.data / "data-bin" / "dict.txt", "so 9", "not 9", "the 9")
        entailed = [i % 3 == 1 for i in range(9)]
        pairs = [("the " * i + "so" * x + "not" * (not x), "the") for i, x in enumerate(entailed)]
        labels = ["entailment" if x else "not_entailment" for x in entailed]
        splits = {name: glue_tasks.Examples(pairs, labels) for name in ("train", "dev", "test")}
        glue_data.binarised(found, TASKS["RTE"], splits, out)
        fields = dataclasses.fields(SentencePredictionConfig)
        config = {field.name: field.default for field in fields}
        config |= {"data": str(out), "num_classes": 2, "regression_target": False, "seed": 1}
        config |= {"init_token": 0, "separator_token": 2}  # RoBERTa's
        return SentencePredictionTask.setup_task(Namespace(**config)), labels

    return made


@pytest.fixture
def binarised(binarise):
    return binarise()


def test_what_is_longer_than_a_sample_is_cut_in_every_set(binarise, capsys):
    """Six tokens more than the index: <s> A </s> </s> B </s>. The short sentence stays."""
    task, _ = binarise("--tokens-per-sample", "12")
    end = [task.source_dictionary.index("the"), task.source_dictionary.eos()]
    for subset in ("train", "valid", "test"):
        task.load_dataset(subset)
        samples = [task.dataset(subset)[i]["net_input.src_tokens"].tolist() for i in range(9)]
        assert [len(sample) for sample in samples] == [6, 7, 8, 9, 10, 11, 12, 12, 12]
        assert all(sample[-2:] == end for sample in samples)
    assert "RTE, dev: 2 of 9 examples have more than 12 tokens" in capsys.readouterr().out


def test_data_is_made_again_for_samples_of_another_length(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(glue_tasks, "load", lambda *_: {})
    monkeypatch.setattr(glue_data, "binarised", lambda recipe, *_: made.append(recipe.block))
    shutil.rmtree(prepared(tmp_path).recipe.work / "glue")  # which no step has made
    for length in ("16", "12", "12"):
        words = ["finetune", "--work", str(tmp_path), "--tasks", "RTE", "--archs", "a", "--cpu"]
        words += ["--learning-rates", "1", "--tokens-per-sample", length]
        recipe = glue_options.read(words).recipe
        glue_data.prepare(recipe, tmp_path, ["RTE"], False)
    assert made == [16, 12]


def test_answers_have_the_labels_that_fairseq_trains_with(binarised):
    task, labels = binarised
    task.load_dataset("valid")
    outputs = [np.eye(2)[task.dataset("valid")[i]["target"]].flatten() for i in range(9)]
    assert glue_metrics.answers(TASKS["RTE"], outputs) == labels


def test_answers_are_in_the_order_of_the_examples(binarised, monkeypatch):
    """fairseq's batches are not. The model reads the answer in the sentence, without dropout."""
    task, labels = binarised

    class Model(torch.nn.Module):
        def forward(self, src_tokens, classification_head_name, **_):
            assert classification_head_name == "some" and not self.training
            says_so = (src_tokens == task.source_dictionary.index("so")).any(1)
            return torch.stack([~says_so, says_so], 1).float(), None

    saved = Namespace(criterion=Namespace(classification_head_name="some"))
    loaded = [Model()], saved, task
    monkeypatch.setattr(checkpoint_utils, "load_model_ensemble_and_task", lambda _: loaded)
    monkeypatch.setattr(glue_run, "BATCH", 2)
    found = glue_run.predict(Path("any.pt"), ["valid"], cpu=True)
    assert glue_metrics.answers(TASKS["RTE"], found["valid"]) == labels


# --- The command line ----------------------------------------------------------------------------

TEXT = ["--text", "a.txt", "--glue", "."]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "a.txt"], "say where GLUE's files are: --glue FOLDER"),
        (["--text", "a.txt", "--glue", "nowhere"], "nowhere, given by --glue, is not a folder"),
        ([*TEXT, "--tasks", "cola"], "Did you mean CoLA"),
        (
            [*TEXT, "--records", "."],
            "cannot read . (Is a directory): it should be what --records has written",
        ),
        ([*TEXT, "--learning-rates", "1e-4 0"], "should be numbers above 0"),
        ([*TEXT, "--learning-rates", "1e-4 0.0001"], "--learning-rates names a value twice"),
        ([*TEXT, "--seeds", "1 2 1"], "'1 2 1' should name seeds, each once"),
        ([*TEXT, "--tasks", " "], "--tasks names no task: choose from CoLA"),
        ([*TEXT, "--tasks", "RTE RTE"], "--tasks names a value twice"),
        ([*TEXT, "--codes", "c", "--dictionary", "d"], "are those of --pretrained"),
        ([*TEXT, "train"], "train is neither a stage"),
        ([*TEXT, "--tokens-per-sample", "20000"], "does not fit into batches of 16384"),
        ([*TEXT, "--", "--tokens-per-sample", "9"], "is an option: name it before --"),
        ([*TEXT, "--", "--max-positions=9"], "is set by the recipe: see --tokens-per-sample"),
        ([*TEXT, "--", "--total-num-update", "9"], "see --max-update"),
        ([*TEXT, "--short-samples", "32"], "'32' should be TOKENS:UPDATES, as 32:4000"),
        ([*TEXT, "--short-samples", "a:9"], "a is not a whole number above 0"),
        ([*TEXT, "--short-samples", "1:9"], "no samples of one token"),
        ([*TEXT, "--", "--reset-optimizer"], "would begin anew at each start"),
        ([*TEXT, "--short-samples", "512:9"], "512:9: the others have 512 tokens; give fewer"),
        ([*TEXT, "--max-update", "9", "--short-samples", "32:9"], "32:9: there are 9 updates in"),
        ([*TEXT, "--max-update", "9", "--", "--warmup-updates", "9"], "would rise for 9 updates"),
        ([*TEXT, "--language", "English"], "--language takes two or three letters"),
        ([*TEXT, "--", "--seed", "3"], "--seed is set by the recipe"),
        ([*TEXT, "--pretrained", "a.pt"], "name it with --archs ARCH"),
        ([*TEXT, "--archs", "a", "--pretrained", "a.pt"], "needs the text in its own tokens"),
        (["finetune", "--archs", "a", "--pretrained", "a.pt"], "a.pt is not a file"),
        ([*TEXT, "--archs", "a", "--pretrained", "a.pt", "--from-scratch"], "exclude each other"),
        ([*TEXT, "--pretrain-seeds", " "], "' ' should name seeds, each once"),
        ([*TEXT, "--from-scratch", "--dry-run"], "nothing is pre-trained here"),
        (["pretrain", *TEXT, "--from-scratch"], "nothing is pre-trained with --pretrained or"),
    ],
)
def test_mistakes_get_a_sentence(words, said):
    assert said in sentence_of(glue_options.read, words)


def test_a_missing_package_is_named_at_once(monkeypatch):
    monkeypatch.setitem(glue_options.NEEDED, "no_such_module", "some-package")
    assert "pip install some-package" in sentence_of(glue_options.read, TEXT)


THEIRS = FIXTURES / "reference" / "bert_small"
SIZES = ["--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "24"]
SIZES += ["--encoder-attention-heads", "2"]
OF_BERT = ("--archs", "transformer_bert_base_macaron")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Begins the recipe with a model of the authors' and this dict.txt; returns how it ends."""

    def prepares(recipe, codes, dictionary):
        sys.exit("prepare begins")

    def run(lines, words, flags):
        monkeypatch.setattr(ask_fairseq, "apart", lambda function, *words: function(*words))
        monkeypatch.setattr(sys, "argv", ["glue"])  # which the check changes
        monkeypatch.setattr(glue.stage_text, "take", prepares)
        monkeypatch.setattr(glue.glue_tasks, "load", lambda *_: {})
        (tmp_path / "glue" / "RTE").mkdir(parents=True)
        dictionary = write(tmp_path / "dict.txt", *lines)
        options = ["--glue", tmp_path / "glue", "--codes", write(tmp_path / "codes")]
        options += ["--pretrained", THEIRS / "macaron" / "checkpoint.pt", *words]
        options += ["--dictionary", dictionary, "--work", tmp_path / "work", "--cpu", "--", *flags]
        said = sentence_of(glue.run, [str(word) for word in options])
        assert not [*(tmp_path / "work").iterdir()]
        return said

    return run


LINES = (THEIRS / "dict.txt").read_text().splitlines()
WHOLE = ["<mask> 1", "<cls> 1", *LINES]


@pytest.mark.parametrize(
    ("lines", "words", "flags", "said"),
    [
        (WHOLE, OF_BERT, SIZES, "prepare begins"),
        (
            LINES,
            OF_BERT,
            SIZES,
            "has no <cls>, with which this model's texts begin: put the lines '<",
        ),
        (WHOLE[:-1], OF_BERT, SIZES, "use the dict.txt that the model was trained with"),
        ([*WHOLE, "a b c"], OF_BERT, SIZES, "cannot read the dictionary"),
        (
            *(WHOLE, OF_BERT, []),
            f"other layers than the model: give -- {' '.join(SIZES[:6])} and its own {SIZES[6]}",
        ),
        (WHOLE, OF_BERT, [*SIZES, "--encoder-layers", "3"], "give -- --encoder-layers 2, or"),
        (
            WHOLE,
            OF_BERT,
            [*SIZES, "--encoder-layer", "2"],
            "fairseq-train would refuse this: unrec",
        ),
        (WHOLE, ["--archs", "transformer_bert_bas"], SIZES, "Did you mean transformer_bert_base"),
        (WHOLE, ["--archs", "transformer"], [], "transformer is not for sentence_prediction"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_text_is_prepared(
    lines, words, flags, said, start
):
    assert said in start(lines, words, flags)


def test_positions_are_named_as_the_recipe_takes_them(start, tmp_path):
    arch, sizes = "macaron_roberta_tiny", [*SMALL_ENCODER, "--tokens-per-sample", "32"]
    model = build(arch, "--task", "masked_lm", *sizes, for_task=masked_task())
    args = Namespace(arch=arch, task="masked_lm")
    torch.save({"args": args, "model": model.state_dict()}, tmp_path / "own.pt")
    words = ["--archs", arch, "--pretrained", tmp_path / "own.pt"]
    said = start([f"w{i} 1" for i in range(60)], words, SMALL_ENCODER)
    assert said.endswith("has 32 positions and the model 512: give --tokens-per-sample 32")


@pytest.mark.parametrize(
    ("before", "arch", "flags", "said"),
    [
        ([], "macaron_roberta_tiny", [], "prepare begins"),
        ([], "roberta_tiny_pre_norm", [], "has another network than roberta_tiny_pre_norm"),
        (
            *(["--macaron-scheme", "parallel"], "macaron_roberta_tiny"),
            ["--macaron-scheme", "lie-trotter"],
            "was trained with --macaron-scheme parallel, and the model would have lie-trotter",
        ),
        (
            *([], "macaron_roberta_tiny", ["--macaron-substep", "midpoint"]),
            "was trained with --macaron-substep euler, and the model would have midpoint",
        ),
        (
            *([], "macaron_roberta_tiny", ["--encoder-attention-heads", "2"]),
            "was trained with --encoder-attention-heads 4, and the model would have 2",
        ),
        (
            *([], "macaron_roberta_tiny", ["--activation-fn", "relu"]),
            "was trained with --activation-fn gelu, and the model would have relu",
        ),
    ],
)
def test_another_network_is_refused_though_its_parameters_may_fit(
    before, arch, flags, said, start, tmp_path
):
    trained = "macaron_roberta_tiny"
    common = ["--task", "masked_lm", *SMALL_ENCODER, "--tokens-per-sample", "32", *before]
    args = arguments(trained, *common)
    model = build(trained, *common, for_task=masked_task())
    torch.save({"args": args, "model": model.state_dict()}, tmp_path / "own.pt")
    words = ["--archs", arch, "--pretrained", tmp_path / "own.pt", "--tokens-per-sample", "32"]
    assert said in start([f"w{i} 1" for i in range(60)], words, [*SMALL_ENCODER, *flags])


def read(*words):
    return glue_options.read([*TEXT, *words])


SHORT = "--max-update", "900", "--tokens-per-sample", "128", "--short-samples", "32:600"


def test_short_samples_come_first():
    parts = [(x.max_update, x.benchmark.training.words()) for x in read(*SHORT).recipe.parts()]
    assert [most for most, _ in parts] == [600, 900]
    found = [training_flags.parse(words) for _, words in parts]
    for name, values in {
        "--tokens-per-sample": [["32"], ["128"]],
        "--max-positions": [["128"], ["128"]],
        "--total-num-update": [["900"], ["900"]],
    }.items():
        assert [flags[name][-1:] for flags in found] == values
    whole = read(*SHORT[:4]).recipe
    assert [x.max_update for x in whole.parts()] == [900]
    others = [SHORT, SHORT[:4], (*SHORT[:5], "32:700"), (*SHORT[:5], "16:600")]
    assert len({train_command.identity(read(*x).recipe, "text", "a", 1) for x in others}) == 4


@pytest.fixture
def starts(tmp_path, monkeypatch):
    """Trains from so many updates on; returns each start of fairseq-train, by what matters here."""

    def train(had, *words):
        begun = []

        def follow(words, environ, log, *rest):
            begun.append((words, environ, log, *rest))
            (log.parent / "checkpoint_last.pt").touch()

        for name, value in {
            "updates_had": lambda *_: had,
            "call": lambda words: None,
            "fingerprint": lambda data: "text",
            "follow_training": follow,
        }.items():
            monkeypatch.setattr(stage_train, name, value)
        found = prepared(tmp_path, *words)
        devices = stage_train.train_command.plan(found.recipe, 0, {})
        stage_train.train_one(found.recipe, devices, "a", 1)
        flags = [training_flags.parse(words) for words, *_ in begun]
        assert [x["--max-update"] for x in flags] == [[str(most)] for *_, most in begun]
        parts = zip(flags, begun, strict=True)
        return [
            (x["--tokens-per-sample"], "--reset-dataloader" in x, *rest[-2:]) for x, rest in parts
        ]

    return train


def test_a_training_goes_on_in_its_part(starts, tmp_path):
    """The data loader begins anew where the part does, and nowhere else."""
    short, rest = ["32"], ["128"]
    assert starts(0, *SHORT) == [(short, False, 0, 600), (rest, True, 600, 900)]
    run = prepared(tmp_path, *SHORT).recipe.run("a", 1)
    for had, expected in {
        1: [(short, False, 1, 600), (rest, True, 600, 900)],
        600: [(rest, True, 600, 900)],
        601: [(rest, False, 601, 900)],
        900: [],
    }.items():
        (run / "trained").unlink()
        assert starts(had, *SHORT) == expected
        assert (run / "trained").is_file()


def test_a_training_goes_on_in_no_other_parts(starts, tmp_path):
    starts(0, *SHORT)
    for other in (SHORT[:4], (*SHORT[:5], "32:700"), (*SHORT[:5], "16:600")):
        assert "was trained with other --short-samples" in sentence_of(starts, 600, *other)
    run = prepared(tmp_path, *SHORT).recipe.run("a", 1)
    for name in ("parts", "trained"):
        (run / name).unlink()
    assert starts(300, *SHORT[:4]) == [(["128"], False, 300, 900)]
    assert "was trained with other --short-samples" in sentence_of(starts, 300, *SHORT)


def test_a_training_that_begins_anew_forgets_its_parts(starts, tmp_path):
    """It was killed before its first checkpoint, and is begun without short samples."""
    starts(0, *SHORT)
    (prepared(tmp_path, *SHORT).recipe.run("a", 1) / "trained").unlink()
    assert starts(0, *SHORT[:4]) == [(["128"], False, 0, 900)]
    assert "was trained with other --short-samples" in sentence_of(starts, 300, *SHORT)
    (prepared(tmp_path, *SHORT).recipe.run("a", 1) / "trained").unlink()
    assert starts(300, *SHORT[:4]) == [(["128"], False, 300, 900)]


def test_the_schedule_ends_with_the_training():
    found = read("--max-update", "3000", "--tokens-per-sample", "128", "--", "--lr", "1e-3")
    flags = " ".join(found.recipe.benchmark.training.words())
    assert "--total-num-update 3000" in flags and "--max-positions 128" in flags
    assert found.recipe.batch == 256 * 512 and found.stages == list(glue_options.STAGES)
    assert found.recipe.stages == ["prepare", "train"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--archs", "macaron_roberta_tinny"],
            "no architecture macaron_roberta_tinny. Did you",
        ),
        (["--", "--layernorm-embeding"], "unrecognized arguments: --layernorm-embeding"),
        (["--", "--lr", "fast"], "argument --lr"),
    ],
)
def test_what_fairseq_refuses_is_told_before_the_first_run(words, said, monkeypatch):
    monkeypatch.setattr(ask_fairseq, "apart", lambda function, *given: function(*given))
    found = read("finetune", "--from-scratch", "--tasks", "RTE", *words)
    assert said in sentence_of(glue.refuse_unknown_flags, found)
    typo = replace(found.setting, flags="--optimiser adam")
    sound = read("finetune", "--from-scratch", "--tasks", "RTE")
    glue.refuse_unknown_flags(sound)
    wrong = sentence_of(glue.refuse_unknown_flags, replace(sound, setting=typo))
    assert "--optimiser" in wrong


def test_flags_that_nothing_would_heed_are_refused():
    found = replace(read("--from-scratch", "--", "--dropout", "0"), pretrained=Path("bert.pt"))
    said = sentence_of(glue.refuse_unknown_flags, found)
    assert said.startswith("--dropout is for the pre-training, and with --pretrained there is none")


def test_the_authors_models_are_for_their_checkpoints():
    """Text that is prepared here has no <cls>, with which theirs begins."""
    for words in ((), ("--from-scratch",)):
        said = sentence_of(read, *words, "--archs", "transformer_bert_base_macaron")
        assert said.startswith("transformer_bert_base_macaron is for checkpoints of the authors'")


def test_from_scratch_leaves_out_the_pretraining():
    found = read("--from-scratch")
    assert "pretrain" not in found.stages and found.recipe.stages == ["prepare"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("WNLI:", "WNLY:", "tasks should be CoLA, SST-2, MRPC"),
        ("batch: 32", "batch: 0", "tasks/CoLA/batch should be at least 1, not 0"),
        ("[3.0e-5, 5.0e-5]", "[]", "learning_rates should be numbers above 0"),
        ("warmup: 0.1", "warmup: 10", "warmup should be a share of the updates, not 10"),
        ("--clip-norm 0", "--clip-norm '0", "flags should be flags as one types them"),
    ],
)
def test_values_with_which_no_task_could_be_trained(old, new, said, tmp_path):
    text = (EXAMPLES / "glue" / "finetuning.yaml").read_text()
    assert old in text
    (tmp_path / "mine.yaml").write_text(text.replace(old, new))
    with pytest.raises(SystemExit) as refusal:
        glue_options.benchmark.read_as(glue_options.Finetuning, tmp_path / "mine.yaml")
    assert refusal.value.code.startswith(f"{tmp_path}/mine.yaml: {said}")


def test_updates_of_finetuning():
    assert glue_flags.updates_of(read(), "RTE", 2490) == 4 * 156  # batches of 16
    assert glue_flags.updates_of(read("--epochs", "1"), "CoLA", 8551) == 268
    assert glue_flags.updates_of(read("--finetune-max-update", "9"), "CoLA", 8551) == 9


def test_the_rate_rises_for_a_tenth_of_the_updates(tmp_path):
    found = prepared(tmp_path, "--epochs", "30")  # of 9 examples, one batch
    flags = training_flags.parse(glue_flags.flags_of(found, RTE))
    assert flags["--warmup-updates"] == ["3"] and flags["--total-num-update"] == ["30"]


def test_sentences_begin_as_the_models_own(tmp_path):
    recipe = read("--work", str(tmp_path)).recipe
    write(recipe.data / "data-bin" / "dict.txt", "the 9", "a 7")
    assert glue_data.around(recipe) == ["--init-token", "0", "--separator-token", "2"]
    write(recipe.data / "data-bin" / "dict.txt", "<mask> 1", "<cls> 1", "the 9")
    assert glue_data.around(recipe) == ["--init-token", "5"]


@pytest.mark.parametrize(
    ("dictionary", "sentences", "tokens"),
    [
        (["the 9"], 2, 6),  # <s> A </s> </s> B </s>
        (["the 9"], 1, 8),  # <s> A </s>
        (["<cls> 1", "the 9"], 2, 7),  # <cls> A </s> B </s>
    ],
)
def test_special_tokens_take_their_room(dictionary, sentences, tokens, tmp_path):
    recipe = read("--work", str(tmp_path), "--tokens-per-sample", "10").recipe
    write(recipe.data / "data-bin" / "dict.txt", *dictionary)
    assert glue_data.room(recipe, sentences) == tokens


def test_a_sample_has_room_for_a_token_of_each_sentence(tmp_path):
    def recipe(length):
        return read("--work", str(tmp_path), "--tokens-per-sample", length).recipe

    write(recipe("6").data / "data-bin" / "dict.txt", "the 9")
    assert glue_data.room(recipe("6"), 2) == 2
    said = sentence_of(glue_data.room, recipe("5"), 2)
    assert said == "--tokens-per-sample 5 leaves no room for a pair: give more"


def test_the_longer_sentence_of_a_pair_is_cut(tmp_path):
    paths = tmp_path / "a", tmp_path / "b"
    write(paths[0], "1 2 3 4 5 6 7 8", "1 2", "1 2 3 4 5", "1 2 3")
    write(paths[1], "a b", "a b c d e f", "a b c d e", "a b c")
    assert glue_data.shorten(paths, 7) == 3
    assert paths[0].read_text().splitlines() == ["1 2 3 4 5", "1 2", "1 2 3 4", "1 2 3"]
    assert paths[1].read_text().splitlines() == ["a b", "a b c d e", "a b c", "a b c"]
    write(paths[0], "1 2 3 4 5 6 7 8")
    assert glue_data.shorten(paths[:1], 3) == 1 and paths[0].read_text() == "1 2 3\n"


def test_finetuning_builds_the_model_of_the_pretraining():
    kept = "--macaron-scheme parallel --encoder-layers 2 --activation-fn relu --layernorm-embedding"
    extra = f"--lr 1 {kept} --clip-norm 1 --dropout 0.2"
    assert glue_flags.model_flags(extra.split()) == kept.split()


def test_the_script_explains_itself():
    script = EXAMPLES / "glue" / "reproduce.sh"
    done = subprocess.run(["bash", script, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--from-scratch" in done.stdout and "finetuning.yaml" in done.stdout
