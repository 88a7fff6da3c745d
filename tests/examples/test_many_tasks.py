"""The runner of many tasks: what it refuses, and what it makes of tasks.yaml."""

import gzip
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import many_tasks
import many_tasks_plan as plan
import many_tasks_records as known
import many_tasks_report as report
import many_tasks_run
import pytest
from common import extract, launch, parallel_text, run_options, steps, tasks, train_command
from helpers import prose
from helpers.commands import sentence_of
from helpers.evidence import record
from helpers.recipes import EXAMPLES
from helpers.run_folders import LOG, write_lines
from many_tasks_variants import Variant, points_of, preparation_of, recipe_of

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.evidence import estimates, records


@pytest.fixture(autouse=True)
def all_tools(monkeypatch):
    """Nothing is run here, so that nothing need be installed."""
    monkeypatch.setattr(shutil, "which", lambda name: name)


def refusal(capsys, *words):
    with pytest.raises(SystemExit) as end:
        many_tasks.main([*map(str, words)])
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "g2p-ice g2p"], "--tasks names g2p-ice twice"),
        (["--tasks", "g2p-icee"], "Did you mean g2p-ice"),
        (["--schemes", "macaron"], "unknown splitting scheme 'macaron': --schemes takes"),
        (["--schemes", "parallel parallel"], "--schemes names parallel twice"),
        (["--schemes", "parallel/midpiont"], "unknown sub-step 'midpiont'"),
        (["--schemes", "parallel/rk4/a/half-depth"], "should be SCHEME, SCHEME/SUBSTEP"),
        (["--schemes", "parallel/rk4/half-depth"], "and rk4 takes 4 times as many"),
        (["--schemes", "parallel/half-depth"], "and euler takes 1 times as many"),
        (["--seeds", "1 1"], "should name seeds, each once"),
        (["--seeds", "0"], "0 is not a whole number from 1 to below 2^32"),
        (["--tasks", "g2p", "--work", "a:b"], "fairseq splits paths at ':' and ','"),
        (["evaluate"], "evaluate is neither a stage"),
        (["--", "--seed", "3"], "--seed is set by the recipe: see --seeds\n"),
        (["--", "--cpu"], "--cpu is an option: name it before --"),
        (["--", "--bf16"], "--bf16 is set by the recipe: leave it out"),
        (["--", "--arch", "transformer"], "--arch is set by the recipe: leave it out"),
        (["--", "--batch-size", "8"], "smaller than the recipe's: see --max-tokens\n"),
        (["--", "--keep-last-epochs", "2"], "10 epochs are to be averaged: keep as many\n"),
        (["--", "--macaron-scheme", "parallel"], "would override what --schemes and the file of"),
        (["--", "--macaron-decoder-scheme=parallel"], "would override what --schemes"),
        (["--", "--encoder-ffn-embed-dim", "8"], "would override what --schemes"),
        (["--", "--no-epoch-checkpoints"], "the last 10 epochs are to be averaged"),
        (["--", "--no-save"], "--no-save would leave nothing to score"),
        (["run", "--slurm", "timeout_min=5"], "--slurm is for --launcher slurm: give that, too"),
        (["--records", __file__], "given by --records, is not a folder"),
        (["page", "--records", "nowhere"], "nowhere is not a folder of records"),
        (["report", "--tasks", "multi30k"], "has no records of multi30k-en-de, multi30k-de-en"),
    ],
)
def test_mistakes_get_a_sentence(words, said, capsys, tmp_path):
    own = words.index("--") if "--" in words else len(words)
    work = [] if "--work" in words else ["--work", tmp_path]
    assert said in refusal(capsys, *words[:own], *work, *words[own:])


def test_a_family_is_tuned_first(capsys, tmp_path):
    lines = tasks.FILE.read_text().splitlines(keepends=True)
    untuned = "".join(line for line in lines if not line.startswith("    chosen: "))
    (tmp_path / "tasks.yaml").write_text(untuned.replace("../", f"{EXAMPLES}/"))
    words = ["run", "--tasks", "g2p-ice", "--tasks-file", tmp_path / "tasks.yaml"]
    said = refusal(capsys, *words, "--work", tmp_path / "w", "--cpu")
    assert "g2p has not been tuned: run the stage tune first" in said


def test_a_setting_that_was_found_with_other_options_is_refused(capsys, tmp_path):
    """As after a trial with fewer updates."""
    lines = tasks.FILE.read_text().splitlines(keepends=True)
    untuned = "".join(line for line in lines if not line.startswith("    chosen: "))
    file = tmp_path / "tasks.yaml"
    file.write_text(untuned.replace("../", f"{EXAMPLES}/"))
    point, task = {"tokens": 256, "dropout": 0.1}, tasks.read(file)["g2p-hun"]
    options = tasks.Options(tmp_path / "w", None, cpu=True, file=file)
    seed = task.kind.tuning.seed
    one = task, Variant.parse("lie-trotter"), seed, tasks.Setting(**point), options
    scores = recipe_of(*one, is_tuning=True).result
    scores.parent.mkdir(parents=True)
    scores.write_text('{"settings": "of a trial", "scores": []}')
    (tmp_path / "w" / "tuning").mkdir()
    found = json.dumps({"points": [point], "chosen": point})
    (tmp_path / "w" / "tuning" / "g2p.json").write_text(found)
    words = ["run", "--tasks", "g2p-ice", "--tasks-file", file, "--work", tmp_path / "w", "--cpu"]
    assert "tuning g2p-hun lie-trotter was made with other settings" in refusal(capsys, *words)
    assert "has no records of g2p-ice" in refusal(capsys, "report", *words[1:])


