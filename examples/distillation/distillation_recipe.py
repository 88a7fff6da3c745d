"""A teacher, then students that learn from it in several ways, compared (see reproduce.sh)."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import distillation_records
import distillation_refusals as refusals
import distillation_report
import distillation_run
import distillation_systems as systems
import distillation_translations as translations
from common import entry, launch, refused_flags, run_options, student_systems, tasks
from common import options as recipe_options
from common.launch import Job
from common.steps import say
from common.tasks import Task
from distillation_runs import TEACHER_SEED, Runs
from distillation_systems import TEACHER, SystemRecipe

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common import files
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.training import manifest
from macaron_fairseq.text import data_folder

HERE = Path(__file__).resolve().parent

NAME = "distillation"
STAGES = ("run", "report")
TASKS = "multi30k-en-de tatoeba-en-de"
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
        entry.header(HERE / "reproduce.sh"),
        STAGES,
        "-- FLAG...: further flags of fairseq-train, for all runs",
        "reproduce.sh",
    )
    add, add_words = result.add_argument, recipe_options.add_words
    add_words(
        result,
        "--tasks",
        f"tasks to train for, named in ../many-tasks/tasks.yaml (default: {TASKS})",
        TASKS,
    )
    add_words(
        result,
        "--systems",
        "of distillation.yaml; the first one there and their baselines are trained, too "
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
        help=f"teacher, student and systems (default: {systems.FILE.name}); with `base: "
        f"{systems.FILE.name}` in it, FILE says only what differs",
    )
    run_options.add_records(result)
    return result


def main(words: Sequence[str]) -> None:
    """Do what the command line says; every mistake is one sentence and a status of 1."""
    with entry.refusals(NAME):
        run(words)


def run(words: Sequence[str]) -> None:
    """The stages that the command line names."""
    own, extra = recipe_options.own_and_flags(words)
    args = parser().parse_intermixed_args(own)
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
    of_teacher, of_student = (
        {
            task.benchmark.evaluation.average if model.average < 0 else model.average
            for task in chosen
        }
        for model in (settings.teacher, settings.student)
    )
    refused_flags.check_extra(extra, of_teacher | of_student, args)
    systems.refuse_flags(settings, of_teacher, of_student, args.settings)
    folders = [task.kind.folder for task in chosen]
    options = run_options.of_runner(args, extra, NAME, folders)
    stages = args.stages or list(STAGES)
    for task in chosen:
        refusals.refuse_without_metrics(task)
    if "run" in stages:
        options = run_options.on_device(options, args.launcher)
        student_systems.refuse_missing_packages([settings.systems[x] for x in names], NEEDED)
    plan = Plan(Runs(args, settings, names, options), chosen)
    wrong = plan.run() if "run" in stages else []
    if "report" in stages:
        for task in chosen:
            try:
                print(plan.report(task), flush=True)
            except SystemExit as end:  # the other tasks may have results
                if isinstance(end.code, int) and end.code > 128:  # by a signal
                    raise
                # A number is that of a command, which has said why.
                is_told = isinstance(end.code, int)
                wrong.append(f"{task.name}: no report" if is_told else str(end.code))
    if wrong:
        sys.exit("\n".join(wrong))


@dataclass(frozen=True)
class Step:
    """A job, and what other jobs leave without which it cannot begin."""

    job: Job
    needs: Sequence[Path] = ()


class Plan:
    """All jobs of a call, in the order in which they need one another."""

    def __init__(self, runs: Runs, chosen: Sequence[Task]) -> None:
        self.runs, self.args, self.tasks = runs, runs.args, chosen
        self.shards = [f"{i}/{runs.args.shards}" for i in range(1, runs.args.shards + 1)]
        self.not_done: dict[Reason, list[str]] = {x: [] for x in (FAILED, ELSEWHERE, NOT_BEGUN)}

    def run(self) -> list[str]:
        """Data, teachers, their translations, students, speeds.

        Whatever fails, all is done that does not need it.

        Returns:
            what is not done and why, a line for each reason.
        """
        runs = self.runs
        for task in self.tasks:
            refusals.refuse_others(runs, task)
        for task in self.tasks:
            if taken := distillation_records.take(runs.known(task)):
                say(task.name, f"{taken} runs are taken from {self.args.records}")
            self.put_known_teacher(task)
        refusals.refuse_unknown_flags(runs, self.tasks)
        self.attempt([step for task in self.tasks for step in self.preparations(task)])
        for task in self.tasks:
            refusals.refuse_others(runs, task)  # now that there is data
            refusals.refuse_without_teacher(runs, task)
        self.attempt([self.train(task, TEACHER, TEACHER_SEED) for task in self.tasks])
        self.write_translations()
        for task in self.tasks:
            refusals.refuse_others(runs, task)  # now that there are translations
        self.attempt(
            [
                self.train(task, name, seed)
                for seed in self.args.seeds
                for task in self.tasks
                for name in runs.names
            ]
        )
        # A model that is not here cannot be timed.
        timed = [
            self.time(run.recipe)
            for task in self.tasks
            for run in runs.known(task)
            if run.speed or (run.result and run.recipe.checkpoint.is_file())
        ]
        for task in self.tasks:
            distillation_records.remove_stale_speeds(runs.known(task))
        self.attempt(timed, 1)  # one after the other, or they would slow one another down
        return [
            f"{counted(len(labels), 'job')} {what}: {', '.join(labels)}; {then}"
            for (what, then), labels in self.not_done.items()
            if labels
        ]

    def put_known_teacher(self, task: Task) -> None:
        """Put --teacher, if its result is known, where the students that are left look for it."""
        known = self.runs.known(task)[0]
        # Timing looks for it where it was trained.
        for place in (systems.teacher_of(known.recipe.work), known.recipe.checkpoint):
            is_there = place.is_file() and files.sha256(place) == known.result.get("checkpoint")
            if self.args.teacher and known.result and not is_there:
                distillation_run.put(self.args.teacher, place)

    def write_translations(self) -> None:
        """Of each task that has none yet and needs them, the teacher's translations."""
        translate: list[Step] = []
        join: list[Step] = []
        for task in self.tasks:
            if not any(recipe.reads_translations for recipe in self.runs.left(task)):
                continue
            join.append(step := self.join(task))
            teacher = self.runs.known(task)[0].result
            if not step.job.result.is_file():
                translate += [self.translate(task, shard) for shard in self.shards]
            elif teacher:
                folder, model = step.job.result.parent, teacher["checkpoint"]
                translations.refuse_other_translations(folder, self.runs.settings, model)
        self.attempt(translate)
        self.attempt(join)

    # --- Steps -----------------------------------------------------------------------------------

    def preparations(self, task: Task) -> list[Step]:
        """What prepares the data: the teacher's, which has the references, and that to train on."""
        found: dict[Path, Step] = {}
        for recipe in self.runs.of(task):
            is_needed = recipe.system == TEACHER or not recipe.result.is_file()
            result = recipe.data / data_folder.NAME
            if is_needed and not recipe.reads_translations and not result.is_file():
                label = f"{task.name} data, {recipe.merges} merges"
                found.setdefault(result, Step(self.job("prepare", recipe, label, result)))
        return [*found.values()]

    def train(self, task: Task, system: str, seed: int) -> Step:
        """What trains and scores a model."""
        recipe = self.runs.recipe(task, system, seed)
        needs = [recipe.data / data_folder.NAME]
        if recipe.asks_teacher or recipe.reads_translations:
            needs.append(self.runs.teacher(task).result)
        return Step(self.job("train", recipe, named(recipe), recipe.result), needs)

    def translate(self, task: Task, shard: str) -> Step:
        """What writes a share of the teacher's translations."""
        teacher = self.runs.teacher(task)
        result = translations.shard_path(teacher.work, shard)
        label = f"{task.name} translations {shard}"
        return Step(self.job("translate", teacher, label, result, shard), [teacher.result])

    def join(self, task: Task) -> Step:
        """What makes a data folder of all shares."""
        teacher = self.runs.teacher(task)
        result = teacher.work / "distilled" / data_folder.NAME
        needs = [translations.shard_path(teacher.work, shard) for shard in self.shards]
        return Step(self.job("join", teacher, f"{task.name} translations", result), needs)

    def time(self, recipe: SystemRecipe) -> Step:
        """What times a model."""
        return Step(self.job("time", recipe, f"{named(recipe)}, speed", recipe.speed))

    def job(
        self, what: str, recipe: SystemRecipe, label: str, result: Path, shard: str = ""
    ) -> Job:
        """A process of distillation_run.py."""
        options = self.runs.options_of(recipe.system)
        words = distillation_run.words(what, recipe, shard, self.runs.settings, options)
        one = shard.replace("/", "-of-") or f"{recipe.system}-seed{recipe.seeds[0]}"
        name = "join" if what == "join" else f"{what}-{one}"
        return Job(label, words, options.work / "logs" / recipe.name / f"{name}.log", result)

    def attempt(self, steps: Sequence[Step], at_a_time: int = 0) -> None:
        """Do the jobs that are not done and have what they need; the others are remembered."""
        jobs = []
        for step in steps:
            if step.job.result.is_file() or all(path.is_file() for path in step.needs):
                jobs.append(step.job)
            else:
                self.not_done[NOT_BEGUN].append(step.job.label)
        logs = self.runs.options.work / "slurm"
        runner = launch.Runner.of(NAME, self.args, logs, self.keep, shown)
        self.keep()
        found = replace(runner, at_a_time=at_a_time or runner.at_a_time).attempt(jobs)
        for reason, those in zip((FAILED, ELSEWHERE), found, strict=True):
            self.not_done[reason] += [job.label for job in those]

    # --- Results ---------------------------------------------------------------------------------

    def keep(self) -> None:
        """Write the records of what is done."""
        if self.args.records:
            for task in self.tasks:
                here = distillation_records.known(self.runs.of(task), None)
                distillation_records.keep(self.args.records, here)

    def report(self, task: Task) -> str:
        """The report of what is known, without the runs that were made otherwise.

        With --from the data is prepared where no references are known.
        """
        runs, records, settings = self.runs, self.args.records, self.runs.settings
        teacher = runs.teacher(task)
        if runs.options.given and not distillation_records.has_references(teacher, records):
            distillation_run.prepare(teacher)
        why = {run.path: f"made with {what}" for run, what in runs.unlike(task)}
        known = [run for run in runs.known(task) if run.path not in why]
        left_out = [f"left out: {x.name}, {why[x.path]}" for x in runs.known(task) if x.path in why]
        asked = {run.recipe.result for run in runs.known(task)}
        if more := sorted(x.stem for x in teacher.result.parent.glob("*.json") if x not in asked):
            left_out.append(f"done, but not asked for: {', '.join(more)}")
        return distillation_report.report(
            task,
            settings.baseline,
            settings.main,
            known,
            len(self.args.seeds),
            left_out,
            runs.options.work / task.name,
            records,
        )


def named(recipe: SystemRecipe) -> str:
    """A run as messages call it."""
    return f"{recipe.name} {recipe.system} seed {recipe.seeds[0]}"


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
    main(sys.argv[1:])
