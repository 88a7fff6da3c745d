"""The recipe of distillation from data to table, on miniature data; and what it decides."""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import ctranslate2
import distillation_differences
import distillation_recipe
import distillation_records
import distillation_refusals as refusals
import distillation_report
import distillation_run
import distillation_speed
import distillation_systems as systems
import distillation_text
import distillation_translations as translations
import pytest
import sacrebleu
from common import (
    ask_fairseq,
    benchmark,
    launch,
    stage_evaluate,
    stage_prepare,
    stage_train,
    student_systems,
    tasks,
    train_command,
)
from distillation_runs import Runs
from helpers.commands import sentence_of
from helpers.paths import ROOT
from helpers.recipes import EXAMPLES, environment
from helpers.run_folders import START, write_manifest
from helpers.small import NO_DROPOUT, SMALL

from macaron_fairseq import cli
from macaron_fairseq.common import environment as environment_of_here
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.training import training_flags
from macaron_fairseq.translation import parts
from macaron_fairseq.translation.translator import Search

WORDS = ["lake", "later", "lately", "rate", "rare", "early", "tale"]
TASKS = """\
families:
  mini:
    folder: mini
    metric: BLEU
    test: test
    ffn: 32
    layers: 2
    benchmark:
      sets:
        train: {{pairs: 60, parts: [{{archive: "train.{{language}}"}}]}}
        valid: {{pairs: 6, parts: [{{archive: "test.{{language}}"}}]}}
        test: {{pairs: 6, parts: [{{archive: "test.{{language}}"}}]}}
      preprocessing: {{steps: [tokenize], merges: 20}}
      training:
        archs: [macaron_transformer_tiny]
        tokens: 500
        batches: 1
        max_update: 8
        flags: >
          {small} --optimizer adam --lr 0.01 --share-all-embeddings
          --criterion label_smoothed_cross_entropy --label-smoothing 0.1
          --required-batch-size-multiple 1 --macaron-kernels fairseq --keep-last-epochs 1
      evaluation: {{average: 0, decode: --beam 2 --max-len-b 12, score: --metric bleu chrf}}
tasks:
  mini-en-de: {{family: mini, pair: en-de}}
"""
SETTINGS = """\
teacher: {arch: macaron_transformer_tiny, tokens: 500, batches: 1, max_update: 6}
student: {arch: macaron_transformer_tiny, tokens: 500, batches: 1, max_update: 3}
main: [both]
distill: --beam 2 --max-len-b 12 --max-ratio 100 --max-copied 1 --batch-lines 25
systems:
  none: {}
  both:
    reads_translations: true
    flags: >
      --criterion distilled_label_smoothed_cross_entropy --label-smoothing 0.1
      --teacher {teacher} --distill-weight 0.5
"""


def call_here(words, stdout=None, stderr=None):
    """As `steps.call`, with this package's commands in this process."""
    name, *words = map(str, words)
    if name != "macaron-fairseq":
        assert not subprocess.run([name, *words], stdout=stdout, stderr=stderr).returncode
        return
    with contextlib.ExitStack() as stack:
        if stdout:
            file = stack.enter_context(open(stdout.fileno(), "w", encoding="utf-8", closefd=False))
            stack.enter_context(contextlib.redirect_stdout(file))
        cli.main(words)


def in_this_process(jobs, at_a_time):
    """Do jobs as `launch.local` does."""
    for job in jobs:
        distillation_run.main(job.words[-1])
        yield job, 0


@pytest.fixture
def mini(tmp_path, monkeypatch, capfd):
    """A task, its data and settings; and `call`, which runs the command in this process."""
    small = " ".join([*SMALL, *NO_DROPOUT])
    (tmp_path / "tasks.yaml").write_text(TASKS.format(small=small))
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    (tmp_path / "data" / "mini").mkdir(parents=True)
    rng = random.Random(1)
    for name, size in (("train", 60), ("test", 6)):
        lines = [rng.choices(WORDS, k=rng.randint(3, 6)) for _ in range(size)]
        for language, order in (("en", 1), ("de", -1)):
            text = "".join(" ".join(line[::order]) + "\n" for line in lines)
            (tmp_path / "data" / "mini" / f"{name}.{language}").write_text(text)
    for name, value in environment(OMP_NUM_THREADS="1").items():
        monkeypatch.setenv(name, value)
    # PyTorch and fairseq are here already: their imports would take most of the time.
    monkeypatch.setattr(ask_fairseq, "apart", lambda function, *words: function(*words))
    monkeypatch.setattr(launch, "local", in_this_process)
    monkeypatch.setattr(distillation_speed, "REPETITIONS", 1)
    monkeypatch.setattr(distillation_speed, "LOCK", tmp_path / "timing.lock")
    for module in (stage_prepare, stage_train, stage_evaluate, distillation_speed, translations):
        monkeypatch.setattr(module, "call", call_here)
    options = ["--from", tmp_path / "data", "--tasks-file", tmp_path / "tasks.yaml", "--settings"]
    options += [tmp_path / "settings.yaml", "--tasks", "mini-en-de", "--cpu", "--sizes", "any"]
    options += ["--work", tmp_path / "work"]

    def call(*words, status=0):
        code = 0
        try:
            distillation_recipe.main([*map(str, words), *map(str, options)])
        except SystemExit as end:
            code = end.code or 0
        out, err = capfd.readouterr()
        assert code == status, out + err
        return out + err

    return SimpleNamespace(folder=tmp_path, work=tmp_path / "work" / "mini-en-de", call=call)


