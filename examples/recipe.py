"""A recipe: from a benchmark's archives to the table of Macaron Net and the Transformer.

usage: recipe.py FILE [STAGE...] [OPTION...] [-- FLAG...]

FILE is a benchmark.yaml, or a script in its folder; --help begins with its leading comment.
"""

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import start

AGAIN = "start it again, and it goes on"
TOOLS = (
    "macaron-fairseq",
    "fairseq-preprocess",
    "fairseq-train",
    "fairseq-generate",
    "subword-nmt",
)


def header(script: Path) -> str:
    """The comment at the top of a file, without what is for shellcheck."""
    lines = script.read_text("utf-8", errors="replace").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = [line for line in lines[:end] if not re.match("#!|# shellcheck", line)]
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment)


def run(file: Path, words: Sequence[str]) -> None:
    """Run the stages that the command line names; mistakes end the program with a sentence."""
    start.take_own_package()
    # These need what `refusals` has looked for.
    from common import ask_fairseq, options, stage_evaluate, stage_prepare, stage_train

    described = file if file.suffix in (".yaml", ".yml") else file.with_name("benchmark.yaml")
    recipe = options.read(described, file.absolute().parent.name, header(file), words, file.name)
    if not recipe.dry_run:
        recipe.work.mkdir(parents=True, exist_ok=True)
    if recipe.benchmark.one_gpu and ask_fairseq.has_nvidia():
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
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
    with refusals(file.absolute().parent.name):
        run(file, words[1:])


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Look for the tools; then a mistake is one sentence that begins with `name`, and status 1."""
    try:
        start.refuse_missing_package()
        for tool in TOOLS:
            if not shutil.which(tool):
                sys.exit(f"{tool} is not on the PATH: install it, or activate its environment")
        yield
    except SystemExit as end:
        if not isinstance(end.code, str):
            if end.code in (128 + signal.SIGTERM, 128 + signal.SIGHUP):
                print(f"{name}: ended by a signal: {AGAIN}", file=sys.stderr, flush=True)
            raise
        print(f"{name}: {end.code}", file=sys.stderr, flush=True)
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " * bool(error.filename)
        print(f"{name}: {where}{error.strerror or error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{name}: interrupted: {AGAIN}", file=sys.stderr, flush=True)
        sys.exit(130)  # as a shell says it


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
