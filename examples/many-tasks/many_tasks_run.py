"""One run: prepare its task's data, train, decode, score, and write the record.

usage: many_tasks_run.py JSON

The runner (many_tasks.py) starts it as a process, here or as a job of a cluster; JSON is what
`words` writes. It goes on from where an earlier start was ended. A status of 75 says that another
process is at the same run.
"""

import datetime
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import join
from typing import Any

import start
from common import run_options, stage_evaluate, stage_prepare, stage_train, summary, tasks
from common.launch import only_one
from common.run_options import Options
from common.tasks import Setting, Task
from common.train_command import TRAINED
from many_tasks_variants import RunRecipe, Variant, preparation_of, recipe_of

from macaron_fairseq.common import environment, files, text_lines
from macaron_fairseq.evaluation.evidence import records
from macaron_fairseq.evaluation.evidence.records import EDITS, GROUPS, NGRAMS, Items, Run
from macaron_fairseq.evaluation.scores import failures, metrics
from macaron_fairseq.evaluation.training import manifest, training_log
from macaron_fairseq.text import data_folder

KNOWN_DATA = "known-data"  # in the folder of a task: of what data the runs of --records are


def data_of(recipe: RunRecipe) -> str:
    """The beginning of the data's fingerprint, as records have it; "" where it is not known yet."""
    if (recipe.data / data_folder.NAME).is_file():
        return stage_prepare.fingerprint(recipe.data)[:12]
    path = recipe.work / KNOWN_DATA
    return path.read_text("utf-8").strip() if path.is_file() else ""


def refuse_other_data(recipe: RunRecipe) -> None:
    """End the program where the runs of --records are of other data than what was prepared."""
    path = recipe.work / KNOWN_DATA
    if path.is_file() and path.read_text("utf-8").strip() != data_of(recipe):
        sys.exit(
            f"the known runs of {recipe.name} are of other data than {recipe.data}: "
            "give another --records and another --work"
        )


def run(task: Task, recipe: RunRecipe, options: Options, keeps: bool) -> None:
    """Do what is not done of one run."""
    folder = recipe.folder_of_run
    with only_one(folder / "run.lock"):
        if recipe.result.is_file():  # by another process
            return
        stage_prepare.prepare(recipe)
        refuse_other_data(recipe)
        devices = stage_train.plan(recipe)
        if not (devices.gpus or recipe.cpu):  # its settings would be called those of a GPU's run
            sys.exit("this machine has no GPU: give --cpu")
        stage_train.train(recipe, devices)
        if recipe.is_tuning and (tuning := task.kind.tuning):
            stage_evaluate.evaluate(without_tests(recipe, tuning.dev))
            scores = summary.scores_of(folder / tuning.dev)
            files.write(recipe.result, of_tuning(recipe, scores))
        else:
            stage_evaluate.evaluate(recipe)
            records.write(recipe.result, [record(task, recipe, options)])
        if not keeps:
            remove_models(folder)


def without_tests(recipe: RunRecipe, dev: str) -> RunRecipe:
    """The recipe without its test sets but the first, which must be that one."""
    if recipe.tests[0] != dev:
        sys.exit(f"{recipe.name}: {dev} should be the first test set of tasks.yaml")
    kept = ("train", "valid", dev)
    return replace(recipe, sets={name: x for name, x in recipe.sets.items() if name in kept})


def of_tuning(recipe: RunRecipe, scores: Sequence[Mapping[str, Any]]) -> str:
    """What is kept of a run of tuning, as JSON."""
    return files.as_json({"settings": recipe.settings_hash, "scores": scores})


def remove_models(folder: Path) -> None:
    """Remove checkpoints: what a comparison needs is in the record.

    Without its record a run is then made again.
    """
    for path in [*folder.glob("checkpoint*.pt*"), folder / TRAINED]:
        path.unlink(missing_ok=True)
    for name in ("averaged", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)


# --- The record ----------------------------------------------------------------------------------


def record(task: Task, recipe: RunRecipe, options: Options) -> Run:
    """What is kept of a finished run."""
    kind, folder = task.kind, recipe.folder_of_run
    scores, signatures = {}, {}
    for test in recipe.tests:
        found = summary.scores_of(folder / test)
        scores[test] = summary.rounded(found)
        if test == kind.test:
            signatures = {x["metric"]: x["signature"] for x in found}
    training = training_log.read(folder / "train.log")
    if training.updates is None or training.hours is None or training.parameters is None:
        sys.exit(f"{folder}/train.log does not say what was trained: remove {folder}")
    kinds, items = of_items(task, recipe, folder / kind.test)
    looping, cut_off = failed(recipe, folder / kind.test)
    return Run(
        task=task.name,
        scheme=recipe.variant.name,
        seed=recipe.seeds[0],
        metric=kind.metric,
        test=kind.test,
        kinds=kinds,
        items=items,
        scores=scores,
        signatures=signatures,
        settings=recipe.settings_hash,
        data=data_of(recipe),
        updates=training.updates,
        seconds=round(training.hours * 3600),
        parameters=training.parameters,
        environment={
            **environment.summary(),
            **manifest.trained_by(folder),
            **({"gpus": []} if options.cpu else {}),
        },
        command=command(recipe, options),
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        looping=looping,
        cut_off=cut_off,
        preparation=preparation_of(recipe),
    )