@pytest.mark.recipe
@pytest.mark.longest
def test_from_data_to_table(mini):
    records = mini.folder / "records"
    said = mini.call("--shards", "2", "--records", records)
    assert "translations 1/2: done" in said and "translations: 60 of 60 kept" in said
    rows = [line.split(" | ") for line in said.splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows[:3]] == ["| teacher", "| none", "| both"]
    tables = [["| planned", "| ---", "| both"]]
    tables += [
        [x, "| ---", "| teacher", "| none", "| both"]
        for x in ("| translations that loop, by seed", "| int8, greedy", "| trained")
    ]
    assert [row[0] for row in rows[3:]] == [x for of_table in tables for x in of_table]
    distilled = json.loads((mini.work / "distilled" / "preprocessing.json").read_text())
    run = json.loads((mini.work / "runs/both/seed1/manifest.json").read_text())
    assert run["data"]["fingerprint"] == distilled["fingerprint"]
    assert str(mini.work / "teacher" / "checkpoint.pt") in run["flags"]
    assert [result(mini, name)["updates"] for name in ("teacher", "both")] == [6, 3]
    assert [result(mini, name)["valid_curve"][-1][0] for name in ("teacher", "both")] == [6, 3]
    reference = (mini.folder / "data/mini/test.de").read_text().splitlines()
    none, both = (
        sacrebleu.corpus_chrf(
            (mini.work / "runs" / name / "seed1/test/hypotheses.txt").read_text().splitlines(),
            [reference],
        ).score
        for name in ("none", "both")
    )
    report = json.loads((mini.work / "report" / "report.json").read_text())
    found = report["differences"]["both"]["chrF"]
    assert found["mean"] == pytest.approx(both - none, abs=1e-3)
    assert (mini.work / "report" / "quality-speed.png").is_file()
    speed = json.loads((mini.work / "speed" / "both-seed1.json").read_text())
    size = sum(x.stat().st_size for x in (mini.work / "runs/both/seed1/int8").iterdir())
    assert speed["bytes"] == size and speed["search"]["max_len_b"] == 12
    exported = ctranslate2.Translator(str(mini.work / "runs/both/seed1/int8"))
    assert exported.compute_type.startswith("int8")  # as it was saved
    assert {*speed["load"]} == {"before", "after"}
    assert speed["fairseq-generate, beam"]["sentences_per_second"] > 0
    greedy = mini.work / "runs/both/seed1/test-greedy/hypotheses.txt"
    chrf = sacrebleu.corpus_chrf(greedy.read_text().splitlines(), [reference]).score
    assert result(mini, "both")["greedy"]["chrF"] == pytest.approx(chrf, abs=1e-3)
    assert speed["fairseq, greedy"]["chrF"] == result(mini, "both")["greedy"]["chrF"]
    own = "| both | " + f"{both_of(report, 'int8 speed') / teacher_of(report):.1f} | "
    assert own in said and "| fairseq-generate | translate | CTranslate2 int8 |" in said
    assert "All students learn from one teacher, so the intervals leave out" in said
    # The two ways to translate with fairseq agree.
    assert speed["fairseq, beam"]["chrF"] == result(mini, "both")["scores"]["test"]["chrF"]

    again = mini.call("--shards", "2")
    assert again.count("runs are done already") == 3  # teacher, students, speeds
    other = mini.call("--max-update", "2", status=1)
    assert "teacher-seed1.json was made with other settings than these" in other

    # What is there, and not in the table.
    some = mini.call("report", "--systems", "none")
    assert "- done, but not asked for: both-seed1\n" in some

    # The speed of an earlier model is measured again, and not shown until then.
    path = mini.work / "speed" / "both-seed1.json"
    path.write_text(json.dumps({**speed, "checkpoint": "of an earlier training", "bytes": 1}))
    assert "- not timed: both seed 1\n" in mini.call("report")
    mini.call()
    assert json.loads(path.read_text())["bytes"] == size

    mini.call("--records", records)  # which get the new speed
    text = (mini.work / "report" / "report.md").read_text()
    shutil.copytree(mini.work / "teacher", mini.folder / "teacher")
    # The machine is gone, and its records are not.
    shutil.rmtree(mini.work)
    mini.call("report", "--records", records)
    assert (mini.work / "report" / "report.md").read_text() == text
    (records / "mini-en-de" / "references.de").rename(mini.folder / "references.de")
    mini.call("report", "--records", records)  # which makes them again, of --from
    assert (mini.work / "report" / "report.md").read_text() == text
    (mini.folder / "references.de").rename(records / "mini-en-de" / "references.de")
    shutil.rmtree(mini.work)
    kept = mini.call("--records", records)
    assert "3 runs are taken from" in kept and not (mini.work / "runs").exists()
    assert (mini.work / "report" / "report.md").read_text() == text
    shutil.rmtree(mini.work / "results")
    mini.call("report", "--records", records)  # which alone have the results now
    assert (mini.work / "report" / "report.md").read_text() == text
    record = records / "mini-en-de" / "both-seed1.json"
    record.unlink()
    refused = mini.call("--records", records, status=1)
    assert "checkpoint.pt is not the teacher of" in refused and "both seed 1 needs it" in refused
    (records / "mini-en-de" / "none-seed1.json").unlink()
    mini.call("run", "--records", records, "--systems", "none")
    assert not record.exists() and (records / "mini-en-de" / "none-seed1.json").exists()
    # The teacher's folder is put there.
    shutil.copytree(mini.folder / "teacher", mini.work / "teacher")
    # Without its teacher's record a student's would get another teacher.
    mini.call("run", "--records", records)
    teacher = records / "mini-en-de" / "teacher-seed1.json"
    teacher.rename(mini.folder / "kept.json")
    shutil.rmtree(mini.work)
    refused = mini.call("--records", records, status=1)
    assert "both-seed1.json has learnt from a teacher whose result is not here" in refused
    (mini.folder / "kept.json").rename(teacher)
    shutil.rmtree(mini.work)
    refused = mini.call("--records", records, "--max-update", "2", status=1)
    assert f"{records}/mini-en-de/teacher-seed1.json was made with other settings" in refused
    assert not mini.work.exists()

    # The teacher is given instead of trained.
    given, trained = mini.folder / "teacher" / "checkpoint.pt", json.loads(teacher.read_text())
    said = mini.call("--teacher", given, "--systems", "none")
    taken = result(mini, "teacher")
    same = "arch", "checkpoint", "data", "greedy", "hypotheses", "parameters", "revision", "scores"
    assert {x: taken[x] for x in same} == {x: trained[x] for x in same}
    assert (taken["given"], taken["hours"], trained["given"]) == (True, None, False)
    assert not (mini.work / "runs" / "teacher" / "seed1" / "train.log").exists()
    assert "| trained | updates | hours |\n| --- | --- | --- |\n| none | 3 |" in said
    again = mini.call("--systems", "none")  # it need not be given again
    assert again.count("runs are done already") == 3  # teacher, student, speeds


def both_of(report, name):
    return next(row[name] for row in report["systems"] if row["system"] == "both")


def teacher_of(report):
    return report["systems"][0]["fairseq-generate speed"]


def result(mini, system):
    return json.loads((mini.work / "results" / f"{system}-seed1.json").read_text())


# --- without training ----------------------------------------------------------------------------


@pytest.mark.slow
def test_mistakes(mini, monkeypatch):
    assert "--systems names words, but there are none, both" in mini.call(
        "--systems", "words", status=1
    )
    assert "--slurm takes NAME=VALUE, not x" in mini.call(
        "--launcher", "slurm", "--slurm", "x", status=1
    )
    file = mini.folder / "settings.yaml"
    assert "given by --records, is not a folder" in mini.call("--records", file, status=1)
    assert "has no results yet: run the stage run" in mini.call("report", status=1)
    file.write_text(SETTINGS.replace("[both]", "[both, none]"))
    assert "main names none, which is not a system with a baseline" in mini.call(status=1)
    file.write_text(SETTINGS.replace("[both]", "[both, both]"))
    assert "main names a system twice" in mini.call(status=1)
    file.write_text(SETTINGS)
    with mock.patch.dict(distillation_recipe.NEEDED, {"no_such_package": "the export"}):
        said = mini.call(status=1)
    assert "the export needs no_such_package: pip install no_such_package" in said
    path = mini.folder / "settings.yaml"
    path.write_text(SETTINGS.replace("student: {", "student: {depth: 2, "))
    assert "student has no 'depth'; it may have arch, tokens" in mini.call("report", status=1)
    path.write_text(SETTINGS.replace("both:\n", "both:\n    merges: 10\n"))
    assert "both reads translations, which have the teacher's BPE" in mini.call(status=1)
    path.write_text(SETTINGS.replace("both:\n", "both:\n    baseline: words\n"))
    assert "the baseline of both is words, and no other system" in mini.call(status=1)
    path.write_text(SETTINGS.replace("none: {}", "none: {flags: '{x}'}"))
    assert "the flags of none: only {teacher} and {teacher_data} stand" in mini.call(status=1)
    path.write_text(SETTINGS.replace("none: {}", "teacher: {}"))
    assert "systems should name students, and none of them teacher" in mini.call(status=1)


TWO_TASKS = (
    TASKS
    + """\
  mini-de-en: {{family: mini, pair: de-en}}
"""
)