def test_the_setting_is_that_with_the_lowest_mean_in_the_records():
    path = EXAMPLES.parent / "docs" / "results" / "records" / "tuning" / "g2p.json"
    points = {}
    for x in json.loads(path.read_text()):
        wer = next(one["score"] for one in x["scores"] if one["metric"] == "WER")
        points.setdefault((x["tokens"], x["dropout"]), []).append(wer)
    assert {len(scores) for scores in points.values()} == {2 * 3}
    assert min(points, key=lambda point: sum(points[point])) == (256, 0.2)
    assert tasks.read()["g2p-ice"].kind.chosen == tasks.Setting(256, 0.2)


def test_the_best_mean_is_the_lowest_of_errors_and_the_highest_of_bleu():
    low, high = tasks.Setting(256, 0.1), tasks.Setting(512, 0.1)
    means = {low: 10.0, high: 25.0, tasks.Setting(1024, 0.1): 25.0}
    assert many_tasks.best_of(means, "WER") == low
    assert many_tasks.best_of(means, "BLEU") == high


def test_what_a_kill_left_of_tuning_is_said(tmp_path):
    (tmp_path / "dev.json").write_text('{"settings": "x"')
    with pytest.raises(UserError, match=r"dev.json is not a JSON file: remove it, and run the sta"):
        known.load(tmp_path / "dev.json")


def test_nothing_to_keep_leaves_no_folder(tmp_path):
    every, out = tasks.read(), tmp_path / "kept" / "records"
    options = tasks.Options(tmp_path, None, cpu=True, file=tasks.FILE)
    known.keep([every["g2p-ice"]], every, options, out)
    assert not out.exists()


def test_a_report_of_nothing_is_refused(capsys, tmp_path):
    said = refusal(capsys, "report", "--tasks", "g2p-ice", "--work", tmp_path)
    assert "has no records of g2p-ice yet: run the stage run" in said


def test_data_is_looked_for_before_anything_is_trained(capsys, tmp_path):
    said = refusal(capsys, "--from", tmp_path, "--work", tmp_path / "w")
    assert "has no folder sigmorphon2020_g2p" in said and not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("families: {}\ntasks: {a: {}, a: {}}", "a stands twice in it"),
        ("families: {}\ntasks: {a: {family: b, pair: en-de}}", "tasks/a/family is b"),
        ("families: {}\ntasks: {a: {family: b, pair: ende}}", "should be S-T"),
        ("families: {}\ntasks: {a: {pair: en-de}}", "tasks/a lacks 'family'"),
        ("families: [", "is no YAML file"),
        (
            tasks.FILE.read_text().replace("tasks: [g2p-hun,", "tasks: [g2p-hum,"),
            "families/g2p/tuning/tasks names g2p-hum, which is not a task",
        ),
        (
            tasks.FILE.read_text().replace("metric: WER", "metric: Wer"),
            "families/g2p/metric is Wer, but runs of g2p-ady are scored by WER, PER",
        ),
        (
            tasks.FILE.read_text().replace("metric: BLEU", "metric: chrF", 1),
            "families/multi30k/metric is chrF, which cannot be bootstrapped: choose from BLEU, "
            "tokenised BLEU, WER, PER",
        ),
        (
            tasks.FILE.read_text().replace("score: 23.5", 'score: "23.5"'),
            "tasks/autshumato-en-af/benchmark/published has a score that is no number",
        ),
        (
            tasks.FILE.read_text() + "  tatoeba-en-fr: {family: tatoeba, pair: en-fr}",
            "tasks/tatoeba-en-fr: sets/train: columns should be en and fr, not en and de",
        ),
        (
            tasks.FILE.read_text() + "  tatoeba-fr-de: {family: tatoeba, pair: fr-de}",
            "tasks/tatoeba-fr-de: held_out_by should be one of fr and de, not en",
        ),
        *(
            (tasks.FILE.read_text().replace(old, new, 1), f"families/g2p/{said}")
            for old, new, said in (
                ("[{tokens: [256", "[{token: [256", "tuning/rounds has no 'token'; it may have"),
                ("tokens: [256", "tokens: [many", "tuning/rounds/tokens should be a whole number"),
                ("dropout: [0.1", "dropout: [1.5", "tuning/rounds/dropout should be a probability"),
                ("tokens: [256, 512, 1024]", "tokens: []", "tuning/rounds has no values of tokens"),
                ("tokens: 1280000", "tokens: 900", "tuning/tokens leaves no update of 1024 tokens"),
                ("dev: dev", "dev: development", "tuning/dev is development, which is not a set"),
                ("schemes: [lie-trotter, strang", "schemes: [] #", "tuning/tasks, schemes and"),
                ("tokens: 256, dropout: 0.2} # by", "tokens: 0, dropout: 0} #", "chosen/tokens"),
                ("layers: 4", "layers: 0", "layers should be at least 1, not 0"),
            )
        ),
    ],
)
def test_a_file_of_tasks_that_is_not_as_it_should_be(text, said, tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit) as end:
        tasks.read(path)
    assert said in end.value.code and "\n" not in end.value.code


def test_schemes_have_the_baselines_width_and_half_the_depth_is_said():
    kind = tasks.read()["g2p-ice"].kind
    flags = " ".join(Variant.parse("strang-marchuk/midpoint/half-depth").flags(kind))
    assert "--encoder-ffn-embed-dim 256 --encoder-layers 2" in flags
    assert "--macaron-substep midpoint" in flags
    flags = " ".join(Variant.parse("lie-trotter").flags(kind))
    assert "--decoder-ffn-embed-dim 512 --decoder-layers 4" in flags
    odd = replace(kind, layers=5)
    said = sentence_of(lambda: Variant.parse("strang-marchuk/midpoint/half-depth").flags(odd))
    assert said.endswith("there is no half of 5 layers")


