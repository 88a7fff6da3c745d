"""What a model is worth in use: the size of its int8 export, its speed on one core, its scores."""

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import split
from typing import Any

import stage_evaluate
from launch import only_one
from steps import Words, call, say
from systems import SystemRecipe
from tasks import Task

from macaron_fairseq.common import environment, files
from macaron_fairseq.evaluation import metrics
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import Tokens
from macaron_fairseq.translation import translator
from macaron_fairseq.translation.ctranslate2_engine import CTranslate2Engine
from macaron_fairseq.translation.translator import Search

REPETITIONS = 3
BATCH = 64  # sentences
# As fairseq-generate tells it at its end.
SPEED = re.compile(r"Translated [\d,]+ sentences .*\(([\d.,]+) sentences/s")


def time_it(task: Task, recipe: SystemRecipe) -> None:
    """Export to int8, translate the task's test set on one core, and keep speeds and scores."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        sys.exit("speeds are those of one core: set OMP_NUM_THREADS=1")
    with only_one(recipe.speed.with_suffix(".lock"), waits=False):
        if recipe.speed.is_file():
            return
        folder = recipe.folder_of_run / "int8"
        words: Words = ["macaron-fairseq", "export", "--path", recipe.checkpoint]
        words += ["--data", recipe.data, "--quantization", "int8", "--force", "-o", folder]
        words += ["--reduce-range"] * environment.cpu_lacks_vnni()
        call(words)
        result: dict[str, Any] = {"system": recipe.system, "seed": recipe.seeds[0]}
        result["bytes"] = sum(path.stat().st_size for path in folder.iterdir())
        result["fairseq"] = fairseq_generate(recipe, task.kind.test)
        for beam in (1, 5):
            result[f"int8, beam {beam}"] = int8(recipe, folder, task.kind.test, beam)
        files.write(recipe.speed, files.as_json({**result, "machine": machine()}))


def machine() -> dict[str, Any]:
    """Where it ran, shortly."""
    found, versions = environment.hardware(), environment.versions()
    wanted = ("python", "torch", "sacrebleu", "ctranslate2", *environment.FAIRSEQ)
    return {
        "cpu": found["cpu"],
        "gpus": found["gpus"],
        "versions": {name: versions[name] for name in wanted if name in versions},
    }


def fairseq_generate(recipe: SystemRecipe, test: str) -> float:
    """Sentences a second of fairseq-generate in fp32, with the task's search, as it tells itself.

    The time of loading does not count in that.
    """
    out = recipe.folder_of_run / "timed"
    out.mkdir(exist_ok=True)
    number = recipe.tests.index(test)
    flags = [*split(recipe.benchmark.evaluation.decode), "--cpu"]
    stage_evaluate.decoded(recipe, recipe.checkpoint, test, f"test{number or ''}", flags, out)
    text = "".join((out / name).read_text("utf-8") for name in ("generate.log", "generated.txt"))
    found = SPEED.findall(text)
    if not found:
        sys.exit(f"fairseq-generate did not tell its speed; see {out}")
    return float(found[-1].replace(",", ""))


def int8(recipe: SystemRecipe, folder: Path, test: str, beam: int) -> dict[str, float]:
    """Sentences a second of an export on one core, and its scores.

    The fastest of some repetitions counts; loading and preprocessing do not.
    """
    data = data_folder.read(recipe.data)
    source, reference = (
        [*files.read_lines(recipe.data / "reference" / f"{test}.{language}")]
        for language in recipe.languages
    )
    engine = CTranslate2Engine(folder, data, Search(beam=beam))
    encode = data.encoder(data.source)
    lines = [" ".join(encode(line)) for line in source]

    def as_lines(sentences: Sequence[Tokens]) -> list[str]:
        return [" ".join(tokens) for tokens in sentences]

    seconds = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        blocks = translator.translate(
            lines, engine, str.split, as_lines, block_lines=len(lines), batch_size=BATCH
        )
        found = [line for block in blocks for line in block]
        seconds.append(time.perf_counter() - begin)
    hypotheses = data.decode([line.split() for line in found])
    lowercase = "--lowercase" in recipe.score_flags
    figures = {
        "sentences per second": round(len(source) / min(seconds), 2),
        "BLEU": round(metrics.bleu(hypotheses, reference, data.target, lowercase).score, 4),
        "chrF": round(metrics.chrf(hypotheses, reference, lowercase).score, 4),
    }
    say(recipe.name, f"{recipe.system}, int8, beam {beam}: {figures}")
    return figures
