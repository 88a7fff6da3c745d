"""Experiments with the ideal systems, from their parameters to their files.

The parameters are those of `choices`, by name; the JSON file of a run has them.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from macaron_fairseq.analysis import interactive_page, output
from macaron_fairseq.analysis.particles import choices, movies
from macaron_fairseq.analysis.particles.block import run as block
from macaron_fairseq.analysis.particles.kept_parts import KeptParts
from macaron_fairseq.analysis.particles.metastability import run as metastability
from macaron_fairseq.analysis.particles.outcome import Outcome
from macaron_fairseq.analysis.particles.rescaled import run as rescaled
from macaron_fairseq.analysis.particles.sphere import run as sphere
from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up


def run(
    experiment: str,
    parameters: Mapping[str, Any],
    folder: Path,
    animate: Path | None = None,
    with_page: bool = False,
) -> str:
    """Run an experiment, write its numbers and its picture, and return what it found, in words.

    Args:
        experiment: a name of `EXPERIMENTS`.
        parameters: by name, see `choices`; what is left out has its default.
        folder: for EXPERIMENT.json, which holds all that the picture shows and what made it, and
            for EXPERIMENT.png. The weights of a perceptron are in the former; those of a sweep
            follow from its parameters. While a phase diagram is not complete, its parts are in
            EXPERIMENT.parts there.
        animate: a movie to write as well, of an experiment that has one.
        with_page: whether to write EXPERIMENT.html, too, of an experiment that has one.

    Raises:
        UserError: if there is no such parameter, they do not go together, or a file cannot be
            written.
    """
    usual = choices.defaults(experiment)
    for name in parameters:
        look_up(usual, name, "parameter", experiment)
    parameters = {**usual, **parameters}
    if animate:
        movies.refuse_unwritable(animate)
    if with_page:
        interactive_page.library()  # if it is missing, one is to learn it now
    kept = KeptParts(folder / f"{experiment}.parts")
    found = EXPERIMENTS[experiment](Namespace(**parameters, kept=kept))
    if (animate and not found.movie) or (with_page and not found.page):
        raise UserError(f"{experiment} has no such view: leave out --animate and --page")
    perceptron = found.system.perceptron if found.system else None
    content = {
        "experiment": experiment,
        "parameters": parameters,
        "perceptron": asdict(perceptron) if perceptron else None,
        "code": environment.code(),
        "versions": environment.versions(),
        "results": asdict(found.result),
    }
    contents: dict[str, output.Content] = {
        f"{experiment}.json": content,
        f"{experiment}.png": found.picture,
        f"{experiment}.html": found.page() if with_page and found.page else None,
    }
    numbers, *others = output.write(folder, contents)
    kept.remove()
    names = [path.name for path in others]
    if animate and found.movie:
        movies.write(found.movie(), animate)
        names.append(str(animate))
    wrote = f"wrote {', '.join([str(numbers), *names[:-1]])} and {names[-1]}"
    return "".join(line + "\n" for line in [wrote, *found.lines])


EXPERIMENTS: dict[str, Callable[[Namespace], Outcome]] = {
    **sphere.EXPERIMENTS,
    **block.EXPERIMENTS,
    **rescaled.EXPERIMENTS,
    **metastability.EXPERIMENTS,
}