@pytest.fixture
def no_work(tmp_path, monkeypatch):
    """`call` starts jobs that do no work but write what a real one leaves; some can fail."""
    (tmp_path / "tasks.yaml").write_text(TWO_TASKS.format(small="--lr 1"))
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    begun, broken, busy = [], set(), set()

    def write(path, **content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    def settings_hash(runs, recipe):
        task = tasks.read(runs.options.file)[recipe.name]
        return systems.settings_hash(task, runs.settings, recipe)

    def do(runs, what, recipe, shard):
        if what == "train":
            recipe.checkpoint.parent.mkdir(parents=True)
            if recipe.given_teacher:
                distillation_run.put(recipe.given_teacher, recipe.checkpoint)
            else:
                recipe.checkpoint.write_text(f"{recipe.name} {recipe.system}")
            checkpoint = files.sha256(recipe.checkpoint)
            if recipe.system == "teacher":
                place = systems.teacher_of(recipe.work)
                distillation_run.put(recipe.checkpoint, place)
            written(
                recipe,
                settings=settings_hash(runs, recipe),
                checkpoint=checkpoint,
                data=distillation_records.fingerprint(recipe.data),
                references="",
                teacher=distillation_run.sha256_of_teacher(recipe),
                scores={"test": {"BLEU": 1.0, "chrF": 1.0}},
                given=bool(recipe.given_teacher),
                **{"hours": 1, "updates": 1},
            )
        elif what == "time":
            write(recipe.speed, checkpoint=files.sha256(recipe.checkpoint))
        elif what == "translate":
            write(translations.shard_path(recipe.work, shard))
        else:
            place = systems.teacher_of(recipe.work)
            teacher = files.sha256(place) if what == "join" else ""
            made = {"teacher": [{"sha256": teacher}], "kept": 1, "sentences": 1}
            folder = recipe.work / "distilled" if what == "join" else recipe.data
            write(
                folder / "preprocessing.json", fingerprint=f"{recipe.name} {what}", distilled=made
            )

    class Plan(distillation_recipe.Plan):
        def job(self, what, recipe, label, result, shard=""):
            job = super().job(what, recipe, label, result, shard)
            return replace(job, words=[lambda: do(self.runs, what, recipe, shard)])

    def start(jobs, at_a_time):
        for job in jobs:
            begun.append(job.label)
            is_there = job.label not in {*broken, *busy}
            if is_there:
                job.words[0]()
            yield job, 0 if is_there else launch.ELSEWHERE if job.label in busy else 1

    monkeypatch.setattr(launch, "local", start)
    monkeypatch.setattr(distillation_recipe, "Plan", Plan)
    monkeypatch.setattr(ask_fairseq, "apart", lambda function, *words: function(*words))

    def call(stage="run", task="mini-en-de mini-de-en", more=()):
        begun.clear()
        words = [stage, *more, "--tasks", task, "--work", tmp_path / "work", "--cpu"]
        words += ["--tasks-file", tmp_path / "tasks.yaml", "--settings", tmp_path / "settings.yaml"]
        try:
            distillation_recipe.main([*map(str, words)])
        except SystemExit as end:
            return end.code
        return 0

    return SimpleNamespace(call=call, begun=begun, broken=broken, busy=busy, folder=tmp_path)


def test_what_fails_keeps_nothing_back_that_does_not_need_it(no_work, capsys):
    def of(task):
        return [x.removeprefix(f"{task} ") for x in no_work.begun if x.startswith(task)]

    no_work.broken |= {"mini-en-de teacher seed 1", "mini-de-en none seed 1"}
    assert no_work.call() == 1
    translated = ["translations 1/1", "translations"]
    timed = ["teacher seed 1, speed", "both seed 1, speed"]
    data = "data, 20 merges"
    de_en = [data, "teacher seed 1", *translated, "none seed 1", "both seed 1", *timed]
    assert of("mini-de-en") == de_en
    assert of("mini-en-de") == [data, "teacher seed 1", "none seed 1", "none seed 1, speed"]
    last = capsys.readouterr().err
    assert "2 jobs failed: mini-en-de teacher seed 1, mini-de-en none seed 1; start it" in last
    assert "mini-en-de translations, mini-en-de both seed 1; what they need" in last
    # Another process is at the rest.
    no_work.broken.clear()
    no_work.busy.add("mini-en-de teacher seed 1")
    assert no_work.call() == 1
    assert "mini-de-en none seed 1, speed" in no_work.begun
    assert "1 job left to another process: mini-en-de teacher seed 1" in capsys.readouterr().err
    no_work.busy.clear()
    assert no_work.call() == 0
    assert of("mini-en-de") == ["teacher seed 1", *translated, "both seed 1", *timed]
    assert of("mini-de-en") == []


def a_teacher(folder, fingerprint="mini-en-de prepare"):
    """A checkpoint and the manifest of its run, where recipes leave averaged ones."""
    content = {"arch": "a", "seed": 1, "flags": [], "starts": [START]}
    content["data"] = {"source": "en", "target": "de", "tests": [], "sha256": {}}
    content["data"]["fingerprint"] = fingerprint
    path = folder / "averaged" / "checkpoint.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("weights\n")
    (folder / "manifest.json").write_text(json.dumps(content))
    return path


def test_a_teacher_that_is_given_is_that_of_the_students(no_work, capsys):
    path = a_teacher(no_work.folder / "elsewhere")

    def call(teacher=path, task="mini-en-de"):
        status = no_work.call(task=task, more=["--teacher", teacher, "--records", kept])
        return capsys.readouterr().err if status else "done"

    kept = no_work.folder / "kept"
    for more in ("mini-en-de mini-de-en", "mini"):
        assert "--teacher is a teacher of one task: give that" in call(task=more)
    other = a_teacher(no_work.folder / "other", fingerprint="of other data")
    assert "was trained with other data than" in call(other)
    other.write_text("other weights\n")
    alone = no_work.folder / "elsewhere.pt"
    alone.write_text("weights\n")
    assert "elsewhere.pt: no manifest.json, next to it or one folder above" in call(alone)
    assert "gone.pt: no such checkpoint" in call(no_work.folder / "gone.pt")
    assert call() == "done" and "mini-en-de both seed 1" in no_work.begun
    place = no_work.folder / "work" / "mini-en-de" / "teacher" / "checkpoint.pt"
    # That is it, wherever the students are trained.
    other = a_teacher(no_work.folder / "other")
    other.write_text("other weights\n")
    assert "is not the teacher of" in call(other)
    shutil.rmtree(no_work.folder / "work")
    (kept / "mini-en-de" / "both-seed1.json").unlink()
    assert no_work.call(task="mini-en-de", more=["--records", kept]) == 1
    assert "give it with --teacher, since both seed 1 needs it" in capsys.readouterr().err
    assert call() == "done" and "mini-en-de teacher seed 1" not in no_work.begun
    assert place.read_text() == path.read_text()
    assert (place.parent / "manifest.json").read_bytes() == (
        path.parent.parent / "manifest.json"
    ).read_bytes()


def test_a_teacher_that_is_half_taken_or_half_trained_is_not_mixed_up(no_work, capsys):
    path, work = a_teacher(no_work.folder / "elsewhere"), no_work.folder / "work" / "mini-en-de"
    run = work / "runs" / "teacher" / "seed1"
    run.mkdir(parents=True)
    (run / "given").write_text("a kill came before it was scored\n")
    assert no_work.call(task="mini-en-de") == 1 and no_work.begun == []
    said = capsys.readouterr().err
    assert "was given, and is not scored yet: give it again, with --teacher" in said
    (run / "given").rename(run / "checkpoint_last.pt")
    assert no_work.call(task="mini-en-de", more=["--teacher", path]) == 1 and no_work.begun == []
    said = capsys.readouterr().err
    assert "has begun to train its own teacher: leave out --teacher" in said


def test_the_record_of_a_training_is_not_replaced_by_one_of_a_given_teacher(tmp_path):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]
    recipe = systems.recipe(task, settings, "teacher", 1, options(tmp_path))
    for changes in ({"given": False, "hours": 5}, {"given": True, "hours": None}):
        written(recipe, **changes)
        distillation_records.keep(tmp_path / "kept", distillation_records.known([recipe], None))
    place = distillation_records.place(tmp_path / "kept", recipe)
    assert json.loads(place.read_text())["hours"] == 5


def test_one_process_at_a_time_writes_records_and_none_where_nothing_is_new(tmp_path, monkeypatch):
    settings, task, kept = systems.read(), tasks.read()["multi30k-en-de"], tmp_path / "kept"
    recipe = systems.recipe(task, settings, "none", 1, options(tmp_path))
    written(recipe)
    place, entered = distillation_records.place(kept, recipe), []

    @contextmanager
    def alone_in(folder):
        entered.append((folder, place.exists()))
        yield

    monkeypatch.setattr(distillation_records, "alone_in", alone_in)
    for _ in range(2):
        distillation_records.keep(kept, distillation_records.known([recipe], None))
    assert entered == [(kept, False)] and place.exists()


def test_one_gpu_is_planned_for_though_there_be_eight(monkeypatch):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]
    args = distillation_recipe.parser().parse_args([])
    runs = Runs(args, settings, ["none"], replace(options(), cpu=False))
    monkeypatch.setattr(ask_fairseq, "count_usable", lambda: 8)
    monkeypatch.setattr(ask_fairseq, "apart", lambda function, *words: "")
    refusals.refuse_unknown_flags(runs, [task])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("distill: ", "distill: --beem 5 ", "distill: unrecognized arguments: --beem 5"),
        ("distill: ", "distill: --best-of '5 #", "distill should be flags as one types them"),
        ("tokens: ", "tokens: -", "teacher/tokens should be at least 1"),
        ("max_update: 3", "max_update: 0", "student/max_update should be at least 1, not 0"),
        (
            "--distill-weight",
            "--max-update=9 --distill-weight",
            "settings.yaml: the flags of both: --max-update is set by the recipe: leave it out",
        ),
    ],
)
def test_values_of_the_settings_are_looked_at_first(no_work, capsys, old, new, said):
    path = no_work.folder / "settings.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert no_work.call() == 1 and no_work.begun == []
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--max-tokens 9", "--max-tokens is an option: name it before --"),
        ("--bf16", "--bf16 is set by the recipe: leave it out"),
        ("--batch-size 8", "smaller than the recipe's: see --max-tokens"),
        ("--keep-last-epochs 2", "the last 5 epochs are to be averaged: keep as many"),
        ("--reset-meters", "begin anew at each start: see fairseq's --finetune-from-model"),
    ],
)
def test_a_flag_is_refused_with_no_option_that_there_is_not(flags, said):
    assert sentence_of(distillation_recipe.run, ["--", *flags.split()]).endswith(said)


