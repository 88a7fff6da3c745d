"""Train, score and compare: tasks x schemes x seeds (see reproduce.sh)."""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import many_tasks_records as known
import many_tasks_report as report
import many_tasks_run
from common import entry, launch, refused_flags, run_options, tasks
from common import options as recipe_options
from common.launch import Job
from common.run_options import Options
from common.steps import say
from common.tasks import Setting, Task
from many_tasks_variants import (
    BASELINE,
    HALF_DEPTH,
    Variant,
    points_of,
    recipe_of,
    refuse_overriding,
)

from macaron_fairseq.common import files
from macaron_fairseq.evaluation.scores import p_values
from macaron_fairseq.evaluation.scores.metrics import LOWER_IS_BETTER

HERE = Path(__file__).resolve().parent

NAME = "many-tasks"
STAGES = ("tune", "run", "report", "page")
USUAL = STAGES[:3]
SCHEMES = f"{BASELINE} strang-marchuk"


def parser() -> argparse.ArgumentParser:
    """What the command line may hold."""
    result = recipe_options.new_parser(
        entry.header(HERE / "reproduce.sh"),
        STAGES,
        "-- FLAG...: further flags of fairseq-train, for all runs",
        "reproduce.sh",
        "tune: choose batch and dropout on dev sets; run: train and score; report: compare. "
        "All three by default, but tune only where tasks.yaml has no setting yet. page: draw the "
        "page of the documentation",
    )
    add, add_words = result.add_argument, recipe_options.add_words
    add_words(
        result,
        "--tasks",
        "names of tasks.yaml, or how they begin: g2p, autshumato-en-af (default: g2p)",
        "g2p",
    )
    add_words(
        result,
        "--schemes",
        f"SCHEME, SCHEME/SUBSTEP or SCHEME/SUBSTEP/{HALF_DEPTH} (default: {SCHEMES})",
        SCHEMES,
    )
    run_options.add_options(result, NAME, tasks.FILE)
    run_options.add_records(result, ", and report and page are of it (default: of --work)")
    add("--output", type=Path, metavar="FOLDER", help="of report and page (default: in --work)")
    add("--keep-models", action="store_true", help="keep checkpoints, of runs that end from now on")
    return result


def main(words: Sequence[str]) -> None:
    """Do what the command line says; every mistake is one sentence and a status of 1."""
    with entry.refusals(NAME):
        run(words)


def run(words: Sequence[str]) -> None:
    """The stages that the command line names."""
    own, extra = recipe_options.own_and_flags(words)
    args = parser().parse_intermixed_args(own)
    every_task = tasks.read(args.tasks_file)
    chosen = tasks.chosen(every_task, args.tasks, "--tasks")
    refused_flags.check_extra(extra, {task.benchmark.evaluation.average for task in chosen}, args)
    refuse_overriding(extra)
    variants = [Variant.parse(text) for text in args.schemes]
    if twice := {x.name for x in variants if variants.count(x) > 1}:
        sys.exit(f"--schemes names {twice.pop()} twice")
    stages = args.stages or list(USUAL)
    if {"report", "page"} & {*stages}:
        p_values.require_packages()  # what is missing is noticed here, not after hours of training
    folders = [task.kind.folder for task in chosen]
    options = run_options.of_runner(args, extra, NAME, folders)
    if {"tune", "run"} & {*stages}:
        options.work.mkdir(parents=True, exist_ok=True)
        options = run_options.on_device(options, args.launcher)
    kept = args.records or options.work / "records"

    def keep() -> None:
        if args.records:
            known.keep(chosen, every_task, options, args.records)

    runner = launch.Runner.of(NAME, args, options.work / "slurm", keep, shown)
    families = [*dict.fromkeys(task.family for task in chosen)]
    if "tune" in stages and args.records:  # of all, before anything is kept
        for family in families:
            if tasks.kind_of(family, every_task).tuning:
                known.take_tuning(family, every_task, options, args.records)
    settings: dict[str, Setting | None] = {}
    for family in families:
        settings[family] = setting_of(family, every_task, options, args, stages, runner)
    by_name = {task.name: task for task in chosen}
    failure: SystemExit | None = None
    if "run" in stages:
        if args.records:
            known.take(chosen, variants, args.seeds, settings, options, args.records)
        try:
            train(chosen, variants, settings, options, args, runner)
        except SystemExit as end:  # told once what is done was reported
            if not known.read([*by_name], kept):
                raise
            failure = end
    if "report" in stages:
        out = args.output or options.work / "report"
        report.report(by_name, [x.name for x in variants], args.seeds, kept, out)
    if "page" in stages:
        report.page(by_name, args.tasks, kept, args.output or options.work / "report")
    if failure:
        raise failure


# --- Tuning --------------------------------------------------------------------------------------


