"""Train causal language models, or students of one, and compare them (see reproduce.sh)."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import language_students
import perplexity
from common import (
    ask_fairseq,
    entry,
    refused_flags,
    stage_evaluate,
    stage_prepare,
    stage_text,
    stage_train,
    student_systems,
    text_recipe,
    train_command,
)
from common import options as recipe_options
from common.options import STAGES, Once, Parser
from common.stage_text import Counts
from common.steps import Words, code, hash_of, hold, logged, made, say, step
from common.text_recipe import TextRecipe
from language_students import StudentRecipe

from macaron_fairseq.commands.arguments import not_negative_integer
from macaron_fairseq.common import files, signals
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.training import manifest, training_log

HERE = Path(__file__).resolve().parent

NAME = "language-modeling"
SCORE = HERE / "score_text.py"
OTHER_SAMPLES: tuple[str, Sequence[str]] = "would train on other samples than are scored", ()
REFUSED: refused_flags.Refused = {
    **refused_flags.REFUSED_ON_TEXT,
    "--sample-break-mode": OTHER_SAMPLES,
    "--add-bos-token": OTHER_SAMPLES,
    "--output-dictionary-size": OTHER_SAMPLES,
}
# Why which runs of students failed; None where there are no students, and a failure ends the
# program.
Failed = dict[str, str] | None
NEEDED = {"statsmodels": "Holm's correction in the report"}
EPILOG = """\
-- FLAG...: further flags of fairseq-train, for all architectures

Run it again after an interruption: finished work is kept, training resumes."""


def parser() -> Parser:
    """What the command line may hold."""
    script = HERE / "reproduce.sh"
    result = recipe_options.new_parser(entry.header(script), STAGES, EPILOG, script.name)
    text_recipe.add_text(result)
    result.add_argument(
        "--test",
        nargs="+",
        action=Once,
        default=[],
        metavar="NAME",
        help="the documents that no model sees, and whose perplexity is reported",
    )
    result.add_argument(
        "--context-window",
        type=not_negative_integer,
        metavar="N",
        help="tokens before each that is scored, at least (default: half of a sample's)",
    )
    language_students.add_options(result)
    recipe_options.add_training(result)
    return result


def read(words: Sequence[str]) -> tuple[list[TextRecipe], int]:
    """The recipes of a command line, and the least context of a token that is scored.

    There is one recipe, or with a teacher one for each way to learn from it.

    Ends the program with a sentence where the options do not fit, before anything is written.
    """
    own, extra = recipe_options.own_and_flags(words)
    args = parser().parse_intermixed_args(own)
    stages = ["train"] if args.dry_run else recipe_options.in_order(args.stages, STAGES)
    refused_flags.check_extra(extra, [], args, stages != ["train"], REFUSED)
    if "prepare" in stages and not args.test:
        sys.exit("say what is held back from training: --test NAME, a file or a document in one")
    recipe = text_recipe.of_text(
        TextRecipe,
        NAME,
        HERE,
        args,
        extra,
        is_scored=stages != ["train"],
        stages=stages,
        held_out={"valid": args.valid, "test": args.test},
    )
    context = recipe.block // 2 if args.context_window is None else args.context_window
    if context >= recipe.block:
        sys.exit(f"--context-window {context} leaves nothing of a sample of {recipe.block} tokens")
    if args.teacher:
        return students(args, recipe, extra), context
    if args.students or args.systems or args.teacher_data:
        sys.exit("students need --teacher CHECKPOINT")
    return [recipe], context


def students(args: Any, recipe: TextRecipe, extra: Sequence[str]) -> list[TextRecipe]:
    """The recipe of each way to learn from a teacher.

    Args:
        args: the options.
        recipe: without a teacher.
        extra: flags of fairseq-train after --.
    """
    if len(recipe.archs) != 1:
        sys.exit("students of one teacher have one architecture: name it by --archs")
    file = args.students or language_students.FILE
    found = language_students.read(file)
    names = student_systems.chosen(found.systems, args.systems or found.systems)
    systems = {name: found.systems[name] for name in names}
    is_trained = "train" in recipe.stages
    if is_trained:
        student_systems.refuse_missing_packages(systems.values())
    if "report" in recipe.stages and found.main and len(recipe.seeds) > 1:
        student_systems.refuse_missing_packages([], NEEDED)
    result: list[TextRecipe] = []
    flags_of = language_students.flags_of(systems, args, recipe.work, is_trained)
    for name, flags in flags_of.items():
        how = systems[name]
        if wrong := refused_flags.refusal(flags, [], refused=REFUSED):
            sys.exit(f"{file}: the flags of {name}: {wrong}")
        student = text_recipe.of_text(
            StudentRecipe,
            NAME,
            HERE,
            args,
            [*flags, *extra],
            is_scored=recipe.stages != ["train"],
            stages=recipe.stages,
            held_out=recipe.held_out,
            merges=how.merges or recipe.merges,
            has_own_bpe=bool(how.merges),
            system=name,
            baseline=how.baseline,
            planned=tuple(found.main),
        )
        result.append(student)
    return result


def run(words: Sequence[str]) -> None:
    """The stages that the command line names."""
    recipes, context = read(words)
    first = recipes[0]
    if not first.dry_run:
        first.work.mkdir(parents=True, exist_ok=True)
    # What cannot be trained is refused before hours of work on text.
    devices = stage_train.plan(first) if "train" in first.stages else None
    failed: Failed = {} if len(recipes) > 1 else None
    for stage in first.stages:
        if stage == "prepare":
            prepare(recipes, devices, failed)
        elif stage == "train":
            assert devices
            train(recipes, devices, failed)
        elif stage == "evaluate":
            evaluate(recipes, context, failed)
        else:
            report(recipes, context, failed)
    if failed:
        sys.exit(
            f"{counted(len(failed), 'run')} failed, as is said above: {', '.join(failed)}; start "
            "it again to try them again"
        )


@contextmanager
def noted(names: Sequence[str], failed: Failed) -> Iterator[None]:
    """Say and note why students' runs failed, so that the others go on; see `Failed`."""
    try:
        yield
    except SystemExit as end:
        if failed is None or end.code in signals.STATUSES:
            raise
        why = end.code if isinstance(end.code, str) else "a command failed"
        failed.update(dict.fromkeys(names, why))
        say(NAME, f"{', '.join(names)} failed: {why}")


