"""A recipe: from a benchmark's archives to the table of Macaron Net and the Transformer.

usage: recipe.py FILE [STAGE...] [OPTION...] [-- FLAG...]

FILE is a benchmark.yaml, or a script in its folder; --help begins with its leading comment.
"""

from __future__ import annotations  # an old Python gets as far as a sentence

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import start
from common import entry


def run(file: Path, words: Sequence[str]) -> None:
    """Run the stages that the command line names; mistakes end the program with a sentence."""
    start.take_own_package()
    # These need what `entry.refusals` has looked for.
    from common import ask_fairseq, options, stage_evaluate, stage_prepare, stage_train

    described = file if file.suffix in (".yaml", ".yml") else file.with_name("benchmark.yaml")
    name = file.absolute().parent.name
    recipe = options.read(described, name, entry.header(file), words, file.name)
    if not recipe.dry_run:
        recipe.work.mkdir(parents=True, exist_ok=True)
    if recipe.benchmark.one_gpu and "CUDA_VISIBLE_DEVICES" not in os.environ:
        recipe = replace(recipe, gpus=recipe.gpus and 1)
        if ask_fairseq.has_nvidia():
            os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    # What cannot be trained is refused before hours of work on text.
    devices = stage_train.plan(recipe) if "train" in recipe.stages else None
    for stage in recipe.stages:
        if stage == "prepare":
            stage_prepare.prepare(recipe)
        elif stage == "train":
            assert devices
            stage_train.train(recipe, devices)
        elif stage == "evaluate":
            stage_evaluate.evaluate(recipe)
        else:
            stage_evaluate.report(recipe)


def main(words: Sequence[str]) -> None:
    """Run the recipe; every mistake is one sentence with the recipe's name and a status of 1."""
    file = Path(words[0])
    with entry.refusals(file.absolute().parent.name):
        run(file, words[1:])


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(not sys.argv[1:])
    main(sys.argv[1:])
