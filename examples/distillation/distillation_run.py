"""One job: prepare data, train and score a model, translate for the students, or time a model.

usage: distillation_run.py JSON

The runner, distillation_recipe.py, starts it by start.py as a process, here or as a job of a
cluster; JSON is what `words` writes. It goes on from where an earlier start was ended. A status of
75 says that another process is at the same.
"""

import datetime
import os
import shutil
import sys
from pathlib import Path
from shlex import split
from typing import Any

import distillation_records
import distillation_speed
import distillation_systems as systems
import distillation_translations as translations
import start
from common import (
    benchmark,
    run_options,
    stage_evaluate,
    stage_prepare,
    stage_train,
    tasks,
    train_command,
)
from common.launch import only_one
from common.run_options import Options
from common.steps import made, step
from common.summary import rounded, scores_of
from common.tasks import Task
from common.train_command import Devices
from distillation_systems import TEACHER, Settings, SystemRecipe

from macaron_fairseq.common import environment, files, text_lines
from macaron_fairseq.evaluation.training import manifest, training_log
from macaron_fairseq.text import data_folder
from macaron_fairseq.translation.translator import Search


def prepare(recipe: SystemRecipe) -> None:
    """Prepare the data, unless the teacher writes it."""
    own = recipe.preparation
    own.work.mkdir(parents=True, exist_ok=True)
    stage_prepare.prepare(own, recipe.work)


def train(task: Task, settings: Settings, recipe: SystemRecipe) -> None:
    """Train, score, and keep the result."""
    folder = recipe.folder_of_run
    with only_one(folder / "run.lock"):
        if recipe.result.is_file():
            return
        if recipe.system == TEACHER or recipe.has_own_bpe:
            prepare(recipe)
        teacher = sha256_of_teacher(recipe)
        devices = stage_train.plan(recipe)
        if recipe.given_teacher:
            take(recipe, recipe.given_teacher)
            load = None
        else:
            load = train_and_tell_load(recipe, devices)
        stage_evaluate.evaluate(recipe)
        greedy = decode_greedily(recipe)
        if recipe.system == TEACHER:  # for the students it must stay where it is
            put(recipe.checkpoint, systems.teacher_of(recipe.work))
        scores = {test: scores_of(folder / test) for test in recipe.tests}
        result = {
            "task": task.name,
            "system": recipe.system,
            "seed": recipe.seeds[0],
            "arch": manifest.read(folder, "train again")["arch"],
            "settings": systems.settings_hash(task, settings, recipe),
            "data": distillation_records.fingerprint(recipe.data),
            "references": files.sha256(recipe.reference(recipe.test, recipe.target)),
            "checkpoint": files.sha256(recipe.checkpoint),
            "teacher": teacher,
            "given": recipe.given_teacher is not None,
            "scores": {test: rounded(found) for test, found in scores.items()},
            "greedy": rounded(scores_of(greedy)),
            "hypotheses": {
                "beam": hypotheses(folder / recipe.test),
                "greedy": hypotheses(greedy),
            },
            "signatures": {x["metric"]: x["signature"] for x in scores[recipe.test]},
            **of_training(recipe),
            "load": load,
            "precision": recipe.precision if devices.gpus else "fp32",
            "revision": manifest.trained_by(folder)["revision"],
            "machine": machine(recipe, with_gpus=devices.gpus > 0),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        }
        files.write(recipe.result, files.as_json(result))


def take(recipe: SystemRecipe, given: Path) -> None:
    """Put a given teacher where a training leaves its best checkpoint."""
    files.write(recipe.note_of_given, f"{given}\n")  # first: from here on this is no training
    put(given, recipe.checkpoint)
    data = stage_prepare.fingerprint(recipe.data)
    asked = train_command.identity(recipe, data, recipe.archs[0], recipe.seeds[0])
    train_command.note_trained(recipe.folder_of_run, asked)


def put(checkpoint: Path, place: Path) -> None:
    """Copy a checkpoint, and the manifest that says what it was trained with."""
    if run := manifest.run_of(checkpoint):
        files.write(place.parent / manifest.NAME, (run / manifest.NAME).read_bytes())
    with checkpoint.open("rb") as old, files.written(place) as new:
        shutil.copyfileobj(old, new, 1 << 20)


