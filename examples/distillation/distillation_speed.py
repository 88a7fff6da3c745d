"""What a model is worth in use: the size of its int8 export, its speed on one core, its scores."""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import split
from typing import Any

import distillation_records
from common.launch import only_one
from common.stage_evaluate import generate
from common.steps import Words, call, hold, logged, say
from common.tasks import Task
from distillation_systems import SystemRecipe

from macaron_fairseq.commands import searching
from macaron_fairseq.common import environment, files, text_lines
from macaron_fairseq.evaluation.scores import metrics
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import DataFolder, Tokens
from macaron_fairseq.translation import translator
from macaron_fairseq.translation.ctranslate2_engine import CTranslate2Engine
from macaron_fairseq.translation.translator import Batching, Engine, Search

REPETITIONS = 3
BATCH = 64  # sentences
# Held by whatever is timed on this machine, in whichever --work. Of other users the load tells: the
# system may refuse them a file of ours in the temporary folder.
LOCK = Path(tempfile.gettempdir()) / f"macaron-fairseq-timing-{os.getuid()}.lock"
GENERATE = "fairseq-generate, beam"
# What fairseq-generate says at its end. The time is that of its search alone.
TRANSLATED = re.compile(
    r"Translated [\d,]+ sentences \([\d,]+ tokens\) in .* \(([\d,.]+) sentences/s"
)


def time_it(task: Task, recipe: SystemRecipe) -> None:
    """Export to int8, translate the task's test set on one core, and keep speeds and scores.

    Both engines search greedily and as the task says. fairseq-generate searches as the task says,
    by fairseq's own search. This is one job, since other jobs on the machine would slow it down. It
    waits for other timings, and writes down how busy the machine was.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # which both engines heed; PyTorch is not imported yet
    own_lock = recipe.speed.with_suffix(".lock")
    with only_one(own_lock), hold(LOCK, waits=True):
        checkpoint = files.sha256(recipe.checkpoint)
        if distillation_records.load(recipe.speed).get("checkpoint") == checkpoint:
            return
        folder = recipe.folder_of_run / "int8"
        words: Words = ["macaron-fairseq", "export", "--path", recipe.checkpoint]
        words += ["--data", recipe.data, "--quantization", "int8", "--force", "-o", folder]
        words += ["--reduce-range"] * environment.cpu_lacks_vnni()
        call(words)
        data = data_folder.read(recipe.data)
        wanted = search(recipe.benchmark.evaluation.decode)
        # Here, since its imports take seconds.
        from macaron_fairseq import plugin as plugin
        from macaron_fairseq.translation import fairseq_engine

        before = os.getloadavg()[0]
        engines: dict[str, Engine] = {
            "fairseq": fairseq_engine.load(str(recipe.checkpoint), data, wanted, use_gpu=False),
            "int8": CTranslate2Engine(folder, data, wanted),
        }
        result: dict[str, Any] = {
            "system": recipe.system,
            "seed": recipe.seeds[0],
            "checkpoint": checkpoint,
            "bytes": sum(path.stat().st_size for path in folder.iterdir()),
            "machine": machine(environment.hardware(), environment.versions(), with_gpus=False),
            "search": vars(wanted),
        }
        for name, engine in engines.items():
            for how, limits in (("greedy", replace(wanted, beam=1)), ("beam", wanted)):
                engine.set_search(limits)
                found = figures(engine, data, recipe, task.kind.test)
                say(recipe.name, f"{recipe.system}, {name}, {how}: {found}")
                result[f"{name}, {how}"] = found
        result[GENERATE] = {"sentences_per_second": fairseq_generate(recipe, task.kind.test)}
        say(recipe.name, f"{recipe.system}, {GENERATE}: {result[GENERATE]}")
        result["load"] = {"before": before, "after": os.getloadavg()[0]}
        files.write(recipe.speed, files.as_json(result))


def search(decode: str) -> Search:
    """How fairseq-generate searches with these flags."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    searching.add_search(parser)
    return searching.search_of(parser.parse_known_args(split(decode))[0])


def machine(
    hardware: Mapping[str, Any], versions: Mapping[str, str], with_gpus: bool
) -> dict[str, Any]:
    """Where something ran, in short; the GPUs where they took part."""
    wanted = ("python", "torch", "sacrebleu", "ctranslate2", *environment.FAIRSEQ)
    return {
        "cpu": hardware["cpu"],
        "cores": hardware["cores"],
        "gpus": hardware["gpus"] if with_gpus else [],
        "versions": {name: versions[name] for name in wanted if name in versions},
    }


def figures(engine: Engine, data: DataFolder, recipe: SystemRecipe, test: str) -> dict[str, float]:
    """Sentences a second on one core, and the scores.

    The fastest of some repetitions counts. Loading, preprocessing and detokenising do not.
    """
    source, reference = (
        [*text_lines.read_lines(recipe.reference(test, language))] for language in recipe.languages
    )
    encode = data.encoder(data.source)
    lines = [" ".join(encode(line)) for line in source]
    batching = Batching(lines=len(lines), batch_size=BATCH)
    seconds = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        blocks = translator.translate(lines, engine, str.split, joined, batching)
        found = [line for block in blocks for line in block]
        seconds.append(time.perf_counter() - begin)
    hypotheses = data.decode([line.split() for line in found])
    lowercase = "--lowercase" in recipe.score_flags
    return {
        "sentences_per_second": round(len(source) / min(seconds), 2),
        "BLEU": round(metrics.bleu(hypotheses, reference, data.target, lowercase).score, 4),
        "chrF": round(metrics.chrf(hypotheses, reference, lowercase).score, 4),
    }


def fairseq_generate(recipe: SystemRecipe, test: str) -> float:
    """Sentences a second on one core, as fairseq-generate itself says; the fastest of some runs."""
    flags = ["--cpu", *split(recipe.benchmark.evaluation.decode), "--batch-size", str(BATCH)]
    words = generate(recipe, recipe.checkpoint, test, flags, task="translation")
    printed = recipe.folder_of_run / "fairseq-generate.txt"
    log = printed.with_suffix(".log")
    speeds = []
    for _ in range(REPETITIONS):
        with printed.open("wb") as file:
            logged(log, words, stdout=file)
        # fairseq logs to either.
        said = "".join(path.read_text("utf-8", "replace") for path in (printed, log))
        speeds.append(rate(said, log))
    printed.unlink()
    log.unlink()
    return max(speeds)


def rate(text: str, path: Path) -> float:
    """The sentences a second in what fairseq-generate printed; ends the program without any."""
    if not (found := TRANSLATED.search(text)):
        sys.exit(f"{path} does not say how fast fairseq-generate was")
    return float(found[1].replace(",", ""))


def joined(sentences: Sequence[Tokens]) -> list[str]:
    """Tokens as lines."""
    return [" ".join(tokens) for tokens in sentences]