def test_a_copy_of_the_tasks_is_read_elsewhere(tmp_path):
    """Its families go over the benchmarks of this checkout."""
    shutil.copy(tasks.FILE, tmp_path / "mine.yaml")
    assert tasks.read(tmp_path / "mine.yaml").keys() == tasks.read().keys()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"tuning": None}, "chosen needs tuning"), ({"ffn": 255}, "ffn is 255: make it even")],
)
def test_a_family_that_no_run_could_be_made_of_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        replace(tasks.read()["g2p-ice"].kind, **change)


def test_every_point_of_tuning_sees_as_many_tokens():
    task = tasks.read()["g2p-ice"]
    options = tasks.Options(Path("/w"), None, cpu=True, file=tasks.FILE)
    for values in task.kind.tuning.rounds:
        for point in points_of(task.kind.tuning.start, values):
            recipe = recipe_of(task, Variant.parse("parallel"), 1, point, options)
            assert recipe.max_update * recipe.batch == 1_280_000
            assert recipe.benchmark.training.words()[-1] == f"{point.dropout:g}"


def test_settings_leave_out_scheme_and_seed_alone():
    task = tasks.read()["g2p-ice"]
    options = tasks.Options(Path("/w"), None, cpu=True, file=tasks.FILE)

    def of(scheme, seed, tokens):
        setting = tasks.Setting(tokens, 0.1)
        return recipe_of(task, Variant.parse(scheme), seed, setting, options).settings_hash

    assert of("parallel", 1, 512) == of("lie-trotter", 2, 512) != of("parallel", 1, 256)
    usual = of("parallel", 1, 512)
    for kind in (replace(task.kind, ffn=64), replace(task.kind, layers=2)):
        task = replace(task, kind=kind)
        assert of("parallel", 1, 512) != usual
    task = tasks.read()["g2p-ice"]
    for changed in ({"decode": "--beam 9"}, {"score": "--metric wer"}, {"average": 3}):
        evaluation = replace(task.benchmark.evaluation, **changed)
        task = replace(task, benchmark=replace(task.benchmark, evaluation=evaluation))
        assert of("parallel", 1, 512) != usual
        task = tasks.read()["g2p-ice"]
    for extra, is_same in (
        (("--save-interval", "2"), False),  # the mean is of other epochs
        (("--save-interval-updates", "200"), False),  # which --patience counts
        (("--log-interval", "2"), True),
    ):
        options = replace(options, extra=extra)
        assert (of("parallel", 1, 512) == usual) is is_same
    task, options = tasks.read()["g2p-ice"], replace(options, cpu=False, extra=())  # fp16
    assert of("parallel", 1, 512) != usual


def test_data_that_is_made_otherwise_is_other_data():
    """Also where none is prepared, as where all runs are known."""
    task, variant = tasks.read()["multi30k-en-de"], Variant.parse("lie-trotter")
    usual = tasks.Options(Path("/w"), None, cpu=True, file=tasks.FILE)

    def of(options=usual, **changed):
        described = replace(task.benchmark, **changed)
        one = replace(task, benchmark=described), variant, 1, None, options
        return preparation_of(recipe_of(*one))

    sets, made = task.benchmark.sets, task.benchmark.preprocessing
    other = replace(sets["train"], parts=[replace(sets["train"].parts[0], archive="other.gz")])
    counted = replace(sets["train"], pairs=3)
    assert of() == of(sets={**sets, "train": counted}) != of(sets={**sets, "train": other})
    for changed in ({"merges": 8000}, {"steps": ["tokenize"]}, {"joined": False}):
        assert of(preprocessing=replace(made, **changed)) != of()
    assert of(replace(usual, is_usual=False)) != of()
    run = record(task=task.name, metric="BLEU", test="test_2016_flickr")
    recipe = recipe_of(task, variant, 1, None, usual)
    run = replace(run, settings=recipe.settings_hash)
    for preparation, is_same in ((None, True), (of(), True), ("of other text", False)):
        kept = replace(run, preparation=preparation)
        assert known.is_of(kept, task, recipe) is is_same


def test_tokens_at_once_divide_an_update_and_leave_the_settings():
    """An update of Multi30k has 8,192 tokens: 4,096 on each of two devices, as published."""
    task, variant = tasks.read()["multi30k-en-de"], Variant.parse("lie-trotter")
    usual = tasks.Options(Path("/w"), None, cpu=False, file=tasks.FILE)
    found = {}
    for tokens in (None, 2048, 8192, 5000):
        options = replace(usual, max_tokens=tokens)
        recipe = recipe_of(task, variant, 1, None, options)
        if tokens == 5000:
            with pytest.raises(SystemExit, match=r"batches of 5000: choose .* N divides 8192$"):
                train_command.plan(recipe, 1, {})
            continue
        devices = train_command.plan(recipe, 1, {})
        found[tokens] = devices.max_tokens, devices.update_freq
        assert recipe.settings_hash == recipe_of(task, variant, 1, None, usual).settings_hash
        words = many_tasks_run.command(recipe, options)
        assert ("--max-tokens" in words) is (tokens is not None)
    assert found == {None: (4096, 2), 2048: (2048, 4), 8192: (8192, 1)}


def test_scores_of_others_are_of_the_pair_that_they_were_published_for():
    known = tasks.read()
    found = {(one.task, one.test): one.score for one in tasks.published(known.values())}
    assert found["autshumato-en-af", "test"] == 23.5 and found["autshumato-nso-en", "test"] == 9.9
    assert found["multi30k-en-de", "test_2017_mscoco"] == 29.88
    assert not [task for task, _ in found if task == "multi30k-de-en"]


