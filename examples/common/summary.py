"""What a recipe ends with: scores, where the report is, and commands to paste."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from shlex import split
from typing import Any

from common.recipe import Recipe
from common.steps import Words, shown
from macaron_fairseq.common.markdown import spread


def summary(recipe: Recipe) -> str:
    """Some ten lines; the rest is in the report's file."""
    runs = [recipe.run(arch, recipe.seeds[0]) for arch in recipe.archs]
    models = [here(run / recipe.checkpoint_name) for run in runs]
    data: Words = ["--data", here(recipe.data)]
    translate: Words = ["macaron-fairseq", "translate", *data, "--path", models[-1]]
    decode = split(recipe.benchmark.evaluation.decode)
    for flag in ("--beam", "--lenpen", "--max-len-a", "--max-len-b"):  # as what was scored
        if flag in decode:
            translate += [flag, decode[decode.index(flag) + 1]]
    dynamics: Words = ["macaron-fairseq", "dynamics", *data, "--path", *models]
    dynamics += ["-o", here(recipe.work / "dynamics")]
    read: Words = ["less", here(recipe.work / "report" / "report.md")]
    if page := next((recipe.work / "report").glob("*.html"), None):
        read = ["python3", "-m", "webbrowser", "-t", here(page)]
    if len(recipe.seeds) == 1:
        seeds = "one seed: a difference says nothing about the scheme"
    else:
        seeds = f"mean and standard deviation of {len(recipe.seeds)} seeds"
    lines = [f"Scores, {seeds}", *scores(recipe)]
    commands = {
        "The whole report": read,
        "Translate, a line each": translate,
        "What the layers do to the tokens": dynamics,
    }
    for what, words in commands.items():
        lines += [f"{what}:", f"  {shown(words)}"]
    return "\n".join(lines)


def scores(recipe: Recipe) -> list[str]:
    """A line for each architecture and test set."""
    width = max(map(len, recipe.archs))
    lines = []
    for test in recipe.tests:
        for arch in recipe.archs:
            found = [
                {x["metric"]: x["score"] for x in scores_of(recipe.run(arch, seed) / test)}
                for seed in recipe.seeds
            ]
            row = ", ".join(
                f"{metric} {spread([one[metric] for one in found])}" for metric in found[0]
            )
            name = f"{test}  " * (len(recipe.tests) > 1)
            lines.append(f"  {name}{arch:<{width}}  {row}")
    return lines


def scores_of(folder: Path) -> list[dict[str, Any]]:
    """What `macaron-fairseq score` wrote of a test set."""
    return json.loads((folder / "scores.json").read_text("utf-8"))["scores"]


def rounded(scores: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The scores by metric, as records have them."""
    return {x["metric"]: round(x["score"], 4) for x in scores}


def here(path: Path) -> str:
    """A path as one types it: from the current folder, if it is below that."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