def test_a_students_rate_has_to_fall_before_its_end(no_work, capsys):
    """Which is found out before the teacher is trained."""
    path = no_work.folder / "settings.yaml"
    flags = "--lr-scheduler cosine --warmup-updates 3"
    path.write_text(path.read_text().replace("max_update: 3", f"max_update: 3, flags: {flags}"))
    assert no_work.call() == 1 and no_work.begun == []
    said = capsys.readouterr().err
    assert "cosine falls after --warmup-updates 3 until --max-update 3: give a greater one" in said


def test_flags_of_students_are_looked_at_before_the_teacher_is_trained(no_work, capsys):
    path = no_work.folder / "settings.yaml"
    path.write_text(path.read_text().replace("--distill-weight", "--distil-weight"))
    assert no_work.call() == 1 and no_work.begun == []
    assert (
        "would refuse this: unrecognized arguments: --distil-weight 0.5" in capsys.readouterr().err
    )
    path.write_text(SETTINGS.replace("student: {arch: macaron_", "student: {arch: macaroni_"))
    assert no_work.call() == 1 and no_work.begun == []
    assert "Did you mean macaron_transformer_tiny" in capsys.readouterr().err


def test_a_task_without_results_keeps_no_other_report_back(no_work, monkeypatch, capsys):
    def report(plan, task):
        if task.name == "mini-en-de":
            raise UserError("no results of mini-en-de")
        return f"the table of {task.name}"

    monkeypatch.setattr(distillation_recipe.Plan, "report", report)
    assert no_work.call("report") == 1
    found = capsys.readouterr()
    assert found.out == "the table of mini-de-en\n"
    assert found.err == "distillation: no results of mini-en-de\n"


@pytest.mark.parametrize("code", ["its data is gone", 1, 128 + signal.SIGTERM])
def test_data_that_cannot_be_prepared_hides_no_failed_job(code, no_work, monkeypatch, capsys):
    def report(plan, task):
        if task.name == "mini-en-de":
            sys.exit(code)
        return f"the table of {task.name}"

    monkeypatch.setattr(distillation_recipe.Plan, "run", lambda plan: ["2 jobs failed: a, b"])
    monkeypatch.setattr(distillation_recipe.Plan, "report", report)
    status = no_work.call("run", more=["report"])
    found = capsys.readouterr()
    if code == 143:  # nothing goes on
        assert status == code and not found.out
    else:
        assert status == 1 and found.out == "the table of mini-de-en\n"
        why = "mini-en-de: no report" if code == 1 else code
        assert found.err == f"distillation: 2 jobs failed: a, b\n{why}\n"


def test_braces_in_the_path_of_a_teacher_are_its_own():
    how = systems.System(flags="--teacher {teacher} --teacher-data={teacher_data}")
    found = student_systems.flags_of(how, Path("a{r}/{teacher_data}.pt"), Path("b"))
    assert found == ["--teacher", "a{r}/{teacher_data}.pt", "--teacher-data=b"]


def options(work="/w", **changes):
    return tasks.Options(work=EXAMPLES / work, given=None, cpu=True, file=tasks.FILE, **changes)


@pytest.mark.parametrize(
    ("name", "missing"), [("g2p-hun", "BLEU and chrF"), ("multi30k-en-de", "")]
)
def test_a_task_without_the_metrics_of_the_table_is_refused(name, missing):
    with pytest.raises(SystemExit, match=missing) if missing else contextlib.nullcontext():
        refusals.refuse_without_metrics(tasks.read()[name])


def test_the_metrics_of_a_task_are_looked_at_first(no_work, capsys):
    path = no_work.folder / "tasks.yaml"
    path.write_text(path.read_text().replace("--metric bleu chrf", "--metric wer bleu"))
    assert no_work.call() == 1 and no_work.begun == []
    assert "mini-en-de is not scored by chrF, which this table" in capsys.readouterr().err


def test_recipes_of_the_settings_that_come_with_it():
    settings = systems.read()
    usual = ["none", "word", "sequence", "both", "trajectory"]
    across = ["across", "uld", "mined"]
    assert [*settings.systems] == [*usual, "none-own-bpe", *across]
    assert student_systems.chosen(settings.systems, ["uld"]) == ["none", "none-own-bpe", "uld"]
    task = tasks.read()["tatoeba-en-de"]
    made = {x: systems.recipe(task, settings, x, 1, options()) for x in settings.systems}
    teacher = systems.recipe(task, settings, "teacher", 1, options())
    assert made["both"].data == made["sequence"].data == teacher.work / "distilled"
    assert made["word"].data == teacher.data == teacher.work / "data"
    assert made["none"].extra == [] and "--trajectory-weight" in made["trajectory"].extra
    place = str(systems.teacher_of(teacher.work))
    assert made["both"].extra[made["both"].extra.index("--teacher") + 1] == place
    folders = {x.folder_of_run for x in [teacher, *made.values()]}
    assert len(folders) == 10
    against = {name: made[name].baseline for name in made}
    assert against["sequence"] == "none" and against["trajectory"] == "word"
    assert {against[name] for name in across} == {"none-own-bpe"}
    for name in across[1:]:
        assert made[name].extra[-2:] == ["--cross-vocabulary-loss", name]


def test_settings_may_go_over_others(tmp_path):
    pair, usual = systems.read(systems.FILE.with_name("pair.yaml")), systems.read()
    assert (pair.systems, pair.main, pair.distill) == (usual.systems, usual.main, usual.distill)
    assert (pair.teacher.arch, pair.teacher.tokens) == ("macaron_transformer_tiny", 4096)
    assert pair.student.arch == usual.student.arch and pair.student.max_update == 1200
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: distillation.yaml\nsystems: {across: {merges: 2000}}")  # not next to it
    changed = systems.read(mine).systems
    assert changed.pop("across").merges == 2000
    assert changed.items() < usual.systems.items()
    (tmp_path / "distillation.yaml").write_text("systems: {none: {}}")  # next to it
    with pytest.raises(SystemExit, match=r"mine\.yaml: the file lacks 'teacher'"):
        systems.read(mine)
    # One of a base, and one of the same name as its base.
    mine.write_text("base: pair.yaml\nstudent: {tokens: 9}")
    (tmp_path / "distillation.yaml").write_text("base: distillation.yaml\nmain: [word]")
    assert systems.read(mine).student.tokens == 9 and systems.read(mine).main == usual.main
    named_so = systems.read(tmp_path / "distillation.yaml")
    assert named_so.main == ["word"] and named_so.teacher == usual.teacher


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("[a]", r"base should be the name of a file, not \['a'\]"),
        ("no.yaml", r"cannot read .*/test_a_base_that\w+/no\.yaml: No such file"),
        ("mine.yaml", "base mine.yaml goes over this file: name another one"),
    ],
)
def test_a_base_that_is_none_is_named(base, said, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"base: {base}")
    with pytest.raises(SystemExit, match=said):
        systems.read(tmp_path / "mine.yaml")


