"""Train causal language models, and compare their perplexities (see reproduce.sh)."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))

import benchmark  # noqa: E402
import options as recipe_options  # noqa: E402
import perplexity  # noqa: E402
import recipe as recipes  # noqa: E402
import stage_evaluate  # noqa: E402
import stage_prepare  # noqa: E402
import stage_text  # noqa: E402
import stage_train  # noqa: E402
import text_recipe  # noqa: E402
import train_command  # noqa: E402
from options import PLUGIN, STAGES, Once, Parser, from_zero  # noqa: E402
from steps import Words, hash_of, hold, logged, made, say, step  # noqa: E402
from text_recipe import TextRecipe  # noqa: E402

from macaron_fairseq.common import files  # noqa: E402

NAME = "language-modeling"
EPILOG = """\
-- FLAG...: further flags of fairseq-train, for all architectures

Run it again after an interruption: finished work is kept, training resumes."""


def parser() -> Parser:
    """What the command line may hold."""
    script = HERE / "reproduce.sh"
    result = recipe_options.new_parser(recipes.header(script), STAGES, EPILOG, script.name)
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
        type=from_zero,
        metavar="N",
        help="tokens before each that is scored, at least (default: half of a sample's)",
    )
    recipe_options.add_training(result)
    return result


def read(words: Sequence[str]) -> tuple[TextRecipe, int]:
    """The recipe of a command line, and the least context of a token that is scored.

    Ends the program with a sentence where the options do not fit, before anything is written.
    """
    own, extra = recipe_options.own_and_flags(words)
    args = parser().parse_intermixed_args(own)
    described = benchmark.read(HERE / "benchmark.yaml")
    fields = text_recipe.of_text(NAME, HERE, described, args, extra)
    stages = ["train"] if args.dry_run else args.stages or list(STAGES)
    if "prepare" in stages and not args.test:
        sys.exit("say what is held back from training: --test NAME, a file or a document in one")
    held_out = {"valid": args.valid, "test": args.test}
    recipe = TextRecipe(**fields, stages=stages, held_out=held_out)
    context = recipe.block // 2 if args.context_window is None else args.context_window
    if context >= recipe.block:
        sys.exit(f"--context-window {context} leaves nothing of a sample of {recipe.block} tokens")
    return recipe, context


def run(words: Sequence[str]) -> None:
    """The stages that the command line names."""
    recipe, context = read(words)
    if not recipe.dry_run:
        recipe.work.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONUTF8"] = "1"
    # What cannot be trained is refused before hours of work on text.
    devices = stage_train.plan(recipe) if "train" in recipe.stages else None
    for stage in recipe.stages:
        if stage == "prepare":
            stage_text.prepare(recipe)
        elif stage == "train":
            assert devices
            stage_train.train(recipe, devices)
        elif stage == "evaluate":
            evaluate(recipe, context)
        else:
            report(recipe, context)


def trained(recipe: TextRecipe, arch: str, seed: int) -> Path:
    """The last checkpoint of a training; ends the program at one of other data or options."""
    run = recipe.run(arch, seed)
    stage_evaluate.check_data(recipe, run)
    checkpoint, done = run / "checkpoint_last.pt", run / "trained"
    asked = train_command.identity(recipe, stage_prepare.fingerprint(recipe.data), arch, seed)
    if not checkpoint.is_file() or not done.is_file():
        sys.exit(f"{run} has not been trained to its end: run the stage train first")
    if done.read_text("utf-8").strip() != asked:
        sys.exit(
            f"{run} was trained with other options, such as --max-update: give each stage the "
            "same, or run the stage train"
        )
    return checkpoint


def scored_from(recipe: TextRecipe, checkpoint: Path, context: int) -> list[str]:
    """What a perplexity is made from."""
    own = [*stage_evaluate.what_evaluates(), files.sha256(checkpoint), str(context)]
    return [*own, str(recipe.block), recipe.benchmark.evaluation.decode, made(recipe.data)]


def evaluate(recipe: TextRecipe, context: int) -> None:
    """Score the test set with the last checkpoint of each training."""
    counts = stage_text.counts(recipe)["test"]
    cpu = [] if stage_train.count_gpus(recipe) else ["--cpu"]
    for arch, seed in product(recipe.archs, recipe.seeds):
        checkpoint, run = trained(recipe, arch, seed), recipe.run(arch, seed)
        words: Words = ["fairseq-eval-lm", recipe.data / "data-bin", "--user-dir", PLUGIN]
        words += ["--path", checkpoint, "--gen-subset", "test", "--sample-break-mode", "none"]
        words += ["--tokens-per-sample", str(recipe.block), "--context-window", str(context)]
        # Several processes would score a part each.
        words += ["--distributed-world-size", "1"]
        words += [*recipe.benchmark.evaluation.decode.split(), *cpu]

        def fill(out: Path, words: Words = words) -> None:
            say(NAME, f"scoring {out.parent.relative_to(recipe.work)}")
            logs = out / "printed.log", out / "eval-lm.log"  # fairseq logs to either
            with logs[0].open("wb") as file:
                logged(logs[1], words, stdout=file)
            said = "".join(log.read_text("utf-8", "replace") for log in logs)
            found = perplexity.of_log(said, counts, context)
            files.write(out / "perplexity.json", files.as_json(asdict(found)))

        with hold(run / "evaluation.lock"):
            step(run / "test", scored_from(recipe, checkpoint, context), fill)


def report(recipe: TextRecipe, context: int) -> None:
    """The table of all training runs, written and printed."""
    counts = stage_text.counts(recipe)["test"]
    found: dict[str, dict[int, perplexity.Perplexity]] = {}
    for arch in recipe.archs:
        for seed in recipe.seeds:
            path = recipe.run(arch, seed) / "test" / "perplexity.json"
            if not path.is_file():
                sys.exit(f"{path} is missing: run the stage evaluate first")
            checkpoint = trained(recipe, arch, seed)
            if made(path.parent) != hash_of(*scored_from(recipe, checkpoint, context)):
                sys.exit(f"{path} is of another checkpoint or options: run the stage evaluate")
            one = perplexity.Perplexity(**json.loads(path.read_text("utf-8")))
            found.setdefault(arch, {})[seed] = one
    text = perplexity.report(found, counts, stage_text.counts(recipe)["train"])
    out = recipe.work / "report"
    content = {
        arch: {seed: asdict(one) for seed, one in seeds.items()} for arch, seeds in found.items()
    }
    files.write_all(
        {
            out / "report.md": text,
            out / "report.json": files.as_json({"test": asdict(counts), "runs": content}),
        }
    )
    files.show(f"\n{text}\nwritten to {out}")


def main(words: Sequence[str]) -> None:
    """Do what the command line says; every mistake is one sentence and a status of 1."""
    with recipes.refusals(NAME):
        run(words)


if __name__ == "__main__":
    main(sys.argv[1:])