def failed(recipe: RunRecipe, folder: Path) -> tuple[int, int | None]:
    """How many translations of a test set loop, and how many reach the maximum length."""
    lines = folder / "hypotheses.txt", recipe.reference(folder.name, recipe.target)
    looping = failures.looping(*([*text_lines.read_lines(path)] for path in lines))
    decoding = (folder / "decoding").read_text("utf-8")
    cut_off = failures.cut_off(folder / "generated.txt", decoding)
    return len(looping), None if cut_off is None else len(cut_off)


def command(recipe: RunRecipe, options: Options) -> str:
    """What makes the run again."""
    words = ["examples/many-tasks/reproduce.sh", "--tasks", recipe.name]
    words += ["--schemes", recipe.variant.name, "--seeds", str(recipe.seeds[0])]
    words += ["--cpu"] * options.cpu
    words += ["--max-update", str(options.max_update)] if options.max_update else []
    words += ["--max-tokens", str(options.max_tokens)] if options.max_tokens else []
    # Folders of a machine are left out; a user has others.
    words += ["--from", "FOLDER"] if options.given else []
    words += ["--tasks-file", options.file.name] if options.file != tasks.FILE else []
    words += ["--sizes", "any"] * (not options.is_usual)
    return join([*words, *(["--", *options.extra] if options.extra else [])])


def of_items(
    task: Task, recipe: RunRecipe, folder: Path
) -> tuple[Items, str | list[int] | list[list[int]]]:
    """What the bootstrap needs of the test set and of this run's hypotheses."""
    test, language = task.kind.test, recipe.target
    metric = metrics.BY_TITLE[task.kind.metric]
    kind = "tokenized" if metric.of_tokens else "reference"
    path = recipe.reference(test, language, kind)
    references = [*text_lines.read_lines(path)]
    if metric.of_tokens:
        hypotheses = own_tokens(folder, len(references), path)
    else:
        hypotheses = [*text_lines.read_lines(folder / "hypotheses.txt")]
    sha256, lowercase = files.sha256(path), "--lowercase" in recipe.score_flags
    if metric.lower_is_better:
        lengths = records.digits(len(line.split()) for line in references)
        found = records.digits(metrics.edits(hypotheses, references, lowercase))
        return Items(EDITS, len(references), sha256, lengths), found
    sources = [*text_lines.read_lines(recipe.reference(test, recipe.source))]
    counts = metrics.ngram_counts(hypotheses, references, language, metric.of_tokens, lowercase)
    groups = [[0] * 9 for _ in range(GROUPS)]
    for number, counted in zip(clusters(sources), counts, strict=True):
        group = groups[number % GROUPS]
        group[:] = [a + b for a, b in zip(group, counted, strict=True)]
    lengths_of_groups = [group[0] for group in groups]
    return Items(NGRAMS, len(references), sha256, lengths_of_groups), [x[1:] for x in groups]


def own_tokens(folder: Path, expected: int, reference: Path) -> list[str]:
    """The model's own tokens, without BPE marks, in order."""
    from macaron_fairseq.evaluation.scores.generated import best, in_order
    from macaron_fairseq.text.marks import remove_bpe

    path = folder / "generated.txt"
    found = best([*text_lines.read_lines(path)], str(path))
    return remove_bpe(in_order(found, expected, str(path), str(reference)))


def clusters(sources: Sequence[str]) -> list[int]:
    """A number for each line, the same for equal sources: these are not drawn apart."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(line, len(numbers)) for line in sources]


# --- The command line ----------------------------------------------------------------------------


def words(recipe: RunRecipe, options: Options, keeps: bool = False) -> list[str]:
    """The command that does one run."""
    argument = run_options.as_argument(
        task=recipe.name,
        variant=recipe.variant.name,
        seed=recipe.seeds[0],
        setting=recipe.setting,
        options=options,
        is_tuning=recipe.is_tuning,
        keeps=keeps,
    )
    return start.command(__file__, argument)


def main(argument: str) -> None:
    """Do one run; `argument` is the last of `words`."""
    asked = run_options.from_argument(argument)
    options, variant = asked["options"], Variant.parse(asked["variant"])
    task = tasks.chosen(tasks.read(options.file), [asked["task"]], "TASK")[0]
    setting = Setting(**asked["setting"]) if asked["setting"] else None
    recipe = recipe_of(task, variant, asked["seed"], setting, options, asked["is_tuning"])
    try:
        run(task, recipe, options, asked["keeps"])
    except OSError as error:
        where_it_is = f"{error.filename}: " * bool(error.filename)
        sys.exit(f"{task.name}: {where_it_is}{error.strerror or error}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].startswith("{"):
        sys.exit(__doc__)
    main(sys.argv[1])