def test_across_vocabularies_a_student_has_its_own_data():
    task, settings = tasks.read()["tatoeba-en-de"], systems.read()
    teacher, plain, across = (
        systems.recipe(task, settings, x, 1, options())
        for x in ("teacher", "none-own-bpe", "across")
    )
    words = train_command.flags(
        across, train_command.plan(across, 0, {}), across.archs[0], 1, False
    )
    given = dict(pairwise(words))
    assert words[0] == str(across.data / "data-bin") and plain.data == across.data
    assert given["--teacher-data"] == str(teacher.data) != str(across.data)
    assert given["--teacher"] == str(systems.teacher_of(teacher.work))
    # The last of several flags counts: the schedule is the student's, dropout the task's.
    assert (given["--lr-scheduler"], given["--patience"]) == ("cosine", "0")
    assert (across.average, teacher.average) == (0, 5)
    other = systems.recipe(tasks.read()["multi30k-en-de"], settings, "none", 1, options())
    words = train_command.flags(other, train_command.plan(other, 0, {}), other.archs[0], 1, False)
    assert dict(pairwise(words))["--dropout"] == "0.3"
    # It is prepared elsewhere, with other merges, and scored where all are.
    made = across.preparation
    assert (made.data, made.merges, teacher.merges) == (across.data, 4000, 8000)
    assert made.work != teacher.work == across.work and teacher.preparation == teacher
    other = replace(settings, systems={"across": replace(settings.systems["across"], merges=50)})
    hashes = [
        systems.settings_hash(task, s, systems.recipe(task, s, "across", 1, options()))
        for s in (settings, other)
    ]
    assert hashes[0] != hashes[1]


def test_students_may_end_earlier_than_their_teacher():
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]
    args = distillation_recipe.parser().parse_args(["--max-update", "9", "--student-updates", "2"])
    runs = Runs(args, settings, ["none"], options(max_update=args.max_update))
    assert [recipe.max_update for recipe in runs.of(task)] == [9, 2]
    plan = distillation_recipe.Plan(runs, [task])
    for system, updates in (("teacher", 9), ("none", 2)):
        asked = json.loads(plan.train(task, system, 1).job.words[-1])
        assert asked["options"]["max_update"] == updates


def test_what_says_that_a_shard_is_done_goes_with_its_parts(tmp_path):
    mark = translations.shard_path(tmp_path, "2/8")
    mark.parent.mkdir()
    mark.write_text("done\n")
    parts.Parts(parts.folder_of(tmp_path / "distilled"), {}, 0, 1).remove()
    assert not mark.exists()


def test_shards_that_cannot_be_joined_are_done_again(tmp_path, monkeypatch):
    recipe = systems.recipe(
        tasks.read()["multi30k-en-de"],
        systems.read(),
        "teacher",
        1,
        options(work=tmp_path),
    )
    mark = translations.shard_path(recipe.work, "1/2")
    mark.parent.mkdir(parents=True)
    mark.write_text("done\n")
    lock = mark.with_suffix(".lock")
    lock.touch()

    def fail(*_):
        sys.exit("lines-1-2 is damaged: remove it")

    monkeypatch.setattr(translations, "distill", fail)
    with pytest.raises(SystemExit, match="is damaged"):
        translations.join(recipe, systems.read())
    assert not mark.exists() and lock.exists()


def test_a_hash_tells_settings_apart_and_not_places():
    usual, task = systems.read(), tasks.read()["multi30k-en-de"]

    def of(system="word", settings=usual, **changes):
        recipe = systems.recipe(task, settings, system, 1, replace(options(), **changes))
        return systems.settings_hash(task, settings, recipe)

    def learning(flags):
        word = replace(usual.systems["word"], flags=flags)
        return of(settings=replace(usual, systems={**usual.systems, "word": word}))

    assert of() == of(work=EXAMPLES / "elsewhere")
    others = [of(), of("none"), of("both"), of(max_update=5), of(extra=("--lr", "1"))]
    others += [of("teacher"), learning("--distill-weight 0.1")]
    assert len({*others}) == len(others)
    # How much is kept in memory changes no result.
    flags = usual.systems["word"].flags
    assert "--teacher-memory 4" in flags
    assert of() == learning(flags.replace("--teacher-memory 4", "")) != learning("")
    assert of() == of(extra=("--teacher-memory", "1"))
    # A student's teacher is known by its SHA-256, and may be of a GPU.
    larger = replace(usual, teacher=replace(usual.teacher, arch="macaron_transformer"))
    assert of() == of(settings=larger) and of("teacher") != of("teacher", larger)
    # Where it is trained stands next to it: a report may be drawn on another machine.
    assert of() == of(cpu=False) and of("teacher") == of("teacher", cpu=False)


def test_the_records_that_come_with_it_are_of_its_settings(tmp_path):
    """Else all would be trained again where they are given by --records."""
    settings, task_of = systems.read(), tasks.read()
    paths = [*(ROOT / "docs" / "results" / "records" / "distillation").glob("*/*.json")]
    assert len(paths) >= 17
    for path in paths:
        kept = json.loads(path.read_text())
        task, given = task_of[kept["task"]], tmp_path if kept["given"] else None
        recipe = systems.recipe(task, settings, kept["system"], kept["seed"], options(), given)
        assert systems.settings_hash(task, settings, recipe) == kept["settings"], path


def test_a_model_that_was_retrained_is_translated_greedily_again(tmp_path, monkeypatch):
    task = tasks.read()["multi30k-en-de"]
    recipe = systems.recipe(task, systems.read(), "none", 1, options(tmp_path))
    begun = []

    def generate(log, words, stdout):
        begun.append(training_flags.parse([str(word) for word in words]))

    monkeypatch.setattr(stage_evaluate, "logged", generate)
    monkeypatch.setattr(stage_evaluate, "call", lambda words, stdout: None)
    made_from = recipe.folder_of_run / recipe.test / "made-from"
    made_from.parent.mkdir(parents=True)
    for of_test, times in (("first model", 1), ("first model", 1), ("retrained", 2)):
        made_from.write_text(of_test)
        distillation_run.decode_greedily(recipe)
        assert len(begun) == times
    assert all(flags["--beam"] == ["1"] for flags in begun)


def test_translations_by_other_flags_are_refused(tmp_path):
    settings = systems.read()
    # What the flags of distillation.yaml make, and the command's defaults.
    made = {"beam": 5, "lenpen": 1.0, "max_len_a": 1.5, "max_len_b": 10, "best_of": 1}
    made |= {"mix": False, "max_ratio": 4.0, "max_copied": 0.5, "kept": 3}
    made |= {"teacher": [{"name": "checkpoint.pt", "sha256": "f00"}]}

    def check(teacher="f00", **changes):
        content = json.dumps({"distilled": {**made, **changes}})
        (tmp_path / "preprocessing.json").write_text(content)
        translations.refuse_other_translations(tmp_path, settings, teacher)

    check()
    with pytest.raises(SystemExit, match="was made with best_of 5, and not 1: remove it"):
        check(best_of=5)
    with pytest.raises(SystemExit, match="was made by another teacher than the one here"):
        check(teacher="retrained")


def test_speed_is_measured_with_the_search_of_the_scores():
    found = distillation_speed.search(
        "--beam 4 --batch-size 64 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10"
    )
    assert vars(found) == {"beam": 4, "lenpen": 0.6, "max_len_a": 1.5, "max_len_b": 10}
    assert distillation_speed.search("--batch-size 64") == Search()


def test_the_speed_of_fairseq_generate_is_what_it_says(tmp_path):
    said = "Translated 1,000 sentences (23,456 tokens) in 512.3s (1,951.95 sentences/s, 45.79 tok"
    assert distillation_speed.rate(f"H-0\tx\n... | INFO | {said}ens/s)\n", tmp_path) == 1951.95
    with pytest.raises(SystemExit, match="does not say how fast fairseq-generate was"):
        distillation_speed.rate("killed", tmp_path)


def test_a_search_that_fails_says_why(tmp_path, monkeypatch, capsys):
    recipe = systems.recipe(tasks.read()["multi30k-en-de"], systems.read(), "none", 1, options())
    recipe = replace(recipe, work=tmp_path)
    recipe.folder_of_run.mkdir(parents=True)
    line = "Translated 9 sentences (45 tokens) in 0.5s (18.0 sentences/s, 90 tokens/s)"
    words = ["sh", "-c", f"echo H-0; echo '{line}' >&2"]
    monkeypatch.setattr(distillation_speed, "generate", lambda *_, **__: words)
    assert distillation_speed.fairseq_generate(recipe, recipe.test) == 18
    assert [*recipe.folder_of_run.iterdir()] == []
    words[-1] = "echo all is well; echo no memory >&2; exit 3"
    with pytest.raises(SystemExit, match=r"failed; see .*fairseq-generate\.log"):
        distillation_speed.fairseq_generate(recipe, recipe.test)
    assert "no memory" in capsys.readouterr().err