def name_of(recipe: TextRecipe, seed: int) -> str:
    """As messages call a run."""
    return f"{recipe.system if isinstance(recipe, StudentRecipe) else NAME} seed {seed}"


def prepare(
    recipes: Sequence[TextRecipe],
    devices: train_command.Devices | None,
    failed: Failed = None,
) -> None:
    """The text of all recipes, once for each number of merges."""
    if devices:
        ask_fairseq.refuse_unknown_flags(
            (recipe, devices)
            for recipe in recipes[1:]
            if not all((run / manifest.NAME).is_file() for run in recipe.runs())
        )
    prepared: set[Path] = set()
    for recipe in recipes:
        if recipe.data in prepared:
            continue
        own = recipe.preparation if isinstance(recipe, StudentRecipe) else recipe
        with noted([name_of(recipe, seed) for seed in recipe.seeds], failed):
            own.work.mkdir(parents=True, exist_ok=True)
            stage_text.prepare(own, recipe.work)
            prepared.add(recipe.data)


def train(
    recipes: Sequence[TextRecipe], devices: train_command.Devices, failed: Failed = None
) -> None:
    """Train what is not trained yet, seed by seed."""
    if not recipes[0].dry_run:
        prepared = [
            x for x in recipes if not {name_of(x, seed) for seed in x.seeds} & {*(failed or ())}
        ]
        language_students.refuse_unfit_teacher(prepared)
    for seed, recipe in product(recipes[0].seeds, recipes):
        if (name := name_of(recipe, seed)) in (failed or ()):
            continue
        if isinstance(recipe, StudentRecipe) and not recipe.dry_run:
            say(NAME, f"student {recipe.system}, seed {seed}")
        with noted([name], failed):
            stage_train.train(replace(recipe, seeds=[seed]), devices)


def rows(recipes: Sequence[TextRecipe]) -> dict[str, tuple[TextRecipe, str]]:
    """Recipe and architecture of each row of the table."""
    return {
        recipe.system if isinstance(recipe, StudentRecipe) else arch: (recipe, arch)
        for recipe in recipes
        for arch in recipe.archs
    }


def trained(recipe: TextRecipe, arch: str, seed: int) -> Path:
    """The last checkpoint of a training; ends the program at one of other data or options."""
    run = recipe.run(arch, seed)
    stage_evaluate.check_data(recipe, run)
    checkpoint, trained_as = run / recipe.checkpoint_name, train_command.trained_as(run)
    asked = train_command.identity(recipe, stage_prepare.fingerprint(recipe.data), arch, seed)
    if not checkpoint.is_file() or not trained_as:
        sys.exit(f"{run} has not been trained to its end: run the stage train first")
    if trained_as != asked:
        sys.exit(
            f"{run} was trained with other options, such as --max-update: give each stage the "
            "same, or run the stage train"
        )
    return checkpoint


def scored_from(recipe: TextRecipe, checkpoint: Path, context: int) -> list[str]:
    """What a perplexity is made from."""
    own = [*stage_evaluate.what_evaluates(), code(SCORE), files.sha256(checkpoint), str(context)]
    return [*own, str(recipe.block), recipe.benchmark.evaluation.decode, made(recipe.data)]


def evaluate(recipes: Sequence[TextRecipe], context: int, failed: Failed = None) -> None:
    """Score the test set with the last checkpoint of each training."""
    cpu = [] if ask_fairseq.count_gpus(recipes[0]) else ["--cpu"]
    for (recipe, arch), seed in product(rows(recipes).values(), recipes[0].seeds):
        if (name := name_of(recipe, seed)) not in (failed or ()):
            with noted([name], failed):
                evaluate_one(recipe, arch, seed, context, cpu)