def test_a_plan_that_is_not_as_it_should_be(tmp_path):
    path = tmp_path / "plan.yaml"
    for old, new, said in (
        ("diverged: []", "diverged: [g2p-ady parallel]", "diverged should name TASK SCHEME SEED"),
        ("p: 0.05", "p: small", "p should be a number, not 'small'"),
    ):
        path.write_text(plan.FILE.read_text().replace(old, new))
        with pytest.raises(SystemExit) as end:
            plan.read(path)
        assert end.value.code.startswith(f"{path}: {said}")


RECORDS = EXAMPLES.parent / "docs" / "results" / "records"
BOTH = "lie-trotter", "strang-marchuk"


def overall(tasks=15, low=-2.0, high=-0.5, p=0.01, metric="WER"):
    effect = estimates.Effect((low + high) / 2, low, high, 0.1)
    tests = {"wilcoxon": p, "wilcoxon_holm": p, "sign": p, "sign_holm": p}
    of = {"family": "g2p", "scheme": "strang-marchuk", "metric": metric, "tasks": tasks}
    counts = {"runs": 75, "better": 9, "worse": 5}
    return estimates.Overall(**of, **counts, effect=effect, **tests, detectable=1.0)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (overall(), "better, by 1.25 points of WER"),
        (overall(low=0.5, high=2), "worse, by 1.25 points of WER"),
        (overall(p=0.06), "these runs do not tell"),
        (overall(low=-0.1, high=1.5), "these runs do not tell"),
        (overall(low=-0.9, high=0.2, p=0.5), "equal for practical purposes, within 1 point"),
        (
            overall(low=-0.6, high=-0.2),
            "better, by 0.40 points of WER, and equal for practical purposes, within 1 point",
        ),
        (overall(low=-0.9, high=0.2, p=0.5, metric="BLEU"), "these runs do not tell"),
        # Of seven comparisons: the least p of 8 tasks is 2 / 2^8, and 7 times that is above 0.05.
        (overall(tasks=8), "too few tasks for the tests, so the interval alone is reported"),
        (overall(tasks=9), "better, by 1.25 points of WER"),
    ],
)
def test_the_plans_rule(found, said):
    known, announced = tasks.read(), plan.read()
    keys = [(x, y, z) for x, y, z in plan.announced(announced, known) if x.startswith("g2p")]
    done = [SimpleNamespace(key=key) for key in keys]
    estimate = f"{(found.effect.low + found.effect.high) / 2:+.2f} {found.metric}"
    interval = f"{found.effect.low:+.2f} to {found.effect.high:+.2f}"
    verdict = plan.verdict(announced, known, done, found)
    assert verdict.endswith(f"{said} ({estimate}, 95 % interval {interval})")
    part = [run for run in done if run.key != ("g2p-kor", "lie-trotter", 5)]
    said = "its baseline lacks 1 run, so there is no verdict yet"
    assert plan.verdict(announced, known, part, found).endswith(said)


@pytest.fixture(scope="module")
def tuned():
    """The settings of the runs of grapheme to phoneme that have been made."""
    (found,) = {run.settings for run in known.read(["g2p-ady", "g2p-vie"], RECORDS)}
    return found


def test_the_rule_reads_all_seeds_that_a_gpu_took():
    """Multi30k is planned with two; the records have five, of a GPU."""
    every = {"multi30k-en-de": tasks.read()["multi30k-en-de"]}
    runs = known.read(["multi30k-en-de"], RECORDS)
    found = report.compared(runs, every, [])
    (shown,), (verdict,) = found.overall, found.verdicts
    said = f"({shown.effect.estimate:+.2f} BLEU, 95 % interval over seeds "
    assert shown.runs == 5 and said in verdict


def test_no_verdict_waits_for_a_run_that_diverged(tuned):
    """Nor does it count the run that it would have been paired with."""
    g2p = {name: x for name, x in tasks.read().items() if x.family == "g2p"}
    usual = plan.read()
    keys = [key for key in plan.announced(usual, g2p) if key[1] in BOTH]
    gone = ("g2p-kor", "strang-marchuk", 2)
    runs = [record(*key, settings=tuned) for key in keys if key != gone]
    done = f"74 of its {len(keys) // 2} runs are done"
    assert done in plan.verdict(usual, g2p, runs, overall())
    changed = replace(usual, diverged=["g2p-kor strang-marchuk 2"])
    said = "better, by 1.25 points of WER, without 1 run that diverged (-1.25 WER, 95 % interval -"
    assert said in plan.verdict(changed, g2p, runs, overall())
    fewer = [run for run in runs if run.key != ("g2p-kor", "lie-trotter", 3)]
    assert "its baseline lacks 1 run" in plan.verdict(changed, g2p, fewer, overall())
    notes = plan.departures(changed, g2p, runs)
    assert "1 run diverged, without a score: g2p-kor strang-marchuk seed 2" in notes


def test_a_file_of_another_task_is_refused(tmp_path):
    records.write(tmp_path / "g2p-ice.json", [record("g2p-xyz")])
    with pytest.raises(UserError, match=r"g2p-ice\.json holds runs of g2p-xyz, and not of g2p-ice"):
        known.read(["g2p-ice"], tmp_path)