def test_a_damaged_result_is_named(tmp_path):
    path = tmp_path / "none-seed1.json"
    assert distillation_records.load(path) == {}
    path.write_text('{"scores":')
    with pytest.raises(UserError, match=r"none-seed1\.json .* remove it, and run again"):
        distillation_records.load(path)


@pytest.mark.parametrize(
    ("differences", "said"),
    [([0.3], "-"), ([0.3, 0.1], "yes"), ([-0.3, -0.1], "yes"), ([0.3, -0.1], "no"), ([0, 1], "no")],
)
def test_seeds_have_one_sign_or_not(differences, said):
    assert distillation_differences.one_sign(differences) == said


def test_the_fastest_repetition_counts_and_scores_are_sacrebleus(tmp_path, monkeypatch):
    """By a clock that is set: 4, 2 and 8 seconds for three sentences; case does not count here."""
    recipe = systems.recipe(
        tasks.read()["multi30k-en-de"], systems.read(), "none", 1, options(tmp_path)
    )
    found, right = ["ein roter Hund", "Zwei Katzen schlafen dort", "x"], ["Ein Hund"] * 3
    files.write_lines(recipe.data / "reference" / "some.en", "abc")
    files.write_lines(recipe.data / "reference" / "some.de", right)
    data = mock.Mock(source="en", target="de", **{"decode.return_value": found})
    data.encoder.return_value = str.split
    monkeypatch.setattr(distillation_speed.translator, "translate", lambda *_, **__: [found])
    clock = iter([10, 14, 20, 22, 30, 38])
    monkeypatch.setattr(distillation_speed.time, "perf_counter", lambda: next(clock))
    figures = distillation_speed.figures(None, data, recipe, "some")
    assert figures == {
        "sentences_per_second": 1.5,
        "BLEU": round(sacrebleu.corpus_bleu(found, [right], lowercase=True).score, 4),
        "chrF": round(sacrebleu.CHRF(lowercase=True).corpus_score(found, [right]).score, 4),
    }


@pytest.mark.parametrize("lacks_vnni", [True, False])
def test_one_timing_at_a_time_on_one_core(lacks_vnni, tmp_path, monkeypatch):
    """With seven bits where eight overflow."""
    task = tasks.read()["multi30k-en-de"]
    recipe = systems.recipe(task, systems.read(), "none", 1, options(tmp_path))
    recipe.checkpoint.parent.mkdir(parents=True)
    recipe.checkpoint.touch()
    monkeypatch.setattr(distillation_speed, "LOCK", tmp_path / "timing.lock")
    monkeypatch.setattr(distillation_speed.environment, "cpu_lacks_vnni", lambda: lacks_vnni)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    held = []

    def export(words):
        with distillation_speed.LOCK.open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert os.environ["OMP_NUM_THREADS"] == "1"
        held.append(words)
        raise KeyboardInterrupt

    monkeypatch.setattr(distillation_speed, "call", export)
    with pytest.raises(KeyboardInterrupt):
        distillation_speed.time_it(task, recipe)
    (words,) = held
    assert words[words.index("--quantization") + 1] == "int8"
    assert ("--reduce-range" in words) == lacks_vnni


def test_the_report_says_what_makes_speeds_doubtful(tmp_path):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]

    def run(system, load, cpu):
        recipe = systems.recipe(task, settings, system, 1, options(tmp_path))
        speed = {"load": {"before": 9.0, "after": load}, "machine": {"cpu": cpu}}
        return distillation_records.Run(recipe, recipe.result, {}, speed)

    quiet, busy, other = run("none", 1.2, "A"), run("word", 3.14, "A"), run("both", 1.0, "B")
    assert distillation_report.about_timing([quiet, quiet]) == []
    (note,) = distillation_report.about_timing([quiet, busy])
    assert "up to 3.1 processes" in note and note.endswith("too low: word seed 1")
    (note,) = distillation_report.about_timing([quiet, other])
    assert note.endswith("on several: A (none seed 1); B (both seed 1)")


def test_figures_of_a_system_stand_in_their_columns():
    """Of two seeds, timed twice: means, megabytes, and each speed under its own name."""

    def run(seed, bleu, hours):
        scores = {"BLEU": bleu, "chrF": bleu + 20}
        result = {"seed": seed, "scores": {"test": scores}, "greedy": {"BLEU": bleu - 1}}
        result |= {"parameters": 1234567, "words_per_second": 4000 + seed, "signatures": {}}
        result |= {"updates": 900, "hours": hours, "machine": {}}
        figures = {"int8, greedy": (30, 500), "fairseq, beam": (31, 60)}
        speed = {x: {"BLEU": y, "sentences_per_second": z + seed} for x, (y, z) in figures.items()}
        speed["fairseq-generate, beam"] = {"sentences_per_second": 7 + seed}
        speed |= {"bytes": 2_500_000, "machine": {}}
        return SimpleNamespace(recipe=SimpleNamespace(test="test"), result=result, speed=speed)

    row = distillation_report.summary("word", [run(1, 32, 1.5), run(3, 34, 2.5)])
    cells = dict(zip(distillation_text.HEAD, distillation_text.row_of(row, {}), strict=True))
    del cells["difference"]
    assert cells == {
        "system": "word",
        "seeds": "1 3",
        "BLEU": "33.00 ± 1.41",
        "chrF": "53.00 ± 1.41",
        distillation_differences.GREEDY: "32.00 ± 1.41",
        "int8 BLEU": "30.00",
        "parameters": "1,234,567",
        "int8 MB": "2.5",
        "fairseq-generate": "9",
        "translate": "62",
        "CTranslate2 int8": "502",
        "training": "4002",
    }
    table = distillation_text.trained([row])
    assert table.endswith("| word | 900 ± 0 | 2.00 ± 0.71 |")


def test_the_report_counts_translations_that_loop():
    def run(beam, greedy):
        packed = map(distillation_records.pack, (beam, greedy))
        return SimpleNamespace(
            result={"hypotheses": dict(zip(("beam", "greedy"), packed, strict=True))}
        )

    reference = ["one two", "no no no no no no"]
    loop, fine = "on on on on on on", "one"
    # The second reference loops, too.
    runs = [run(["one", fine], [loop, fine]), run([loop, fine], [loop, loop])]
    found = distillation_report.looping(runs, reference)
    assert found == {"beam": [0, 1], "greedy": [1, 1]}
    text = distillation_text.looped([{"system": "word", "looping": found}])
    assert "\n| word | 0 1 | 1 1 |\n" in text


def test_the_report_says_what_ran_beside_trainings():
    def run(load):
        return SimpleNamespace(result={"load": load} if load else {})

    said = distillation_report.about_training({"none": [run(2.0), run(1.0)], "word": [run(None)]})
    assert said.endswith("of training these were: none 1.5, word unknown")


def test_the_report_says_that_scores_are_of_several_versions():
    def run(name, version):
        result = {"signatures": {"BLEU": f"tok:13a|version:{version}"}}
        return SimpleNamespace(name=name, result=result)

    assert distillation_report.about_scores([run("a", 1), run("b", 1)]) == []
    (note,) = distillation_report.about_scores([run("a", 1), run("b", 2)])
    assert note.endswith("ways: tok:13a|version:1 (a); tok:13a|version:2 (b)")


def test_a_job_has_the_settings_of_its_call(tmp_path):
    """Whatever becomes of the file until the job begins."""
    task, settings = tasks.read()["multi30k-en-de"], systems.read()
    recipe = systems.recipe(task, settings, "word", 1, options(tmp_path))
    *_, argument = distillation_run.words("train", recipe, "", settings, options(tmp_path))
    assert benchmark.typed(systems.Settings, json.loads(argument)["settings"], "") == settings


