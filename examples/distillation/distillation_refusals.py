"""What ends a call of the recipe before, or between, its jobs."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import distillation_records
import distillation_systems as systems
from common import ask_fairseq, train_command
from common.tasks import Task
from distillation_differences import METRICS
from distillation_runs import Runs

from macaron_fairseq.common import files
from macaron_fairseq.evaluation.training import manifest


def refuse_without_metrics(task: Task) -> None:
    """End the program where a task is not scored by what the report shows."""
    named = task.benchmark.evaluation.metrics
    if missing := [name for name in METRICS if name not in named]:
        sys.exit(
            f"{task.name} is not scored by {' and '.join(missing)}, which this table shows: name "
            f"other --tasks, or add {' '.join(missing).lower()} to the --metric of its score"
        )


def refuse_unknown_flags(runs: Runs, chosen: Sequence[Task]) -> None:
    """End the program where fairseq-train would refuse a run that has not begun."""
    is_for_here = runs.args.launcher == "local"  # else for other machines' devices
    trained = []
    for recipe in [recipe for task in chosen for recipe in runs.left(task)]:
        is_new = not (recipe.folder_of_run / manifest.NAME).is_file()
        if is_new and not recipe.given_teacher:
            gpus = min(1, ask_fairseq.count_gpus(recipe)) if is_for_here else 0  # a job has one
            devices = train_command.plan(recipe, gpus, os.environ)
            trained.append((replace(recipe, dry_run=not is_for_here), devices))
    ask_fairseq.refuse_unknown_flags(trained)


def refuse_others(runs: Runs, task: Task) -> None:
    """End the program where a run is known that was made otherwise than the others."""
    # What a cluster's job has nobody knows here.
    is_left = any(not run.result for run in runs.known(task)[1:])
    is_known = runs.args.launcher == "local" and is_left
    for run, why in runs.unlike(task, runs.of(task)[-1].precision if is_known else ""):
        sys.exit(
            f"{run.path} was made with {why}: give the options that it was made with, or "
            "another --work and no such --records"
        )
    if runs.args.teacher:
        refuse_other_teacher(runs, task, runs.args.teacher)
    teacher = runs.known(task)[0]
    if not runs.args.teacher and not teacher.result and teacher.recipe.note_of_given.is_file():
        sys.exit(
            f"the teacher of {teacher.recipe.work} was given, and is not scored yet: give it "
            "again, with --teacher"
        )


def refuse_other_teacher(runs: Runs, task: Task, path: Path) -> None:
    """End the program where --teacher is not the teacher that is known, or had other data."""
    known = runs.known(task)[0]
    own = known.recipe.folder_of_run / "checkpoint_last.pt"
    if not known.result and own.is_file():
        sys.exit(
            f"{own.parent} has begun to train its own teacher: leave out --teacher, or give "
            "another --work"
        )
    if known.result and known.result["checkpoint"] != files.sha256(path):
        sys.exit(
            f"--teacher {path} is not the teacher of {known.path}: give that one, or another "
            "--work and no such --records"
        )
    here = distillation_records.fingerprint(known.recipe.data)
    theirs = manifest.read(manifest.run_of(path) or path.parent, "give another teacher")
    if here and not theirs["data"]["fingerprint"].startswith(here):
        sys.exit(f"--teacher {path} was trained with other data than {known.recipe.data}")


def refuse_without_teacher(runs: Runs, task: Task) -> None:
    """End the program where a student cannot be trained since another's teacher is gone."""
    teacher, *students = runs.known(task)
    path = systems.teacher_of(teacher.recipe.work)
    if not teacher.result:  # its job would leave this model, or train another one
        own = teacher.recipe.given_teacher or teacher.recipe.checkpoint
        model = files.sha256(own) if own.is_file() else ""
        for student in students:
            if student.result.get("teacher", "") not in ("", model):
                sys.exit(
                    f"{student.path} has learnt from a teacher whose result is not here: give "
                    "the --records that hold it, or that --teacher, or another --work"
                )
        return
    has_translations = (teacher.recipe.work / "distilled").is_dir()
    for recipe in runs.left(task):
        if recipe.asks_teacher or (recipe.reads_translations and not has_translations):
            if not path.is_file() or files.sha256(path) != teacher.result["checkpoint"]:
                sys.exit(
                    f"{path} is not the teacher of {teacher.path}: give it with --teacher, "
                    f"since {recipe.system} seed {recipe.seeds[0]} needs it"
                )
            return