def of_training(recipe: SystemRecipe) -> dict[str, Any]:
    """What its log says of a training; of a given teacher, which has none here, its size alone."""
    names = "parameters", "updates", "hours", "words_per_second", "valid_curve"
    if not recipe.given_teacher:
        found = training_log.read(recipe.folder_of_run / "train.log")
        return {name: getattr(found, name) for name in names}
    # Here, since its imports take seconds.
    from macaron_fairseq import plugin as plugin
    from macaron_fairseq.translation import fairseq_engine

    data = data_folder.read(recipe.data)
    engine = fairseq_engine.load(str(recipe.checkpoint), data, Search(), use_gpu=False)
    size = sum(parameter.numel() for parameter in engine.models[0].parameters())
    return {**dict.fromkeys(names), "parameters": size}


def machine(recipe: SystemRecipe, with_gpus: bool) -> dict[str, Any]:
    """What trained a model, by its last start; of a given teacher what scores it."""
    if recipe.given_teacher:
        hardware, versions = environment.hardware(), environment.versions()
    else:
        last = manifest.read(recipe.folder_of_run, "train again")["starts"][-1]
        hardware, versions = last["hardware"], last["versions"]
    return distillation_speed.machine(hardware, versions, with_gpus)


def train_and_tell_load(recipe: SystemRecipe, devices: Devices) -> float | None:
    """Train; returns how many processes ran in its last quarter of an hour, if that is known."""
    path, before = recipe.folder_of_run / "load", train_command.trained_as(recipe.folder_of_run)
    stage_train.train(recipe, devices)
    if train_command.trained_as(recipe.folder_of_run) != before:
        files.write(path, f"{os.getloadavg()[2]:.2f}\n")
    return float(path.read_text("utf-8")) if path.is_file() else None


def sha256_of_teacher(recipe: SystemRecipe) -> str:
    """Of what a run learns from: the teacher, or what wrote the translations; "" from neither."""
    if recipe.asks_teacher:
        return files.sha256(systems.teacher_of(recipe.work))
    return translations.translator_of(recipe.data) if recipe.reads_translations else ""


def decode_greedily(recipe: SystemRecipe) -> Path:
    """The folder of the test set translated and scored with beam 1, as small models are used."""
    run, test = recipe.folder_of_run, recipe.test
    flags = [*split(recipe.benchmark.evaluation.decode), "--beam", "1"]
    flags += stage_evaluate.device_flags(recipe)
    folder = run / f"{test}-greedy"
    # What the test set was translated from stands for the model, the data and the code.
    step(
        folder,
        [made(run / test), *flags],
        lambda out: stage_evaluate.decoded(recipe, recipe.checkpoint, test, flags, out),
    )
    return folder


def hypotheses(folder: Path) -> str:
    """The translations of a test set, packed."""
    return distillation_records.pack(text_lines.read_lines(folder / "hypotheses.txt"))


# --- The command line ----------------------------------------------------------------------------


def words(
    what: str, recipe: SystemRecipe, shard: str, settings: Settings, options: Options
) -> list[str]:
    """The command that does one job.

    Args:
        what: prepare, train, translate, join or time.
        recipe: of the run; to translate and to join, the teacher's.
        shard: what is to be translated, as I/N.
        settings: as they were when the runner began; the file may change until the job begins.
        options: that all runs share.
    """
    argument = run_options.as_argument(
        what=what,
        task=recipe.name,
        system=recipe.system,
        seed=recipe.seeds[0],
        shard=shard,
        settings=settings,
        given_teacher=recipe.given_teacher,
        options=options,
    )
    return start.command(__file__, argument)


def main(argument: str) -> None:
    """Do one job; `argument` is the last of `words`."""
    asked = run_options.from_argument(argument)
    options, what = asked["options"], asked["what"]
    task = tasks.chosen(tasks.read(options.file), [asked["task"]], "TASK")[0]
    settings = benchmark.typed(Settings, asked["settings"], "settings")
    teacher = asked["given_teacher"] and Path(asked["given_teacher"])
    recipe = systems.recipe(task, settings, asked["system"], asked["seed"], options, teacher)
    if what == "prepare":
        prepare(recipe)
    elif what == "train":
        train(task, settings, recipe)
    elif what == "translate":
        translations.translate(recipe, settings, asked["shard"])
    elif what == "join":
        translations.join(recipe, settings)
    else:
        distillation_speed.time_it(task, recipe)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].startswith("{"):
        sys.exit(__doc__)
    main(sys.argv[1])
