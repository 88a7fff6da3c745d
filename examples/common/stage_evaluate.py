"""The stages evaluate and report: average, decode every test set, score, set side by side."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from shlex import split

from common import train_command
from common.ask_fairseq import count_gpus
from common.recipe import PLUGIN, Recipe
from common.stage_prepare import CLEAN_FROM, fingerprint
from common.steps import Words, call, code, hash_of, hold, logged, made, say, step
from common.summary import summary
from common.train_command import trained_as
from macaron_fairseq.common import files
from macaron_fairseq.common.wording import counted
from macaron_fairseq.evaluation.scores.metrics import OF_TOKENS
from macaron_fairseq.evaluation.training import manifest, runs


def evaluate(recipe: Recipe) -> None:
    """Score every training."""
    made_of, device = fingerprint(recipe.data), device_flags(recipe)
    for arch, seed in product(recipe.archs, recipe.seeds):
        run = recipe.run(arch, seed)
        check_data(recipe, run)
        if trained_as(run) not in ("", train_command.identity(recipe, made_of, arch, seed)):
            say(recipe.name, f"{run} was trained with other options than these: scored as it is")
        with hold(run / "evaluation.lock"):
            evaluate_one(recipe, run, device)


def device_flags(recipe: Recipe) -> list[str]:
    """What tells fairseq-generate where to compute, and how."""
    if not count_gpus(recipe):
        return ["--cpu"]
    # fairseq-generate knows no bf16, and then computes in fp32.
    return ["--fp16"] * (recipe.precision == "fp16")


def evaluate_one(recipe: Recipe, run: Path, device: list[str]) -> None:
    """Average its checkpoints if that is asked for, translate and score."""
    own, decode = what_evaluates(), split(recipe.benchmark.evaluation.decode)
    checkpoint, decoding = run / recipe.checkpoint_name, "the best checkpoint"
    if recipe.average:
        epochs = last_epochs(run, recipe)
        states = [f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in epochs]
        step(run / "averaged", [*own, *states], lambda out: averaged(epochs, out))
        decoding = f"the mean of the last {recipe.average} checkpoints"
    if not checkpoint.is_file():
        sys.exit(f"{run} holds no {recipe.checkpoint_name}: {what_to_train(run)}")
    checksum, last = files.sha256(checkpoint), run / "checkpoint_last.pt"
    last_checksum = files.sha256(last if last.is_file() else Path(os.devnull))  # of nothing
    if not trained_as(run):
        say(recipe.name, f"{run} has not been trained to its end: scoring what there is")
        decoding += f" of {runs.UNFINISHED}"

    def described(device: list[str]) -> str:
        return f"{decoding}, " + " ".join([*decode, *(x for x in device if x == "--fp16")])

    def inputs(device: list[str]) -> list[str]:
        settings = [described(device), *recipe.score_flags, *device]
        return [*own, checksum, made(recipe.data), *settings]

    of_gpus = [hash_of(*inputs(x)) for x in ([], ["--fp16"])]
    for test in recipe.tests:

        def fill(out: Path, test: str = test) -> None:
            if device == ["--cpu"] and not recipe.cpu:
                say(recipe.name, "no GPU: translating on the CPU, in fp32")
            # What follows names files in the run's folder: the folder may be moved.
            decoded(recipe, checkpoint, test, [*decode, *device], out)
            (out / "checkpoint.sha256").write_text(checksum + "\n")
            (out / "decoding").write_text(described(device) + "\n")
            (out / "generated.sha256").write_text(files.sha256(out / "generated.txt") + "\n")

        # A machine without a GPU, as a cluster's front end, does not replace what one has done.
        if recipe.cpu or device != ["--cpu"] or made(run / test) not in of_gpus:
            step(run / test, inputs(device), fill)
        # What the report wants to find there still.
        (run / test / "last.sha256").write_text(last_checksum + "\n")
        say(recipe.name, f"{run.relative_to(recipe.work)}, {test}:")
        print((run / test / "scores.txt").read_text("utf-8"), end="", flush=True)


def what_to_train(run: Path) -> str:
    """What to do about a checkpoint that is not there."""
    if trained_as(run):
        return f"it was removed or not kept; to train again, remove {run}"
    return "run the stage train first"


def last_epochs(run: Path, recipe: Recipe) -> list[Path]:
    """The checkpoints of the last epochs; ends the program where there are fewer."""
    number = recipe.average
    found = [p for p in run.glob("checkpoint*.pt") if p.stem.removeprefix("checkpoint").isdecimal()]
    epochs = sorted(found, key=lambda p: int(p.stem.removeprefix("checkpoint")))
    if not epochs:
        short = "if it ended within its first one, raise --max-update; else "
        is_short = (run / "checkpoint_last.pt").is_file()
        sys.exit(f"{run} holds no checkpoint of an epoch: {short * is_short}{what_to_train(run)}")
    if len(epochs) < number:
        sys.exit(
            f"{run} holds {counted(len(epochs), 'checkpoint')} of an epoch, and {number} are to be "
            f"averaged: train longer, or average {len(epochs)} at most (--average, or where the "
            "recipe has none, `average` in its file)"
        )
    return epochs[-number:]


def what_evaluates() -> list[str]:
    """Versions and a hash of what translates and scores; with others a test set is done again."""
    folders = "schemes", "model", "fast", "text"
    paths = [path for folder in folders for path in sorted((PLUGIN / folder).glob("*.py"))]
    scores = (
        PLUGIN / "evaluation" / "scores" / f"{x}.py" for x in ("generated", "metrics", "scoring")
    )
    paths += [*scores, PLUGIN / "common" / "workers.py"]
    return [version("sacrebleu"), version("sacremoses"), code(*paths)]


def check_data(recipe: Recipe, run: Path) -> None:
    """End the program at what was trained on other data: it must not be scored with this."""
    trained_on = fingerprint(recipe.data)
    if not (run / manifest.NAME).is_file():
        sys.exit(f"{run} was not trained: run the stage train first")
    known = manifest.read(run, "train again in another --work")
    if known["data"]["fingerprint"] != trained_on:
        sys.exit(
            f"{run} was trained on other data than {recipe.data} holds now: train again in another "
            "--work, or remove it"
        )


def averaged(epochs: list[Path], out: Path) -> None:
    """The mean of these checkpoints."""
    call(["macaron-fairseq", "average", *epochs, "-o", out / "checkpoint.pt"])


def generate(
    recipe: Recipe,
    checkpoint: Path,
    test: str,
    flags: Sequence[str],
    task: str = "macaron_translation",
) -> Words:
    """The command that translates a test set; fairseq's own search is that of `translation`."""
    # All sentences: fairseq drops a last batch whose size is not a multiple of 8 unless told so.
    # Without --post-process: reports count the model's tokens, and `score` joins BPE.
    subset = f"test{recipe.tests.index(test) or ''}"  # as fairseq-preprocess calls it
    words: Words = ["fairseq-generate", *recipe.data_flags]
    words += ["--path", checkpoint, "--task", task, "--gen-subset", subset]
    return [*words, "--required-batch-size-multiple", "1", *flags]