def test_the_report_says_where_training_speeds_do_not_compare(tmp_path):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]

    def run(system, cpu="A", **more):
        recipe = systems.recipe(task, settings, system, 1, options(tmp_path))
        machine = {"cpu": cpu, "gpus": [], "versions": {"torch": "2.13"}, **more}
        return distillation_records.Run(recipe, recipe.result, {"machine": machine}, {})

    assert distillation_report.about_trained_on([run("none"), run("word")]) == []
    for other, said in (
        (run("word", "B"), "B, PyTorch 2.13 (word seed 1)"),
        (run("word", gpus=["H100"]), "A, H100, PyTorch 2.13 (word seed 1)"),
        (run("word", versions={"torch": "2.14"}), "A, PyTorch 2.14 (word seed 1)"),
    ):
        [note] = distillation_report.about_trained_on([run("none"), other])
        assert note.endswith(f"are of several: A, PyTorch 2.13 (none seed 1); {said}")
    [note] = distillation_report.about_trained_on([run("none"), run("uld")])
    assert note.startswith("training speeds of uld count tokens of other merges")


def test_a_result_names_the_machine_that_trained(tmp_path):
    """And not the one that scores it."""
    task, settings = tasks.read()["multi30k-en-de"], systems.read()
    recipe = systems.recipe(task, settings, "word", 1, options(tmp_path))
    write_manifest(recipe.folder_of_run, "f")
    path = recipe.folder_of_run / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "starts": [START]}))
    expected = {"cpu": "A CPU", "cores": 4, "gpus": ["A GPU", "A GPU"]}
    expected["versions"] = {"python": "3.11.7", "torch": "2.13.0"}
    assert distillation_run.machine(recipe, with_gpus=True) == expected
    assert distillation_run.machine(recipe, with_gpus=False)["gpus"] == []
    given = systems.recipe(task, settings, "teacher", 1, options(tmp_path), tmp_path / "given.pt")
    cores = distillation_run.machine(given, with_gpus=False)["cores"]
    assert cores == environment_of_here.hardware()["cores"]


def test_the_load_is_that_of_the_last_training(tmp_path, monkeypatch):
    task, settings = tasks.read()["multi30k-en-de"], systems.read()
    recipe = systems.recipe(task, settings, "word", 1, options(tmp_path))
    recipe.folder_of_run.mkdir(parents=True)

    def loaded(load, identity):
        monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, load))
        note = partial(train_command.note_trained, recipe.folder_of_run, identity)
        monkeypatch.setattr(stage_train, "train", lambda *_: note())
        return distillation_run.train_and_tell_load(recipe, None)

    assert loaded(1.0, "a") == 1.0
    assert loaded(2.0, "a") == 1.0  # it was trained already
    assert loaded(2.0, "b") == 2.0  # it went on


def test_a_timing_names_the_engine_that_was_timed():
    here = environment_of_here.hardware(), environment_of_here.versions()
    found = distillation_speed.machine(*here, with_gpus=False)["versions"]
    assert found["ctranslate2"] == metadata.version("ctranslate2")
    assert found["torch"] == metadata.version("torch")


def test_a_student_against_its_teacher():
    rows = [
        {"system": "teacher", "BLEU in fp32": 41.0, "fairseq-generate speed": 3.0},
        {"system": "none", "int8 speed": None, "int8": None},
        {"system": "word", "int8 speed": 24.0, "int8": 39.0},
    ]
    rows[0] |= {"int8 speed": 12.0, "int8": 41.0}
    assert distillation_text.against_teacher(rows) == [
        ["teacher", "4.0", "100.0 %", "1.0"],
        ["word", "8.0", "95.1 %", "2.0"],
    ]
    assert distillation_text.against_teacher(rows[1:]) == []


def test_planned_comparisons_are_corrected_for_all_that_were_planned():
    def found(*p):
        return {"greedy BLEU": {"p": [*p], "differences": [1.0, -1.0][: len(p)]}}

    made = distillation_differences.main_comparisons(
        ["word", "sequence", "across"],
        {"word": "none", "sequence": "none", "across": "none-own-bpe"},
        {"word": found(0.01, 0.02), "sequence": found(0.001, 0.0005), "uld": found(0.5)},
        seeds=2,
    )
    # The least of three is multiplied by 3, the next one by 2.
    assert {name: one["holm"] for name, one in made.items()} == pytest.approx(
        {"word": 0.04, "sequence": 0.003}
    )
    assert made["word"]["greatest"] == 0.02 and made["word"]["baseline"] == "none"
    assert made["word"]["one sign"] == "no"
    # One that lacks seeds does not make the others' correction less.
    made = distillation_differences.main_comparisons(
        ["word", "sequence", "across"],
        {"word": "none", "sequence": "none", "across": "none-own-bpe"},
        {"word": found(0.01, 0.02), "sequence": found(0.001)},
        seeds=2,
    )
    assert {name: one["holm"] for name, one in made.items()} == {
        "word": pytest.approx(0.06),
        "sequence": None,
    }
    assert made["sequence"]["one sign"] == "-"
    shown = {
        name: {**one, "seeds": [1], "mean": 1.0, "interval": None} for name, one in made.items()
    }
    (text,) = distillation_text.as_planned(shown)
    rows = [line.split(" | ") for line in text.splitlines()[2:]]
    assert [(row[0], row[5]) for row in rows] == [("| word", "0.060"), ("| sequence", "-")]
    # Before all seeds that are asked for are there, nothing is corrected.
    some = distillation_differences.main_comparisons(
        ["word"], {"word": "none"}, {"word": found(0.01, 0.02)}, seeds=3
    )
    assert some["word"]["holm"] is None


def test_systems_are_compared_with_their_baselines_by_the_seeds_of_both(tmp_path):
    """On sentences whose scores are known: 0 for other words, 100 for the reference."""
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]
    made = {
        (name, seed): systems.recipe(task, settings, name, seed, options(tmp_path))
        for name in ("none", "word", "trajectory")
        for seed in (1, 2, 3)
    }
    test = task.kind.test
    right, wrong = ["a b c d e f"] * 4, ["u v w x y z"] * 4
    half = right[:2] + wrong[:2]
    reference = distillation_records.references(made["none", 1])
    reference.parent.mkdir(parents=True)
    files.write_lines(reference, [line.upper() for line in right])  # case does not count here
    runs = []
    for (name, seed), recipe in made.items():
        is_right = name == "trajectory" or (name, seed) == ("word", 1)
        result = {"seed": seed, "scores": {test: {"BLEU": 1.0, "chrF": 1.0}}, "signatures": {}}
        result |= {"parameters": 1, "words_per_second": 1, "machine": {"cpu": "none"}}
        result |= {"greedy": {"BLEU": 1.0}, "references": files.sha256(reference)}
        result |= {"updates": 1, "hours": 1}
        result["hypotheses"] = {
            "beam": distillation_records.pack(right if is_right else wrong),
            "greedy": distillation_records.pack(half if name == "word" else wrong),
        }
        runs.append(distillation_records.Run(recipe, recipe.result, result, {}))
    work = made["none", 1].work
    text = distillation_report.report(task, "none", ["trajectory"], runs, 3, [], work)
    found = json.loads((work / "report" / "report.json").read_text())
    own = found["against_own_baselines"]
    assert [*own] == ["trajectory"] and own["trajectory"]["baseline"] == "word"
    for metric in ("BLEU", "chrF"):
        assert own["trajectory"][metric]["differences"] == pytest.approx([0, 100, 100])
    # The standard deviation is 57.74, and 4.303 is Student's t with two degrees of freedom.
    assert "| trajectory | word | +66.67 [-76.76, +210.09] (p 0.001" in text
    greedy = own["trajectory"]["greedy BLEU"]
    of_half = sacrebleu.corpus_bleu(half, [right], force=True).score
    assert greedy["differences"] == pytest.approx([-of_half] * 3) and len(greedy["p"]) == 3
    assert found["differences"]["word"]["greedy BLEU"]["mean"] == pytest.approx(of_half)
    assert "Differences are to none." in text
    planned = found["main"]["trajectory"]
    assert planned["baseline"] == "word"
    assert planned["greatest"] == planned["holm"] == max(greedy["p"])
    # Without its results no other system takes the baseline's place.
    text = distillation_report.report(
        task, "none", ["trajectory"], runs[3:], 3, ["left out: none"], work
    )
    found = json.loads((work / "report" / "report.json").read_text())
    assert found["differences"] == {} and [*found["against_own_baselines"]] == ["trajectory"]
    assert "No differences to none, the baseline, which has no results that belong" in text
    # Nor is what was planned against another baseline compared with this one.
    without = [run for run in runs if run.recipe.system != "word"]
    text = distillation_report.report(task, "none", ["trajectory"], without, 3, [], work)
    assert "| planned" not in text and "| trajectory | 1 2 3 |" in text
    teacher = systems.recipe(task, settings, "teacher", 1, options(tmp_path))
    only = distillation_records.Run(teacher, teacher.result, runs[0].result, {})
    assert "No differences to none" in distillation_report.report(
        task, "none", [], [only], 1, [], work
    )
    # A seed that is asked for and left out is still to come.
    two = [run for run in runs if run.recipe.seeds[0] != 3]
    distillation_report.report(task, "none", ["trajectory"], two, 3, ["left out: seed 3"], work)
    planned = json.loads((work / "report" / "report.json").read_text())["main"]["trajectory"]
    assert len(planned["p"]) == 2 and planned["holm"] is None