def setting_of(
    family: str,
    every_task: dict[str, Task],
    options: Options,
    args: Any,
    stages: Sequence[str],
    runner: launch.Runner,
) -> Setting | None:
    """The setting of a family's runs: that of tasks.yaml, or what was found by tuning here."""
    kind = tasks.kind_of(family, every_task)
    if not kind.tuning or (kind.chosen and "tune" not in args.stages):
        return kind.chosen
    path = options.work / "tuning" / f"{family}.json"
    if "tune" in stages:
        found = tune(family, every_task, options, runner)
        files.write(path, files.as_json(found))
        if kind.chosen and Setting(**found["chosen"]) != kind.chosen:
            say(NAME, f"{family}: runs have {kind.chosen} all the same, as {args.tasks_file} says")
    if kind.chosen:
        return kind.chosen
    if not path.is_file():
        if "run" in stages:
            sys.exit(f"{family} has not been tuned: run the stage tune first")
        return None
    found = files.read_json(path, {"chosen": dict}, known.TUNE_AGAIN)
    for point in found.get("points", ()) if "run" in stages else ():
        setting = Setting(point["tokens"], point["dropout"])
        for name, scheme in product(kind.tuning.tasks, kind.tuning.schemes):
            one = every_task[name], Variant.parse(scheme), kind.tuning.seed, setting, options
            known.refuse_other_tuning(recipe_of(*one, is_tuning=True))
    return Setting(**found["chosen"])


def tune(
    family: str, every_task: dict[str, Task], options: Options, runner: launch.Runner
) -> dict[str, Any]:
    """Train at each point of the plan, score on the dev sets, and choose."""
    kind = tasks.kind_of(family, every_task)
    plan = kind.tuning
    assert plan
    best, found = plan.start, {}
    for values in plan.rounds:
        points = points_of(best, values)
        jobs, paths = [], {}
        for point, name, scheme in product(points, plan.tasks, plan.schemes):
            one = every_task[name], Variant.parse(scheme), plan.seed, point, options
            recipe = recipe_of(*one, is_tuning=True)
            known.refuse_other_tuning(recipe)
            paths[point, name, scheme] = path = recipe.result
            label, words = f"tuning {name} {scheme}, {point}", many_tasks_run.words(recipe, options)
            jobs.append(Job(label, words, path.with_name("run.log"), path))
        runner.keep()
        runner.finish(jobs)
        means = {}
        for point in points:
            scores = {
                f"{name} {scheme}": score(paths[point, name, scheme], kind.metric)
                for name in plan.tasks
                for scheme in plan.schemes
            }
            means[point] = statistics.mean(scores.values())
            found[point] = {**asdict(point), "mean": round(means[point], 3), "scores": scores}
        best = best_of(means, kind.metric)
        say(NAME, f"{family}: {best} has the best mean {kind.metric}, {means[best]:.2f}")
    return {
        "family": family,
        "metric": kind.metric,
        "dev": plan.dev,
        "points": [*found.values()],
        "chosen": asdict(best),
    }


def best_of(means: Mapping[Setting, float], metric: str) -> Setting:
    """The setting with the best mean, the first of equal ones."""
    choose = min if metric in LOWER_IS_BETTER else max
    return choose(means, key=lambda point: means[point])


def score(path: Path, metric: str) -> float:
    """A score of a run of tuning."""
    return next(round(x["score"], 4) for x in known.load(path) if x["metric"] == metric)


# --- Runs ----------------------------------------------------------------------------------------


def train(
    chosen: Sequence[Task],
    variants: Sequence[Variant],
    settings: dict[str, Setting | None],
    options: Options,
    args: Any,
    runner: launch.Runner,
) -> None:
    """All runs, seed by seed, so that what is done at any time is balanced."""
    jobs = []
    for seed, task, variant in product(args.seeds, chosen, variants):
        recipe = recipe_of(task, variant, seed, settings[task.family], options)
        known.refuse_others(task, recipe)
        words = many_tasks_run.words(recipe, options, args.keep_models)
        log = options.work / "logs" / task.name / f"{variant.folder}-seed{seed}.log"
        label = f"{task.name} {variant.name} seed {seed}"
        jobs.append(Job(label, words, log, recipe.result))
    runner.keep()
    runner.finish(jobs)


def shown(path: Path) -> str:
    """The scores of a finished run, in short."""
    content = files.read_json(path, {}, "remove it, and run again")
    if "runs" not in content:  # of tuning
        return ", ".join(f"{x['metric']} {x['score']:.2f}" for x in content["scores"])
    line = content["runs"][0]
    scores = ", ".join(f"{name} {x:.2f}" for name, x in line["scores"][content["test"]].items())
    return f"{scores} ({launch.span(line['seconds'])} in {line['updates']} updates)"


if __name__ == "__main__":
    main(sys.argv[1:])