def decoded(recipe: Recipe, checkpoint: Path, test: str, flags: list[str], out: Path) -> None:
    """Translate and score a test set."""
    say(recipe.name, f"translating {test}")
    words = generate(recipe, checkpoint, test, flags)
    with (out / "generated.txt").open("wb") as file:
        logged(out / "generate.log", words, stdout=file)
    words = ["macaron-fairseq", "score", out / "generated.txt", "--target-lang", recipe.target]
    words += ["--test", test, *recipe.score_flags]
    words += ["--reference", recipe.reference(test, recipe.target)]
    if {*recipe.score_flags} & {*OF_TOKENS}:
        words += ["--tokenized-reference", recipe.reference(test, recipe.target, "tokenized")]
    words += ["--hypotheses", out / "hypotheses.txt"]
    with (out / "scores.txt").open("wb") as file:
        call([*words, "--json", out / "scores.json"], stdout=file)


def is_text_of(data: Path, clean: Path) -> bool:
    """Whether a data folder was made of that text.

    A refused `prepare` may have left another one there. Data of before version 0.2 does not say it.
    """
    said = data / CLEAN_FROM
    return not said.is_file() or said.read_text().strip() == made(clean)


def report(recipe: Recipe) -> None:
    """The table of all training runs, next to what others published; prints its main figures."""
    fingerprint(recipe.data)
    for run in recipe.runs():
        check_data(recipe, run)
    title = f"{recipe.name} {recipe.source}-{recipe.target}"
    first = manifest.read(recipe.runs()[0], "run the stage train first")
    # Flags after -- may make it another one than --archs says, such as --macaron-encoder-scheme.
    baseline = runs.trained_arch(first)
    words: Words = ["macaron-fairseq", "report", *recipe.runs(), "--baseline", baseline]
    words += ["--title", title, "-o", recipe.work / "report"]
    clean = recipe.work / "prepare" / "clean"
    train, steps = clean / f"train.{recipe.target}", recipe.benchmark.preprocessing.steps
    # A report counts normalised words.
    if "normalize" in steps and train.is_file() and is_text_of(recipe.data, clean):
        words += ["--train-text", train]
    if published := recipe.benchmark.published:
        by_others = recipe.work / "published.json"
        files.write(by_others, files.as_json(published))
        words += ["--published", by_others]
    call(words, stdout=subprocess.DEVNULL)  # it prints all of it
    print(f"\n{summary(recipe)}", flush=True)