def written(recipe, **changes):
    """A result of a run as the job leaves it, but for what the report alone reads."""
    result = {"settings": "s", "data": "d", "references": "r", "checkpoint": "c", "teacher": ""}
    result["precision"] = "fp32"
    result |= {name: {} for name in ("scores", "greedy", "hypotheses", "signatures", "machine")}
    recipe.result.parent.mkdir(parents=True, exist_ok=True)
    recipe.result.write_text(json.dumps({**result, **changes}))
    return recipe


def test_data_of_own_merges_is_kept_for_the_students_that_were_trained_on_it(tmp_path, monkeypatch):
    """Their runs are not in the folder of that data."""
    task = tasks.read()["multi30k-en-de"]
    recipe = systems.recipe(task, systems.read(), "across", 1, options(tmp_path))
    run, new = recipe.folder_of_run, tmp_path / "new"
    for folder, fingerprint in ((recipe.data, "before"), (new, "now")):
        folder.mkdir(parents=True)
        (folder / "preprocessing.json").write_text(json.dumps({"fingerprint": fingerprint}))
        (folder / "made-from").touch()
    write_manifest(run, "before")
    monkeypatch.setattr(stage_prepare.downloads, "inputs", lambda recipe: [])
    monkeypatch.setattr(stage_prepare, "binarised", lambda *_: None)
    monkeypatch.setattr(
        stage_prepare, "step", lambda folder, _, fill: folder == recipe.data and fill(new)
    )
    said = sentence_of(lambda: distillation_run.prepare(recipe))
    assert said.startswith(f"{run} was trained on what {recipe.data} holds, which would be")


def test_runs_of_other_settings_data_and_teachers_do_not_belong_together(tmp_path):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]

    def recipe(system, seed=1):
        return systems.recipe(task, settings, system, seed, options(tmp_path))

    recipes = [
        written(recipe("teacher"), checkpoint="t", precision="fp16"),  # of a GPU
        written(recipe("none")),
        written(recipe("none", 2), precision="fp16"),
        written(recipe("word"), teacher="t"),
        written(recipe("word", 2), teacher="another"),
        written(recipe("sequence"), teacher="t", data="translations"),
        written(recipe("sequence", 2), teacher="t", data="other translations"),
        written(recipe("trajectory"), settings="other", teacher="t"),
        written(recipe("across"), teacher="t", data="own BPE", references="other"),
        recipe("uld"),
    ]
    known = distillation_records.known(recipes, None)
    found = distillation_records.unlike(known, ["s"] * len(known))
    assert [(run.name, what.split(" than ")[0]) for run, what in found] == [
        ("none seed 2", "another precision"),
        ("word seed 2", "another teacher"),
        ("sequence seed 2", "other data"),
        ("trajectory seed 1", "other settings"),
        ("across seed 1", "other references"),
    ]
    # What is to be trained decides, and not what comes first; of a teacher neither.
    found = distillation_records.unlike(known[:3], ["s"] * 3, "fp16")
    assert [run.name for run, _ in found] == ["none seed 1"]
    # What is prepared here decides, and not what comes first.
    folder = recipe("none").data
    folder.mkdir()
    (folder / "preprocessing.json").write_text('{"fingerprint": "here"}')
    found = distillation_records.unlike(known, ["s"] * len(known))
    assert ("none seed 1", "other data than what is here") in [(x.name, what) for x, what in found]


def test_finished_students_of_a_gpu_need_none_and_others_do_not_join_them(tmp_path):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]
    kept, here = tmp_path / "kept", options(tmp_path / "gpu")
    for system in ("teacher", "none"):
        recipe = systems.recipe(task, settings, system, 1, here)
        written(recipe, settings=systems.settings_hash(task, settings, recipe), precision="fp16")
        distillation_records.keep(kept, distillation_records.known([recipe], None))
    for seeds in ("1", "1 2"):
        args = distillation_recipe.parser().parse_args(["--records", str(kept), "--seeds", seeds])
        runs = Runs(args, settings, ["none"], options(tmp_path / "cpu"))
        if seeds == "1":
            refusals.refuse_others(runs, task)
        else:
            with pytest.raises(SystemExit, match="was made with another precision than the stud"):
                refusals.refuse_others(runs, task)


def test_a_record_of_another_training_is_refused(tmp_path):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]
    recipe = written(systems.recipe(task, settings, "none", 1, options(tmp_path)))
    distillation_records.keep(tmp_path / "kept", distillation_records.known([recipe], None))
    assert distillation_records.known([recipe], tmp_path / "kept")[0].result["checkpoint"] == "c"
    written(recipe, checkpoint="retrained")
    with pytest.raises(SystemExit, match="is of another training than"):
        distillation_records.known([recipe], tmp_path / "kept")
    place = distillation_records.place(tmp_path / "kept", recipe)
    before = place.read_text()
    distillation_records.keep(tmp_path / "kept", distillation_records.known([recipe], None))
    assert place.read_text() == before
    place.write_text('{"settings": "s"}')
    with pytest.raises(SystemExit, match="has no str 'data': it should be what --records"):
        distillation_records.known([recipe], tmp_path / "kept")


def test_references_are_kept_with_the_records_and_are_those_that_were_scored(tmp_path):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]
    recipe = systems.recipe(task, settings, "none", 1, options(tmp_path))
    path = distillation_records.references(recipe)
    path.parent.mkdir(parents=True)
    path.write_text("ein Satz\n")
    written(recipe, references=files.sha256(path))
    [run] = distillation_records.known([recipe], None)
    distillation_records.keep(tmp_path / "kept", [run])
    path.write_text("other data\n")
    found = distillation_records.known_references(run, tmp_path / "kept")
    assert found.read_text() == "ein Satz\n"
    for folder in (None, tmp_path / "elsewhere"):
        with pytest.raises(
            UserError, match=r"is not there, or is other than what .*none-seed1.json"
        ):
            distillation_records.known_references(run, folder)


def test_speeds_of_an_earlier_model_are_not_known(tmp_path):
    settings, task = systems.read(), tasks.read()["multi30k-en-de"]
    recipe = written(systems.recipe(task, settings, "none", 1, options(tmp_path)))
    recipe.speed.parent.mkdir()
    recipe.speed.write_text('{"checkpoint": "c", "bytes": 1}')
    (run,) = distillation_records.known([recipe], None)
    assert run.speed["bytes"] == 1
    distillation_records.keep(tmp_path / "kept", [run])
    recipe.speed.write_text('{"checkpoint": "of an earlier one", "bytes": 2}')
    assert distillation_records.known([recipe], None)[0].speed == {}
    (run,) = distillation_records.known([recipe], tmp_path / "kept")
    assert run.speed["bytes"] == 1
    distillation_records.take([run])
    assert distillation_records.known([recipe], None)[0].speed["bytes"] == 1


def test_lines_are_packed_whole():
    lines = ["ä b", "", "c\r", "\u2028 d"]
    assert distillation_records.unpack(distillation_records.pack(lines)) == lines
    assert distillation_records.unpack(distillation_records.pack([])) == []


def test_what_a_difference_looks_like():
    found = {"mean": 1.25, "interval": (0.5, 2.0), "p": [0.001, 0.02]}
    assert distillation_text.difference(found) == "+1.25 [+0.50, +2.00] (p 0.001 to 0.020)"
    assert distillation_text.difference({**found, "interval": None, "p": [0.5]}) == (
        "+1.25 (p 0.500)"
    )
    assert distillation_text.difference(None) == "-"