def evaluate_one(recipe: TextRecipe, arch: str, seed: int, context: int, cpu: list[str]) -> None:
    """Score the test set with the last checkpoint of one training."""
    counts = stage_text.counts(recipe)["test"]
    checkpoint, run = trained(recipe, arch, seed), recipe.run(arch, seed)
    words: Words = [*recipe.data_flags]
    words += ["--path", checkpoint, "--gen-subset", "test", "--sample-break-mode", "none"]
    words += ["--tokens-per-sample", str(recipe.block), "--context-window", str(context)]
    # Several processes would score a part each.
    words += ["--distributed-world-size", "1"]
    # What fits when training fits here. fairseq does not count the context, which it adds.
    own = recipe.block - context
    words += ["--max-tokens", str(recipe.tokens_at_once * own // recipe.block)]
    words += [*recipe.benchmark.evaluation.decode.split(), *cpu]

    def fill(out: Path) -> None:
        say(NAME, f"scoring {out.parent.relative_to(recipe.work)}")
        logs = out / "printed.log", out / "eval-lm.log"  # fairseq logs to either
        score: Words = [sys.executable, "-X", "utf8", SCORE, out / "loss.json"]
        with logs[0].open("wb") as file:
            logged(logs[1], [*score, *words], "fairseq-eval-lm", stdout=file)
        said = "".join(log.read_text("utf-8", "replace") for log in logs)
        loss = json.loads((out / "loss.json").read_text("utf-8"))["loss"]
        found = perplexity.of_loss(loss, said, counts, context)
        files.write(out / "perplexity.json", files.as_json(asdict(found)))

    with hold(run / "evaluation.lock"):
        step(run / "test", scored_from(recipe, checkpoint, context), fill)


def scored(recipe: TextRecipe, arch: str, seed: int, context: int) -> perplexity.Perplexity:
    """The perplexities of a training; ends the program where they are not there, or not these."""
    path = recipe.run(arch, seed) / "test" / "perplexity.json"
    if not path.is_file():
        sys.exit(f"{path} is missing: run the stage evaluate first")
    checkpoint = trained(recipe, arch, seed)
    if made(path.parent) != hash_of(*scored_from(recipe, checkpoint, context)):
        sys.exit(
            f"{path} is of another checkpoint, other options or another version of the code: run "
            "the stage evaluate"
        )
    found = perplexity.Perplexity(**json.loads(path.read_text("utf-8")))
    log = path.parents[1] / "train.log"
    curve = training_log.read(log).valid_curve if log.is_file() else ()
    return replace(found, validation=curve[-1][1]) if curve else found


def report(recipes: Sequence[TextRecipe], context: int, failed: Failed = None) -> None:
    """The table of all training runs that are done, written and printed."""
    first = recipes[0]
    counts = stage_text.counts(first)
    found: dict[str, dict[int, perplexity.Perplexity]] = {}
    others: dict[str, Counts] = {}
    baselines: dict[str, str] = {}
    for name, (recipe, arch) in rows(recipes).items():
        if isinstance(recipe, StudentRecipe) and recipe.baseline:
            baselines[name] = recipe.baseline
        for seed in recipe.seeds:
            if (run := name_of(recipe, seed)) in (failed or ()):
                continue
            with noted([run], failed):
                found.setdefault(name, {})[seed] = scored(recipe, arch, seed, context)
        if recipe.data != first.data and name in found:
            others[name] = stage_text.counts(recipe)["test"]
    if not found:
        sys.exit("no run is done, so there is no table")
    what, folder = "architecture", first.work
    main: tuple[str, ...] = ()
    if isinstance(first, StudentRecipe):
        what, folder, main = "system", first.place, first.planned
    first_name = next(iter(rows(recipes)))
    planned = perplexity.planned(main, baselines, found, first_name)
    text = perplexity.report(
        found, counts["test"], counts["train"], what, baselines, others, first_name, planned
    )
    text += f"\nNot done: {', '.join(failed)}.\n" if failed else ""
    out = folder / "report"
    content = {
        name: {seed: asdict(one) for seed, one in seeds.items()} for name, seeds in found.items()
    }
    kept: dict[str, Any] = {"test": asdict(counts["test"]), "runs": content}
    if planned:
        kept["planned"] = {name: asdict(one) for name, one in planned.items()}
    if others:
        kept["tokens"] = {name: one.tokens for name, one in others.items()}
    files.write_all({out / "report.md": text, out / "report.json": files.as_json(kept)})
    files.show(f"\n{text}\nwritten to {out}")


def main(words: Sequence[str]) -> None:
    """Do what the command line says; every mistake is one sentence and a status of 1."""
    with entry.refusals(NAME):
        run(words)


if __name__ == "__main__":
    main(sys.argv[1:])