def test_runs_with_other_settings_decide_nothing(tuned, monkeypatch):
    g2p = {name: x for name, x in tasks.read().items() if x.family == "g2p"}
    keys = [key for key in plan.announced(plan.read(), g2p) if key[1] in BOTH]
    better = {"g2p-vie": "0000"}  # -50 points, and else -25
    runs = {
        key: record(*key, better.get(key[0], "0001") if key[1] == BOTH[1] else "0011")
        for key in keys
    }
    right = {key: replace(run, settings=tuned) for key, run in runs.items()}
    (verdict,) = report.compared([*right.values()], g2p, []).verdicts
    assert "strang-marchuk on g2p: better, by 26.67 points of WER (-26.67 WER" in verdict
    icelandic = {key: run for key, run in runs.items() if key[0] == "g2p-ice"}
    found = report.compared([*{**right, **icelandic}.values()], g2p, [])
    assert found.verdicts[0].endswith("70 of its 75 runs are done, so there is no verdict yet")
    (note,) = [x for x in found.notes if "other settings" in x]
    assert note.startswith(
        "10 runs with other settings than the plan's: g2p-ice lie-trotter seed 1,"
    )


def test_some_tasks_of_a_family_are_none_of_its_verdict(tuned):
    """Nor does the correction go by what is looked at."""
    g2p = {name: x for name, x in tasks.read().items() if x.family == "g2p"}
    some = {name: g2p[name] for name in [*g2p][:6]}
    keys = [key for key in plan.announced(plan.read(), some) if key[1] in BOTH]
    runs = [record(*key, "10"[key[1] == BOTH[1]], settings=tuned) for key in keys]
    (verdict,) = report.compared(runs, some, []).verdicts
    assert verdict.endswith("30 of its 75 runs are done, so there is no verdict yet")
    assert len(plan.schemes_of(plan.read(), some)["g2p"]) == 7


def test_runs_that_are_not_in_the_plan_decide_nothing(tuned):
    """`parallel` is planned on five languages, with which no test decides; there is one more."""
    known = {name: x for name, x in tasks.read().items() if x.family == "g2p"}
    keys = [key for key in plan.announced(plan.read(), known) if key[1] == "parallel"]
    others = [(name, "parallel", 1) for name in known if name not in {key[0] for key in keys}][:1]
    runs = [
        record(task, scheme, seed, edits, settings=tuned)
        for task, _, seed in [*keys, *others]
        for scheme, edits in (("lie-trotter", "1111"), ("parallel", "0120"))
    ]
    found = report.compared(runs, known, [])
    (verdict,) = found.verdicts
    assert verdict.startswith("parallel on g2p: too few tasks for the tests, so the interval")
    assert [one.tasks for one in found.overall] == [6]


def test_the_plan_corrects_for_all_its_schemes():
    found = plan.schemes_of(plan.read(), tasks.read())
    assert {family: len(schemes) for family, schemes in found.items()} == {
        **{"g2p": 6 + 1, "autshumato": 1, "multi30k": 1},
    }


def test_the_plans_runs_are_those_of_its_table():
    found = plan.announced(plan.read(), tasks.read())
    rows = re.findall(r"\| (\d+) \|$", Path(plan.FILE).with_suffix(".md").read_text(), re.M)
    assert len(found) == len({*found}) == sum(map(int, rows)) == 248


def test_what_departs_from_the_plan_is_named():
    known = {name: task for name, task in tasks.read().items() if name.startswith("autshumato-en")}
    done = [record("autshumato-en-af", seed=1), record("autshumato-en-nso", "parallel", 7)]
    assert plan.departures(plan.read(), known, done) == [
        "of the plan's 4 runs of these tasks 1 are done: autshumato-en-af lie-trotter seed 2, "
        "autshumato-en-af strang-marchuk seed 1, autshumato-en-af strang-marchuk seed 2 are "
        "missing",
        "1 run not in the plan, which no verdict counts: autshumato-en-nso parallel seed 7",
    ]


def test_a_gpu_takes_five_seeds_of_what_is_planned():
    """So plan.md has it of all tasks; Multi30k is planned with two seeds."""
    task, schemes = "multi30k-en-de", ("lie-trotter", "strang-marchuk")
    known = {task: tasks.read()[task]}
    gpu = {"cpu": "c", "gpus": ["G"], "threads": 1}

    def departures(runs):
        return plan.departures(plan.on_machines(plan.read(), runs), known, runs)

    here = {seed: [record(task, x, seed) for x in schemes] for seed in range(1, 7)}
    there = [
        record(task, x, seed, environment=gpu) for x in schemes for seed in plan.read().gpu_seeds
    ]
    assert departures(here[1] + here[2]) == departures(there) == []
    (note,) = departures(here[1] + here[2] + here[3])
    assert note.startswith(
        f"2 runs not in the plan, which no verdict counts: {task} lie-trotter seed 3, "
    )
    (note,) = departures(here[1] + here[2] + there[-1:])
    assert note.startswith("of the plan's 10 runs of these tasks 5 are done")
    for scheme, seed in (("lie-trotter", 6), ("parallel", 1)):
        (note,) = departures([*there, record(task, scheme, seed, environment=gpu)])
        assert note.endswith(f"which no verdict counts: {task} {scheme} seed {seed}")


def test_seeds_of_a_gpu_are_waited_for_and_counted():
    task = "multi30k-en-de"
    every = {task: tasks.read()[task]}
    runs = known.read([task], RECORDS)
    announced = plan.on_machines(plan.read(), runs)
    assert "| multi30k-en-de | lie-trotter, strang-marchuk | 1 2 3 4 5 | 10 of 10 |" in (
        plan.progress(announced, every, runs)
    )
    assert "beyond the plan" not in plan.progress(announced, every, runs)
    (verdict,) = report.compared([run for run in runs if run.seed < 4], every, []).verdicts
    assert verdict.endswith("3 of its 5 runs are done, so there is no verdict yet")


def test_runs_of_other_settings_do_not_count_as_done(tuned):
    g2p = {name: x for name, x in tasks.read().items() if x.family == "g2p"}
    wanted = plan.announced(plan.read(), g2p)
    mine = [record(*key, settings=tuned) for key in wanted[:3]]
    others = [record(*key, settings="other") for key in wanted[3:5]]
    unplanned = record("g2p-kor", "parallel", 9, settings="other")
    found = report.with_planned_settings([*mine, *others, unplanned], wanted)
    assert found == [*mine, unplanned]


