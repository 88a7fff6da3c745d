"""A teacher, then students that learn from it in several ways, compared (see reproduce.sh)."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "common"), str(HERE.parent / "many-tasks")]

import distillation_report  # noqa: E402
import launch  # noqa: E402
import many_runs  # noqa: E402
import one_system  # noqa: E402
import options as recipe_options  # noqa: E402
import recipe as recipes  # noqa: E402
import systems  # noqa: E402
import tasks  # noqa: E402
from launch import Job  # noqa: E402
from many_runs import Options, words_of  # noqa: E402
from systems import TEACHER, Settings, SystemRecipe  # noqa: E402
from tasks import Task  # noqa: E402

NAME = "distillation"
STAGES = ("run", "report")
TASKS = "multi30k-en-de tatoeba-en-de"
TEACHER_SEED = 1


def parser() -> argparse.ArgumentParser:
    """What the command line may hold."""
    result = recipe_options.new_parser(
        recipes.header(HERE / "reproduce.sh"),
        STAGES,
        "-- FLAG...: further flags of fairseq-train, for all runs",
        "reproduce.sh",
    )
    add, once = result.add_argument, recipe_options.Once
    add(
        "--tasks",
        type=words_of,
        action=once,
        metavar='"A B"',
        default=TASKS.split(),
        help=f"of ../many-tasks/tasks.yaml (default: {TASKS})",
    )
    add(
        "--systems",
        type=words_of,
        action=once,
        metavar='"A B"',
        help="of distillation.yaml; the first one there and their baselines are trained, too "
        "(default: all)",
    )
    many_runs.add_options(result, NAME, tasks.FILE)
    add(
        "--shards",
        type=recipe_options.above_zero,
        default=1,
        metavar="N",
        help="jobs that share the translation of the training set (default: 1)",
    )
    add(
        "--settings",
        type=Path,
        default=systems.FILE,
        metavar="FILE",
        help=f"default: {systems.FILE.name}",
    )
    return result


def main(words: Sequence[str]) -> None:
    """Do what the command line says; every mistake is one sentence and a status of 1."""
    with recipes.refusals(NAME):
        run(words)


def run(words: Sequence[str]) -> None:
    """The stages that the command line names."""
    own, extra = recipe_options.own_and_flags(words)
    args = parser().parse_intermixed_args(own)
    recipe_options.check_extra(extra, 0)
    settings = systems.read(args.settings)
    names = systems.chosen(settings, args.systems or [*settings.systems])
    chosen = tasks.chosen(tasks.read(args.tasks_file), args.tasks, "--tasks")
    folders = [task.kind.folder for task in chosen]
    options = many_runs.of_runner(args, extra, NAME, folders)
    stages = args.stages or list(STAGES)
    plan = Plan(args, settings, chosen, names, options)
    if "run" in stages:
        plan.run()
    if "report" in stages:
        for task in chosen:
            text = distillation_report.report(task, plan.of(task), options.work / task.name)
            print(text, flush=True)


class Plan:
    """All jobs of a call, in the order in which they need one another."""

    def __init__(
        self,
        args: Any,
        settings: Settings,
        chosen: Sequence[Task],
        names: Sequence[str],
        options: Options,
    ) -> None:
        self.args, self.settings, self.options = args, settings, options
        self.tasks, self.names = chosen, names

    def recipe(self, task: Task, system: str, seed: int) -> SystemRecipe:
        """The recipe of a run."""
        return systems.recipe(task, self.settings, system, seed, self.options)

    def of(self, task: Task) -> list[SystemRecipe]:
        """The teacher and all students of a task."""
        students = [
            self.recipe(task, name, seed) for name in self.names for seed in self.args.seeds
        ]
        return [self.recipe(task, TEACHER, TEACHER_SEED), *students]

    def job(self, what: str, task: Task, system: str, seed: int, result: Path) -> Job:
        """A job of a task."""
        words = one_system.words(what, task, system, seed, self.args.settings, self.options)
        label = {
            "train": f"{task.name} {system} seed {seed}",
            "translate": f"{task.name} translations {system}",
            "join": f"{task.name} translations",
            "time": f"{task.name} {system} seed {seed}, speed",
        }[what]
        name = f"{what}-{system.replace('/', '-of-')}-seed{seed}.log"
        return Job(label, words, self.options.work / "logs" / task.name / name, result)

    def run(self) -> None:
        """Teachers, their translations, students, speeds."""
        for task in self.tasks:
            for recipe in self.of(task):
                self.refuse_other(task, recipe)
        teachers = [(task, self.recipe(task, TEACHER, TEACHER_SEED)) for task in self.tasks]
        self.finish([self.job("train", t, TEACHER, TEACHER_SEED, r.result) for t, r in teachers])
        if any(self.settings.systems[name].reads_translations for name in self.names):
            self.translate()
        students = [
            (task, name, seed, self.recipe(task, name, seed).result)
            for seed in self.args.seeds
            for task in self.tasks
            for name in self.names
        ]
        self.finish([self.job("train", *student) for student in students])
        # One after the other, or they would slow one another down.
        timed = [(task, TEACHER, TEACHER_SEED) for task in self.tasks]
        timed += [(task, name, seed) for task, name, seed, _ in students]
        self.finish([self.job("time", *x, self.recipe(*x).speed) for x in timed], 1)

    def translate(self) -> None:
        """Of each task that has none yet, the teacher's translations."""
        shards = [f"{number}/{self.args.shards}" for number in range(1, self.args.shards + 1)]
        translate, join = [], []
        for task in self.tasks:
            work = self.options.work / task.name
            result = work / "distilled" / "preprocessing.json"
            join.append(self.job("join", task, TEACHER, 0, result))
            if result.is_file():
                one_system.refuse_other_translations(result.parent, self.settings)
            else:
                for shard in shards:
                    path = one_system.shard_path(work, shard)
                    translate.append(self.job("translate", task, shard, 0, path))
        self.finish(translate)
        self.finish(join)

    def refuse_other(self, task: Task, recipe: SystemRecipe) -> None:
        """End the program where a result is there that was made with other settings."""
        if recipe.result.is_file():
            found = json.loads(recipe.result.read_text("utf-8"))
            if found["settings"] != systems.mark(task, self.settings, recipe, self.options):
                sys.exit(
                    f"{recipe.result} was made with other settings than these: give the options "
                    "that it was made with, or another --work"
                )

    def finish(self, jobs: Sequence[Job], at_a_time: int = 0) -> None:
        """Do the jobs that are not done."""
        start = launch.starter(NAME, self.args, self.options.work / "slurm", at_a_time)
        launch.finish(NAME, jobs, at_a_time or self.args.jobs, start, shown)


def shown(path: Path) -> str:
    """What is said of a finished job."""
    if path.suffix != ".json":
        return "done"
    content = json.loads(path.read_text("utf-8"))
    if "distilled" in content:
        found = content["distilled"]
        return f"{found['kept']:,} of {found['sentences']:,} kept"
    if "scores" in content:
        scores = next(iter(content["scores"].values()))
        figures = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
        return f"{figures} ({launch.span(3600 * content['hours'])} in {content['updates']} updates)"
    return f"{content['int8, greedy']['sentences_per_second']:.0f} sentences/s in int8"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
