"""Pre-train masked language models, fine-tune them on GLUE, and compare (see reproduce.sh)."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path

import glue_data
import glue_options
import glue_records
import glue_report
import glue_run
import glue_tasks
import start
from common import ask_fairseq, entry, launch, stage_text, stage_train
from common.launch import Job
from common.steps import say
from glue_flags import (
    fixed_flags,
    model_flags,
    place,
    plan,
    pretrain_seed,
    pretraining,
    settings_hash,
    sha256,
    start_of,
)
from glue_options import NAME, Glue
from glue_records import Key, Record
from glue_report import Result, System
from glue_tasks import TASKS

from macaron_fairseq.common import files, signals

HERE = Path(__file__).resolve().parent

# --- The stages ----------------------------------------------------------------------------------


def run(words: Sequence[str]) -> None:
    """The stages that the command line names."""
    glue = glue_options.read(words)
    recipe = glue.recipe
    if not recipe.dry_run:
        recipe.work.mkdir(parents=True, exist_ok=True)
    # What cannot be trained is refused before hours of work on text.
    devices = stage_train.plan(recipe) if "train" in recipe.stages else None
    if glue.pretrained and {"prepare", "finetune"} & {*glue.stages}:
        refuse_unfit(glue, glue.pretrained)
    if "finetune" in glue.stages:
        refuse_unknown_flags(glue)
    failure: SystemExit | None = None
    for stage in glue.stages:
        if stage == "prepare":
            assert glue.folder
            for name in glue.tasks:  # what is wrong with them is told before hours of work on text
                glue_tasks.load(TASKS[name], glue.folder, glue.is_usual, lambda notice: None)
            if glue.codes and glue.dictionary:
                stage_text.take(recipe, glue.codes, glue.dictionary)
            else:
                stage_text.prepare(recipe)
            glue_data.prepare(recipe, glue.folder, glue.tasks, glue.is_usual)
        elif stage == "pretrain":
            assert devices
            stage_train.train(recipe, devices)
        elif stage == "finetune":
            jobs = jobs_left(glue)
            try:
                finetune(glue, jobs)
            except SystemExit as end:  # told once what is done was reported
                if end.code in signals.STATUSES:
                    raise
                failure = end
        else:
            try:
                report(glue)
            except SystemExit as end:  # where no run is done, that one failed says more
                raise end if end.code in signals.STATUSES else failure or end from None
    if failure:
        raise failure


def refuse_unknown_flags(glue: Glue) -> None:
    """End the program at what fairseq refuses in fine-tuning, now and not in each of its runs.

    Flags of the pre-training are asked about, too, though there may be none: a typo in one of the
    network would be left out, and another network be trained.
    """
    recipe = glue.recipe
    lost = [word for word in recipe.extra if word.startswith("--") and not model_flags([word])]
    if glue.pretrained and lost:
        sys.exit(
            f"{lost[0]} is for the pre-training, and with --pretrained there is none: what "
            "fine-tuning goes by is in finetuning.yaml"
        )
    of_both = [fixed_flags(glue)]
    if "train" not in recipe.stages:
        of_both.insert(0, [*recipe.benchmark.training.words(), *recipe.extra])
    asked = [(recipe.archs, [*recipe.data_flags, *flags], False, list[str]()) for flags in of_both]
    if reason := ask_fairseq.apart(ask_fairseq.first_unknown, asked):
        sys.exit(reason)


def refuse_unfit(glue: Glue, model: Path) -> None:
    """End the program where no run could start from the checkpoint of --pretrained.

    A flag that the sentence names is given as the recipe takes it.
    """
    recipe, taken = glue.recipe, glue.recipe.data / "data-bin" / "dict.txt"
    dictionary = glue.dictionary if "prepare" in glue.stages else taken
    if not (dictionary and dictionary.is_file()):
        return  # stages say what is not prepared
    [arch] = recipe.archs
    flags = ["--max-positions", str(recipe.block), *model_flags(recipe.extra)]
    outputs = sorted({TASKS[name].outputs for name in glue.tasks})
    reason = ask_fairseq.apart(glue_run.why_unfit, model, dictionary, arch, flags, outputs)
    reason = reason.replace("give --max-positions", "give --tokens-per-sample")
    if reason:
        sys.exit(reason.replace("give --encoder-", "give -- --encoder-"))


def jobs_left(glue: Glue) -> list[Job]:
    """All runs that no record tells of, seed by seed, so that what is done is always balanced.

    Ends the program where what is done was made with other options, text or start.
    """
    records = keep(glue)
    keys = [
        Key(arch, not glue.from_scratch, name, f"{rate:g}", seed)
        for seed, name, arch, rate in product(
            glue.seeds, glue.tasks, glue.recipe.archs, glue.setting.learning_rates
        )
    ]
    known, left = [records[x] for x in keys if x in records], [x for x in keys if x not in records]
    for one in known:  # all, before a plan is written
        if not is_of(glue, one):
            sys.exit(
                f"{glue.records} holds a run of {one.task}, {one.arch}, rate {one.rate}, "
                f"seed {one.seed} with other options, text or start: name another file"
            )
    refuse_mixed(glue, known)
    plans = {key: plan(glue, key) for key in left}
    for key, asked in plans.items():
        refuse_other_result(place(glue, key) / "result.json", asked)
    jobs = [job(glue, key, asked) for key, asked in plans.items()]
    if known:
        say(NAME, f"{len(known)} runs are taken from {glue.records}")
    return jobs


def finetune(glue: Glue, jobs: Sequence[Job]) -> None:
    """Do the runs that are not done; ends the program if one failed, once the others are done."""
    launch.Runner(NAME, glue.jobs, partial(keep, glue), shown).finish(jobs)


def refuse_other_result(path: Path, asked: glue_run.Plan) -> None:
    """End the program at a finished run of other options or another start: it is not this one."""
    if path.is_file() and glue_run.identity_of(path) != (asked.settings, asked.start):
        sys.exit(
            f"{path} was made with other options, text or start than these: give those, or another "
            "--work, or remove it"
        )


def job(glue: Glue, key: Key, asked: glue_run.Plan) -> Job:
    """What makes one run; its plan is written."""
    folder = place(glue, key)
    glue_run.plan_of(folder, asked)
    label = f"{key.task}, {key.arch}, learning rate {key.rate}, seed {key.seed}"
    words = start.command(str(HERE / "glue_run.py"), str(folder))
    return Job(label, words, folder / "run.log", folder / "result.json")


def shown(path: Path) -> str:
    """The scores of a finished run, in short."""
    content = json.loads(path.read_text("utf-8"))
    scores = ", ".join(f"{name} {value:.1f}" for name, value in content["scores"].items())
    return f"{scores} ({launch.span(content['seconds'])}, {content['updates']} updates)"


# --- What is finished ----------------------------------------------------------------------------

# What a record has of a run's result.json.
OF_RUN = {
    "scores",
    "settings",
    "start",
    "pretraining",
    "updates",
    "seconds",
    "date",
    "environment",
}


def is_of(glue: Glue, one: Record) -> bool:
    """Whether a record is of a run with these options and this text.

    And of the model that was pre-trained here, if one was, else of one with these settings.
    """
    if one.settings != settings_hash(glue, one.key):
        return False
    model = start_of(glue, one.key)
    if not model:
        return not one.start
    if model.is_file():
        return one.start == sha256(model)
    return bool(one.start) and one.pretraining == pretraining(glue, one.key)


def refuse_mixed(glue: Glue, found: Iterable[Record]) -> None:
    """End the program where runs start from different models of one pre-training."""
    first: dict[tuple[str, int], Record] = {}
    for one in found:
        if one.pretrained:
            other = first.setdefault((one.arch, pretrain_seed(glue, one.seed)), one)
            if other.start != one.start:
                sys.exit(
                    f"{one.task}, seed {one.seed} and {other.task}, seed {other.seed} of "
                    f"{one.arch} start from different pre-trained models: remove the runs of one"
                )


def by_system(glue: Glue) -> dict[System, list[Key]]:
    """All runs, pre-trained and from scratch."""
    each = [*product(glue.tasks, glue.seeds, glue.setting.learning_rates)]
    return {
        System(arch, x): [Key(arch, x, name, f"{rate:g}", seed) for name, seed, rate in each]
        for x, arch in product((True, False), glue.recipe.archs)
    }


def finished(glue: Glue) -> Iterator[tuple[Record, Result]]:
    """The runs that are done here, whatever they were made with."""
    for key in chain(*by_system(glue).values()):
        path = place(glue, key) / "result.json"
        content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        if content.keys() >= OF_RUN:  # else of an older version
            record = Record(**key._asdict(), **{x: content[x] for x in OF_RUN})
            yield record, Result(key.task, key.seed, key.rate, record.scores, content["answers"])


def keep(glue: Glue) -> dict[Key, Record]:
    """Add the runs that are done here to those of --records; returns all of that file."""
    if not glue.records:
        return {}
    glue_records.add(glue.records, (one for one, _ in finished(glue) if is_of(glue, one)))
    return glue_records.read(glue.records)


def report(glue: Glue) -> None:
    """The table of what was fine-tuned, with and without pre-training; and the files to upload."""
    recorded = [
        (one, Result(one.task, one.seed, one.rate, one.scores)) for one in keep(glue).values()
    ]
    found: dict[Key, list[tuple[Record, Result]]] = {}  # here, and then in the records
    for record, result in [*finished(glue), *recorded]:
        found.setdefault(record.key, []).append((record, result))
    runs: dict[System, list[Result]] = {}
    for system, keys in by_system(glue).items():
        own = [found[key] for key in keys if key in found]
        fitting = [[x for x in several if is_of(glue, x[0])][:1] for several in own]
        if others := fitting.count([]):
            say(
                NAME,
                f"{system.file}: {others} of {len(own)} finished runs were made with other "
                "options, text or pre-training and are left out",
            )
        taken = [x for one in fitting for x in one]
        refuse_mixed(glue, [record for record, _ in taken])
        if taken:
            runs[system] = [result for _, result in taken]
    if not runs:
        sys.exit(f"{glue.recipe.work} holds no finished run of these: run the stage finetune first")
    for system, results in runs.items():
        if len(results) < len(keys):
            say(NAME, f"partial: {system.file} has {len(results)} of {len(keys)} runs")
    examples = {name: glue_data.examples(glue.recipe, name) for name in glue.tasks}
    out = glue.recipe.work / "report"
    files.show(glue_report.write(runs, examples, HERE / "published.json", out))


def main(words: Sequence[str]) -> None:
    """Do what the command line says; every mistake is one sentence and a status of 1."""
    with entry.refusals(NAME):
        run(words)


if __name__ == "__main__":
    main(sys.argv[1:])
