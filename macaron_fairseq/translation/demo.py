"""The trained pair that comes with the package: a Transformer and Macaron Net.

`FOLDER` is a data folder (`text.data_folder`) without data sets. It also holds both checkpoints,
phrases of the test set with their references, and about.json. examples/quickstart/make_demo.sh made
it.

Import `macaron_fairseq.plugin` first, which makes fairseq know the models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from macaron_fairseq.common import environment, files, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import DataFolder
from macaron_fairseq.translation import translator

FOLDER = environment.PACKAGE / "demo"
LANGUAGES = ("en", "de")
MODELS = ("transformer", "macaron")
PHRASES = "phrases"  # phrases.en and phrases.de
ABOUT = "about.json"


@dataclass(frozen=True)
class Phrase:
    """A sentence that neither model was trained on."""

    source: str
    reference: str
    translations: dict[str, str]  # by model
    as_reference: dict[str, bool]  # by model: see `is_as_reference`


def checkpoint(model: str) -> Path:
    """Where one of `MODELS` is."""
    return FOLDER / f"{model}.pt"


def phrases_file(language: str) -> Path:
    """The phrases in one of `LANGUAGES`."""
    return FOLDER / f"{PHRASES}.{language}"


def about() -> dict[str, Any]:
    """What is known of the pair: how it was made, updates, parameters, scores on the test set.

    Raises:
        UserError: if the package was installed without it.
    """
    hint = "this installation lacks the demo's models: install the package again"
    return files.read_json(FOLDER / ABOUT, {"models": list}, hint)


def texts(number: int) -> list[list[str]]:
    """The first phrases, and their references.

    Args:
        number: how many; there are 100.

    Raises:
        UserError: if there are fewer, or the package was installed without them.
    """
    found = [[*text_lines.read_lines(phrases_file(x))] for x in LANGUAGES]
    if number > len(found[0]):
        raise UserError(f"there are {len(found[0])} phrases: ask for no more than that")
    return [lines[:number] for lines in found]


def translate(number: int) -> list[Phrase]:
    """The first phrases, translated by both models, on the CPU.

    Args:
        number: how many; there are 100.

    Raises:
        UserError: if there are fewer, or the package was installed without them.
    """
    sources, references = texts(number)
    # Here, since fairseq's import takes seconds: the paths are to be had at once.
    from macaron_fairseq.translation import fairseq_engine

    data = data_folder.read(FOLDER)
    encode = data.encoder(data.source)
    found: dict[str, Sequence[str]] = {}
    for model in MODELS:
        engine = fairseq_engine.load(
            str(checkpoint(model)), data, translator.Search(), use_gpu=False
        )
        blocks = translator.translate(sources, engine, encode, data.decode)
        found[model] = [line for block in blocks for line in block]
    return [
        Phrase(
            sources[i],
            references[i],
            {model: found[model][i] for model in MODELS},
            {model: is_as_reference(found[model][i], references[i], data) for model in MODELS},
        )
        for i in range(number)
    ]


def is_as_reference(translation: str, reference: str, data: DataFolder) -> bool:
    """Whether they are the same, apart from what preprocessing changes: spaces, quotation marks."""
    (seen,) = data.decode([data.encoder(data.target)(reference)])
    return translation == seen