def test_own_tasks_go_by_no_plan(tmp_path):
    """Those of docs/howto/compare-schemes.md."""
    page = (EXAMPLES.parent / "docs" / "howto" / "compare-schemes.md").read_text()
    (tmp_path / "my-tasks.yaml").write_text(re.search("```yaml\n(.*?)```", page, re.S).group(1))
    own = tasks.read(tmp_path / "my-tasks.yaml")
    assert own["mine-en-de"].kind.ffn == 256 and own["mine-en-de"].benchmark.evaluation.average == 5
    runs = [record("mine-en-de", x, 1, "0120") for x in ("lie-trotter", "parallel")]
    found = report.compared(runs, own, [])
    assert len(found.overall) == 1 and not found.notes and not found.verdicts


def test_the_plans_settings_are_those_of_its_own_file():
    """And not those of a file that a user gives, whose runs are then other runs."""
    g2p = tasks.chosen(tasks.read(), ["g2p"], "")
    other = tasks.Setting(256, 0.4)
    own = {x.name: replace(x, kind=replace(x.kind, chosen=other)) for x in g2p}
    runs = [run for run in known.read(["g2p-ice"], RECORDS) if run.scheme in BOTH]
    assert (
        runs
        and report.compared(runs, own, []).notes
        == report.compared(runs, {x.name: x for x in g2p}, []).notes
    )


def test_an_architecture_that_no_scheme_varies_is_refused(tmp_path):
    path = tmp_path / "tasks.yaml"
    large = "training:\n        archs: [macaron_transformer_iwslt_de_en]"
    path.write_text(tasks.FILE.read_text().replace("training:", large, 1))
    with pytest.raises(SystemExit, match=r"--schemes are those of macaron_transformer_tiny: leave"):
        tasks.read(path)


def test_a_run_that_another_process_has_finished_is_left_as_it_is(tmp_path):
    task, variant = tasks.read()["g2p-ice"], Variant.parse("parallel")
    options = tasks.Options(tmp_path, None, cpu=True, file=tasks.FILE)
    recipe = recipe_of(task, variant, 1, None, options)
    model = recipe.run(tasks.ARCH, 1) / "checkpoint_last.pt"
    for path in (model, recipe.result):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    many_tasks_run.run(task, recipe, options, keeps=False)
    assert model.exists()


def test_the_command_of_a_record_can_be_pasted():
    options = tasks.Options(
        *(Path("/w"), Path("/data"), True, tasks.FILE),
        extra=("--adam-betas", "(0.9,0.98)"),
        is_usual=False,
    )
    task, variant = tasks.read()["g2p-ice"], Variant.parse("parallel")
    found = many_tasks_run.command(recipe_of(task, variant, 3, None, options), options)
    assert shlex.split(found)[-2:] == ["--adam-betas", "(0.9,0.98)"]
    assert "--from FOLDER --sizes any -- --adam-betas '(0.9,0.98)'" in found


def test_a_record_is_of_what_a_run_left(tmp_path):
    """Two epochs of half an hour; equal sources are drawn together; case does not count here."""
    task, variant = tasks.read()["multi30k-en-de"], Variant.parse("parallel")
    options = tasks.Options(tmp_path, None, cpu=True, file=tasks.FILE)
    recipe = recipe_of(task, variant, 1, None, options)
    folder, reference = recipe.run(tasks.ARCH, 1), recipe.data / "reference"
    write_lines(folder / "train.log", LOG)
    hardware = {"cores": 2, "memory_gib": 8.0, "gpus": [], "system": "Linux"}
    start = {"date": "2026-11-29", "flags": [], "versions": {}}
    starts = [
        {**start, "hardware": {**hardware, "cpu": cpu}, "code": code}
        for cpu, code in (
            ("A", {"revision": "1" * 40, "modified": True}),
            ("B", None),
            ("A", {"revision": "2" * 40, "modified": False}),
        )
    ]
    data = {"source": "en", "target": "de", "tests": [], "fingerprint": "f", "sha256": {}}
    content = {"arch": "a", "seed": 1, "flags": [], "data": data, "starts": starts}
    (folder / "manifest.json").write_text(json.dumps(content))
    for test in recipe.tests:
        write_lines(reference / f"{test}.en", ["one", "other", "one"])
        write_lines(reference / f"{test}.de", ["Ein roter Hund da ."] * 3)
        write_lines(folder / test / "hypotheses.txt", ["ein roter Hund da ."] * 3)
        (folder / test / "scores.json").write_text('{"scores": []}')
        for name in ("generated.txt", "decoding"):
            (folder / test / name).touch()
    found = many_tasks_run.record(task, recipe, options)
    assert found.seconds == 3600 and found.kinds.reference[:3] == [10, 5, 0]
    assert found.items[0] == [10, 8, 6, 4] * 2  # n-grams of two lines, all of them right
    assert found.environment["cpu"] == "A; B" and found.environment["gpus"] == []
    assert found.environment["revision"] == "111111111111+, 222222222222"


