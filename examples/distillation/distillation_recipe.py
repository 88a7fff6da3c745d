"""A teacher, then students that learn from it in several ways, compared (see reproduce.sh)."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import distillation_records
import distillation_report
import distillation_run
import distillation_systems as systems
import distillation_translations as translations
import recipe as recipes
from common import ask_fairseq, launch, run_options, student_systems, tasks, train_command
from common import options as recipe_options
from common.launch import Job
from common.run_options import Options
from common.steps import say
from common.tasks import Task
from distillation_records import Run
from distillation_systems import TEACHER, Settings, SystemRecipe

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.training import manifest

HERE = Path(__file__).resolve().parent

NAME = "distillation"
STAGES = ("run", "report")
TASKS = "multi30k-en-de tatoeba-en-de"
TEACHER_SEED = 1
Step = tuple[str, Task, str, int]  # what to do, of which task, system and seed
Reason = tuple[str, str]  # why a job is not done, and what then
FAILED: Reason = "failed", "start it again to try them again"
ELSEWHERE: Reason = "left to another process", "start it again when it has done them"
NOT_BEGUN: Reason = "not begun", "what they need is not there yet"
NEEDED = {
    "ctranslate2": "the export in int8",
    "matplotlib": "the plot of the report",
    "statsmodels": "Holm's correction in the report",
}


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
        type=recipe_options.words_of,
        action=once,
        metavar='"A B"',
        default=TASKS.split(),
        help=f"tasks to train for, named in ../many-tasks/tasks.yaml (default: {TASKS})",
    )
    add(
        "--systems",
        type=recipe_options.words_of,
        action=once,
        metavar='"A B"',
        help="of distillation.yaml; the first one there and their baselines are trained, too "
        "(default: all)",
    )
    run_options.add_options(result, NAME, tasks.FILE)
    add(
        "--teacher",
        type=Path,
        metavar="FILE",
        help="take this checkpoint as the teacher, and train none. A recipe has trained it on the "
        "task's data, and its manifest.json is next to it or one folder above",
    )
    add(
        "--student-updates",
        type=positive,
        metavar="N",
        help="end each student there, and with it the curve of its learning rate (default: as "
        "--max-update, which also ends the teacher)",
    )
    add(
        "--shards",
        type=positive,
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
    add(
        "--records",
        type=Path,
        metavar="FOLDER",
        help="keep a small record of each finished run there; what stands there is not made again",
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
    if args.records and args.records.exists() and not args.records.is_dir():
        sys.exit(f"{args.records}, given by --records, is not a folder")
    if args.teacher and not args.teacher.is_file():
        sys.exit(f"--teacher {args.teacher}: no such checkpoint")
    if args.teacher and not manifest.run_of(args.teacher):
        sys.exit(
            f"--teacher {args.teacher}: no manifest.json, next to it or one folder above, tells "
            "what data it was trained with; see macaron-fairseq manifest --help"
        )
    settings = systems.read(args.settings)
    names = student_systems.chosen(settings.systems, args.systems or settings.systems)
    chosen = tasks.chosen(tasks.read(args.tasks_file), args.tasks, "--tasks")
    if args.teacher and len(chosen) > 1:
        sys.exit("--teacher is a teacher of one task: give that with --tasks")
    averages = [
        task.benchmark.evaluation.average if model.average < 0 else model.average
        for task in chosen
        for model in (settings.teacher, settings.student)
    ]
    recipe_options.check_extra(extra, max(averages))
    folders = [task.kind.folder for task in chosen]
    options = run_options.of_runner(args, extra, NAME, folders)
    stages = args.stages or list(STAGES)
    for task in chosen:
        refuse_without_metrics(task)
    options = run_options.on_device(options, args.launcher)
    if "run" in stages:
        student_systems.refuse_missing_packages([settings.systems[x] for x in names], NEEDED)
    plan = Plan(args, settings, chosen, names, options)
    wrong = plan.run() if "run" in stages else []
    if "report" in stages:
        for task in chosen:
            try:
                print(plan.report(task), flush=True)
            except UserError as error:  # the other tasks may have results
                wrong.append(str(error))
    if wrong:
        sys.exit("\n".join(wrong))


def refuse_without_metrics(task: Task) -> None:
    """End the program where a task is not scored by what the report shows."""
    named, wanted = task.benchmark.evaluation.metrics, distillation_report.METRICS
    if missing := [name for name in wanted if name not in named]:
        sys.exit(
            f"{task.name} is not scored by {' and '.join(missing)}, which this table shows: name "
            f"other --tasks, or add {' '.join(missing).lower()} to the --metric of its score"
        )


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
        self.given: dict[str, Path | None] = {}  # by task, see `given_teacher`
        self.not_done: dict[Reason, list[str]] = {x: [] for x in (FAILED, ELSEWHERE, NOT_BEGUN)}

    def recipe(self, task: Task, system: str, seed: int) -> SystemRecipe:
        """The recipe of a run."""
        if task.name not in self.given:
            self.given[task.name] = self.given_teacher(task)
        given = self.given[task.name]
        return systems.recipe(task, self.settings, system, seed, self.options_of(system), given)

    def given_teacher(self, task: Task) -> Path | None:
        """The checkpoint that is taken as a task's teacher: of this call or of an earlier one."""
        usual = systems.recipe(task, self.settings, TEACHER, TEACHER_SEED, self.options)
        result = distillation_records.known([usual], self.args.records)[0].result
        if not result:
            return self.args.teacher and self.args.teacher.absolute()
        return systems.teacher_of(usual.work) if result.get("given") else None

    def options_of(self, system: str) -> Options:
        """The options of a system's runs: students may end elsewhere than their teacher."""
        if system == TEACHER or not self.args.student_updates:
            return self.options
        return replace(self.options, max_update=self.args.student_updates)

    def of(self, task: Task) -> list[SystemRecipe]:
        """The teacher and all students of a task."""
        students = [
            self.recipe(task, name, seed) for name in self.names for seed in self.args.seeds
        ]
        return [self.recipe(task, TEACHER, TEACHER_SEED), *students]

    def job(self, what: str, task: Task, system: str, seed: int) -> Job:
        """A job of a task."""
        model = TEACHER if what in distillation_run.OF_TASK else system
        recipe, options = self.recipe(task, model, seed), self.options_of(model)
        words = distillation_run.words(
            *(what, task, system, seed, self.args.settings, options, self.given[task.name])
        )
        label, result = {
            "prepare": (
                f"{task.name} data, {recipe.merges} merges",
                recipe.data / "preprocessing.json",
            ),
            "train": (f"{task.name} {system} seed {seed}", recipe.result),
            "translate": (
                f"{task.name} translations {system}",
                translations.shard_path(recipe.work, system),
            ),
            "join": (
                f"{task.name} translations",
                recipe.work / "distilled" / "preprocessing.json",
            ),
            "time": (f"{task.name} {system} seed {seed}, speed", recipe.speed),
        }[what]
        name = f"{what}-{system.replace('/', '-of-')}-seed{seed}.log"
        return Job(label, words, self.options.work / "logs" / task.name / name, result)

    def run(self) -> list[str]:
        """Data, teachers, their translations, students, speeds.

        Whatever fails, all is done that does not need it.

        Returns:
            what is not done and why, a line for each reason.
        """
        for task in self.tasks:
            self.refuse_others(task)
        for task in self.tasks:
            if taken := distillation_records.take(self.known(task)):
                say(task.name, f"{taken} runs are taken from {self.args.records}")
            self.put_known_teacher(task)
        self.refuse_unknown_flags()
        self.attempt([step for task in self.tasks for step in self.preparations(task)])
        for task in self.tasks:
            self.refuse_others(task)  # now that there is data
            self.refuse_without_teacher(task)
        self.attempt([("train", task, TEACHER, TEACHER_SEED) for task in self.tasks])
        self.translate()
        for task in self.tasks:
            self.refuse_others(task)  # now that there are translations
        self.attempt(
            [
                ("train", task, name, seed)
                for seed in self.args.seeds
                for task in self.tasks
                for name in self.names
            ]
        )
        # One after the other, or they would slow one another down. A model that is not here cannot
        # be timed.
        timed: list[Step] = [
            ("time", task, run.recipe.system, run.recipe.seeds[0])
            for task in self.tasks
            for run in self.known(task)
            if run.speed or (run.result and run.recipe.checkpoint.is_file())
        ]
        for task in self.tasks:
            distillation_records.remove_stale_speeds(self.known(task))
        self.attempt(timed, 1)
        return [
            f"{counted(len(labels), 'job')} {what}: {', '.join(labels)}; {then}"
            for (what, then), labels in self.not_done.items()
            if labels
        ]

    def preparations(self, task: Task) -> list[Step]:
        """What prepares the data: the teacher's, which has the references, and that to train on."""
        found: dict[Path, Step] = {}
        for recipe in self.of(task):
            is_needed = recipe.system == TEACHER or not recipe.result.is_file()
            if is_needed and not recipe.reads_translations:
                step: Step = ("prepare", task, recipe.system, recipe.seeds[0])
                if not (result := self.job(*step).result).is_file():
                    found.setdefault(result, step)
        return [*found.values()]

    def translate(self) -> None:
        """Of each task that has none yet and needs them, the teacher's translations."""
        shards = [f"{number}/{self.args.shards}" for number in range(1, self.args.shards + 1)]
        translate: list[Step] = []
        join: list[Step] = []
        for task in self.tasks:
            if not any(recipe.reads_translations for recipe in self.left(task)):
                continue
            join.append(step := ("join", task, TEACHER, 0))
            teacher = self.known(task)[0].result
            if not (result := self.job(*step).result).is_file():
                translate += [("translate", task, shard, 0) for shard in shards]
            elif teacher:
                found = teacher["checkpoint"]
                translations.refuse_other_translations(result.parent, self.settings, found)
        self.attempt(translate)
        self.attempt(join)

    def known(self, task: Task) -> list[Run]:
        """What is known of a task's runs, here and by --records."""
        return distillation_records.known(self.of(task), self.args.records)

    def left(self, task: Task) -> list[SystemRecipe]:
        """The runs that are not done here."""
        return [recipe for recipe in self.of(task) if not recipe.result.is_file()]

    def unlike(self, task: Task, precision: str = "") -> list[tuple[Run, str]]:
        """The runs that do not belong together, and why; see `distillation_records.unlike`."""
        known = self.known(task)
        marks = [systems.mark(task, self.settings, run.recipe, self.options) for run in known]
        return distillation_records.unlike(known, marks, precision)

    def refuse_unknown_flags(self) -> None:
        """End the program where fairseq-train would refuse a run that has not begun."""
        is_for_here = self.args.launcher == "local"  # else for other machines' devices
        trained = []
        for recipe in [recipe for task in self.tasks for recipe in self.left(task)]:
            is_new = not (recipe.folder_of_run / manifest.NAME).is_file()
            if is_new and not recipe.given_teacher:
                gpus = min(1, ask_fairseq.count_gpus(recipe)) if is_for_here else 0  # a job has one
                devices = train_command.plan(recipe, gpus, os.environ)
                trained.append((replace(recipe, dry_run=not is_for_here), devices))
        ask_fairseq.refuse_unknown_flags(trained)

    def refuse_others(self, task: Task) -> None:
        """End the program where a run is known that was made otherwise than the others."""
        # What a cluster's job has nobody knows here.
        is_left = any(not run.result for run in self.known(task)[1:])
        is_known = self.args.launcher == "local" and is_left
        for run, why in self.unlike(task, self.of(task)[-1].precision if is_known else ""):
            sys.exit(
                f"{run.path} was made with {why}: give the options that it was made with, or "
                "another --work and no such --records"
            )
        if self.args.teacher:
            self.refuse_other_teacher(task, self.args.teacher)
        teacher = self.known(task)[0]
        if not self.args.teacher and not teacher.result and teacher.recipe.note_of_given.is_file():
            sys.exit(
                f"the teacher of {teacher.recipe.work} was given, and is not scored yet: give it "
                "again, with --teacher"
            )

    def refuse_other_teacher(self, task: Task, path: Path) -> None:
        """End the program where --teacher is not the teacher that is known, or had other data."""
        known = self.known(task)[0]
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

    def put_known_teacher(self, task: Task) -> None:
        """Put --teacher, if its result is known, where the students that are left look for it."""
        known = self.known(task)[0]
        # Timing looks for it where it was trained.
        for place in (systems.teacher_of(known.recipe.work), known.recipe.checkpoint):
            is_there = place.is_file() and files.sha256(place) == known.result.get("checkpoint")
            if self.args.teacher and known.result and not is_there:
                distillation_run.put(self.args.teacher, place)

    def refuse_without_teacher(self, task: Task) -> None:
        """End the program where a student cannot be trained since another's teacher is gone."""
        teacher, *students = self.known(task)
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
        for recipe in self.left(task):
            if recipe.asks_teacher or (recipe.reads_translations and not has_translations):
                if not path.is_file() or files.sha256(path) != teacher.result["checkpoint"]:
                    sys.exit(
                        f"{path} is not the teacher of {teacher.path}: give it with --teacher, "
                        f"since {recipe.system} seed {recipe.seeds[0]} needs it"
                    )
                return

    def report(self, task: Task) -> str:
        """The report of what is known, without the runs that were made otherwise.

        With --from the data is prepared where no references are known.
        """
        teacher, records = self.recipe(task, TEACHER, TEACHER_SEED), self.args.records
        if self.options.given and not distillation_records.has_references(teacher, records):
            distillation_run.prepare(teacher)
        why = {run.path: f"made with {what}" for run, what in self.unlike(task)}
        known = [run for run in self.known(task) if run.path not in why]
        left_out = [f"left out: {x.name}, {why[x.path]}" for x in self.known(task) if x.path in why]
        work, baseline = self.options.work / task.name, self.settings.baseline
        main = self.settings.main
        return distillation_report.report(task, baseline, main, known, left_out, work, records)

    def needs(self, what: str, task: Task, system: str, seed: int) -> list[Path]:
        """The files without which a job cannot begin, and which other jobs leave."""
        if what in ("prepare", "time"):
            return []
        teacher = self.recipe(task, TEACHER, TEACHER_SEED)
        if what == "join":
            shards = range(1, self.args.shards + 1)
            return [
                translations.shard_path(teacher.work, f"{i}/{self.args.shards}") for i in shards
            ]
        if what == "translate":
            return [teacher.result]
        recipe = self.recipe(task, system, seed)
        learns = recipe.asks_teacher or recipe.reads_translations
        return [recipe.data / "preprocessing.json", *[teacher.result] * learns]

    def attempt(self, steps: Sequence[Step], at_a_time: int = 0) -> None:
        """Do the jobs that are not done and have what they need; the others are remembered."""
        jobs = []
        for step in steps:
            job = self.job(*step)
            if job.result.is_file() or all(path.is_file() for path in self.needs(*step)):
                jobs.append(job)
            else:
                self.not_done[NOT_BEGUN].append(job.label)
        start = launch.starter(NAME, self.args, self.options.work / "slurm", at_a_time)

        self.keep()
        start = launch.kept_at_once(start, self.keep)
        found = launch.attempt(NAME, jobs, at_a_time or self.args.jobs, start, shown)
        for reason, those in zip((FAILED, ELSEWHERE), found, strict=True):
            self.not_done[reason] += [job.label for job in those]

    def keep(self) -> None:
        """Write the records of what is done."""
        if self.args.records:
            for task in self.tasks:
                here = distillation_records.known(self.of(task), None)
                distillation_records.keep(self.args.records, here)


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
        if content["hours"] is None:  # of a given teacher
            return figures
        return f"{figures} ({launch.span(3600 * content['hours'])} in {content['updates']} updates)"
    if "int8, greedy" not in content:
        return "done"
    return f"{content['int8, greedy']['sentences_per_second']:.0f} sentences/s in int8"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
