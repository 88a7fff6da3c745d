"""Writing an experiment's numbers and its picture."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from macaron_fairseq.analysis.particles.perceptron import Perceptron
from macaron_fairseq.common import environment, files


def write(
    folder: Path,
    name: str,
    parameters: dict[str, Any],
    perceptron: Perceptron | None,
    result: Any,
    picture: bytes,
) -> None:
    """Write NAME.png and NAME.json, which holds all that the picture shows and what made it.

    Args:
        folder: is made where it is missing.
        name: the experiment's.
        parameters: by name, as the command line gave them.
        perceptron: with all its weights, so that the run can be repeated from the file.
        result: a dataclass of `experiments`.
        picture: a PNG file.

    Raises:
        UserError: if they cannot be written.
    """
    content = {
        "experiment": name,
        "parameters": parameters,
        "perceptron": asdict(perceptron) if perceptron else None,
        "versions": environment.versions(),
        "results": asdict(result),
    }
    files.write(
        folder / f"{name}.json", json.dumps(content, default=_plain, allow_nan=False) + "\n"
    )
    files.write(folder / f"{name}.png", picture)


def _plain(value: Any) -> Any:
    """Arrays as lists, paths as text; null for NaN, which JSON does not have."""
    if not isinstance(value, np.ndarray):
        return str(value)
    if value.dtype.kind == "f" and np.isnan(value).any():
        return [None if np.isnan(number) else float(number) for number in value]
    return value.tolist()