@pytest.mark.parametrize(("flag", "edits"), [("", [1, 0]), ("--lowercase", [0, 0])])
def test_case_counts_in_a_records_items_as_in_its_score(flag, edits, tmp_path):
    task = tasks.read()["g2p-ice"]
    evaluation = replace(task.benchmark.evaluation, score=f"--metric wer --keep-tokens {flag}")
    task = replace(task, benchmark=replace(task.benchmark, evaluation=evaluation))
    options = tasks.Options(tmp_path, None, cpu=True, file=tasks.FILE)
    recipe = recipe_of(task, Variant.parse("parallel"), 1, tasks.Setting(256, 0.1), options)
    write_lines(recipe.data / "tokenized" / f"test.{recipe.target}", ["A b", "c d"])
    write_lines(tmp_path / "test" / "hypotheses.txt", ["detokenised", "text"])
    write_lines(tmp_path / "test" / "generated.txt", ["H-1\t-0.1\tc d", "H-0\t-0.1\ta b"])
    items, found = many_tasks_run.of_items(task, recipe, tmp_path / "test")
    assert items.count == 2 and records.numbers(found) == edits


def test_jobs_at_a_time_get_a_gpu_each(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    code = "import os, pathlib; pathlib.Path(os.environ['HERE'] + os.environ[%r]).touch()"
    monkeypatch.setenv("HERE", f"{tmp_path}/gpu")
    code += "; os.environ['TORCH_CUDNN_SDPA_DEPRIORITIZED']"  # as a job's commands find it
    words = [sys.executable, "-c", code % "CUDA_VISIBLE_DEVICES"]
    jobs = [launch.Job(str(i), words, tmp_path / "log", tmp_path) for i in range(4)]
    assert {status for _, status in launch.local(jobs, 2)} == {0}
    assert {path.name for path in tmp_path.glob("gpu*")} == {"gpu2", "gpu5"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert launch.visible_gpus() == []


def test_jobs_end_with_their_status(tmp_path):
    words = {n: [sys.executable, "-c", f"raise SystemExit({n})"] for n in (0, 3)}
    jobs = [launch.Job(str(n), words[n], tmp_path / f"{n}", tmp_path) for n in words]
    assert {job.label: status for job, status in launch.local(jobs, 2)} == {"0": 0, "3": 3}


@pytest.mark.parametrize("error", [UserError("another result"), OSError(28, "another result")])
@pytest.mark.parametrize("is_for_good", [True, False])
def test_a_record_that_is_refused_ends_no_other_run(error, is_for_good, monkeypatch):
    jobs, kept = [launch.Job(str(n), [], Path("log"), Path("none")) for n in range(3)], []

    def keep():
        kept.append(len(kept))
        if len(kept) == 1 or is_for_good:
            raise error

    monkeypatch.setattr(launch, "local", lambda left, at_a_time: ((job, 0) for job in left))
    done = []
    with pytest.raises(UserError, match="another result") if is_for_good else nullcontext():
        done.extend(launch.Runner("mini", 1, keep, str).start(jobs))
    assert len(kept) == len(done) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_jobs_with_their_runner(number, tmp_path):
    code = (
        "import signal, sys, pathlib; from common import launch;"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL);"
        "path = pathlib.Path(sys.argv[1]);"
        "words = ['sh', '-c', f'echo $$ > {path}/part; mv {path}/part {path}/pid; exec sleep 99'];"
        "[*launch.local([launch.Job('x', words, path / 'log', path / 'none')], 1)]"
    )
    environ = {**os.environ, "PYTHONPATH": str(EXAMPLES), "CUDA_VISIBLE_DEVICES": ""}
    runner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environ)
    try:
        while not (tmp_path / "pid").is_file():
            assert runner.poll() is None
            time.sleep(0.05)
        runner.send_signal(number)
        assert runner.wait(timeout=30) == 128 + number
    finally:
        runner.kill()
    job = int((tmp_path / "pid").read_text())
    for _ in range(200):
        try:
            os.kill(job, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{job}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the job runs on")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["slurm_partitoin=gpu"], "partitoin"), (["timeout_min=1h"], "--launcher slurm: ")],
)
def test_bad_values_for_a_cluster_get_a_sentence(words, said, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("SUBMITIT_CLUSTER", "local")
    args = SimpleNamespace(slurm=words, jobs=1, launcher="slurm")
    runner = launch.Runner.of("mini", args, tmp_path, lambda: None, str)
    job = launch.Job("x", ["true"], tmp_path, tmp_path)
    assert said in sentence_of(lambda: [*runner.start([job])])


def test_a_job_whose_time_is_over_is_submitted_again(tmp_path):
    pytest.importorskip("submitit")
    log = tmp_path / "logs" / "run.log"
    job = launch.Job("a", ["sh", "-c", "echo again; exit 3"], log, tmp_path / "result")
    again = job.checkpoint()
    assert again.function == job and again.result() == 3
    assert log.read_text() == "again\n"


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(steps, "LOCK_SECONDS", 0)
    with many_tasks_run.only_one(tmp_path / "lock"):
        with (
            pytest.raises(SystemExit) as end,
            many_tasks_run.only_one(tmp_path / "lock"),
        ):
            pass
        status = end.value.code
    with many_tasks_run.only_one(tmp_path / "lock"):
        pass
    jobs = [
        launch.Job("a", [sys.executable, "-c", f"exit({status})"], tmp_path / "l", tmp_path / "r")
    ]
    runner = launch.Runner("many-tasks", 1, lambda: None, str)
    with pytest.raises(SystemExit, match="1 runs are not done yet"):
        runner.finish(jobs)
    assert "left to another process: a" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [(), (1,), (1, 2)])
def test_a_page_for_however_many_records(seeds, tuned, tmp_path):
    for task in ("g2p-ice", "g2p-jpn"):
        runs = [
            record(task, scheme, seed, edits, looping=seed, settings=tuned)
            for seed in seeds
            for scheme, edits in (("lie-trotter", "0120"), ("parallel", "0110"))
        ]
        if runs:
            known.records.write(tmp_path / "records" / f"{task}.json", runs)
    (tmp_path / "records").mkdir(exist_ok=True)
    words = ["page", "--tasks", "g2p autshumato", "--records", tmp_path / "records"]
    many_tasks.main([*map(str, words), "--work", str(tmp_path), "--output", str(tmp_path / "docs")])
    page = (tmp_path / "docs" / "many-tasks.md").read_text()
    assert "| autshumato-en-af | test | tokenised BLEU | 23.5 |" in page
    assert ("No run has been scored" in page) == (not seeds)
    assert (f"Runs so far: {4 * len(seeds)}, of 2 tasks and 2 schemes" in page) == bool(seeds)
    assert page.count("| g2p-ice | ") == (3 if seeds else 0)
    # The baseline is in the plan's first row, the other in its second.
    assert f"| 1 2 3 4 5 | {2 * len(seeds)} of 150 |" in page
    assert f"| 1 2 3 | {2 * len(seeds)} of 60 |" in page
    assert ("](many-tasks.png)" in page) == (tmp_path / "docs" / "many-tasks.png").is_file()
    assert max(map(prose.count, prose.sentences(page))) <= 25


# --- The data ------------------------------------------------------------------------------------


def test_words_and_phonemes_of_a_table(tmp_path):
    path, out = tmp_path / "x.tsv", (tmp_path / "a", tmp_path / "b")
    path.write_text("a còng\tk aj  ˧˧\nあい\ta̠ i\n")
    assert extract.from_table(path, "", "g2p", out) == 2
    assert out[0].read_text() == "a ▁ c ò n g\nあ い\n"
    assert out[1].read_text() == "k aj ˧˧\na̠ i\n"
    path.write_text("ab c\n")
    with pytest.raises(SystemExit, match=r"line 1 should hold a word, a tab and its phonemes"):
        extract.from_table(path, "", "g2p", out)


def test_bare_carriage_returns_end_lines(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(b"one\rtwo\r")
    out = tmp_path / "c", tmp_path / "d"
    assert extract.from_files((tmp_path / "a", tmp_path / "b"), "carriage-returns", out) == 2
    assert out[0].read_text() == "one\ntwo\n"


def test_a_last_line_without_an_end_and_empty_lines_are_kept_in_place(tmp_path):
    """As Autshumato has them: no end at the last line, and empty lines on one side."""
    for name, content in (("a", b"one\r\rthree"), ("b", b"eins\rzwei\rdrei")):
        with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
            file.write(content)
    out = tmp_path / "c", tmp_path / "d"
    given = tmp_path / "a.gz", tmp_path / "b.gz"
    assert extract.from_files(given, "carriage-returns", out) == 3
    assert out[0].read_text() == "one\n\nthree\n"
    parallel_text.clean(out, out, 1, 80, 9)
    assert out[1].read_text() == "eins\ndrei\n"


def test_both_directions_draw_the_same_pairs(tmp_path):
    for languages in (("en", "de"), ("de", "en")):
        folder = tmp_path / "-".join(languages)
        folder.mkdir()
        train = tuple(folder / f"train.{x}" for x in languages)
        for path in train:
            path.write_text("".join(f"{path.suffix} {i // 2}\n" for i in range(8100)))
        parallel_text.draw(train, folder, languages, "en")
    shuffled = [f".de {i}" for i in range(4050)]
    random.Random(1).shuffle(shuffled)
    for name, first, last in (("test", 0, 2000), ("valid", 2000, 4000), ("train", 4000, 4050)):
        for folder in ("en-de", "de-en"):
            drawn = (tmp_path / folder / f"{name}.de").read_text().splitlines()
            assert drawn == shuffled[first:last]


def test_the_script_explains_itself():
    script = EXAMPLES / "many-tasks" / "reproduce.sh"
    done = subprocess.run(["bash", script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "plan.md" in done.stdout and "--launcher" in done.stdout


@pytest.mark.parametrize("given", [None, Path("/data")])
def test_a_runs_process_is_asked_for_what_its_runner_was(given):
    options = run_options.Options(
        Path("/w"), given, cpu=True, file=tasks.FILE, max_update=7, extra=("--lr", "1 2")
    )
    setting = tasks.Setting(256, 0.1)
    argument = run_options.as_argument(options=options, seed=3, setting=setting, file=Path("/f"))
    asked = run_options.from_argument(argument)
    assert tasks.Setting(**asked.pop("setting")) == setting
    assert asked == {"options": options, "seed": 3, "file": "/f"}


def test_a_record_counts_the_translations_that_loop_and_those_that_were_cut_off(tmp_path):
    """Of one test set: three loop, two have six tokens; one reference loops itself."""
    options = run_options.Options(tmp_path, None, cpu=True, file=tasks.FILE)
    task, variant = tasks.read()["multi30k-en-de"], Variant.parse("parallel")
    recipe = recipe_of(task, variant, 1, None, options)
    lines = ["ja " * 6, "nein " * 5, "so " * 5, "ha " * 6, "gut ."]
    references = ["ja", "nein", "so", "ha " * 6, "gut"]
    write_lines(recipe.data / "reference" / "test.de", [x.strip() for x in references])
    write_lines(tmp_path / "test" / "hypotheses.txt", [x.strip() for x in lines])
    printed = [f"P-{i}\t{'-1 ' * (len(x.split()) + 1)}".strip() for i, x in enumerate(lines)]
    write_lines(tmp_path / "test" / "generated.txt", printed)
    decoding = tmp_path / "test" / "decoding"
    decoding.write_text("the best checkpoint, --beam 5 --max-len-b 6\n")
    assert many_tasks_run.failed(recipe, tmp_path / "test") == (3, 2)
    decoding.write_text("the best checkpoint, --match-source-len\n")
    assert many_tasks_run.failed(recipe, tmp_path / "test") == (3, None)
