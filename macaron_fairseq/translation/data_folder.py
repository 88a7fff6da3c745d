"""The data folder: how a model's training data was made from raw text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from macaron_fairseq.common.errors import UserError

EXAMPLE = '{"source": "en", "target": "de", "source_steps": ["normalize", "tokenize"]}'


@dataclass(frozen=True)
class Preprocessing:
    """How a model's training data was made from raw text: languages, and the steps before BPE."""

    source: str
    target: str
    source_steps: list[str]
    target_steps: list[str]


def read_preprocessing(data: Path) -> Preprocessing:
    """What preprocessing.json in a data folder says; target_steps are source_steps by default.

    Raises:
        UserError: if it is missing or lacks something.
    """
    path = data / "preprocessing.json"
    if not path.is_file() and (data.parent / path.name).is_file():
        raise UserError(f"{path} is missing: give {data.parent}, the folder above")
    content: Any = None
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is missing: give the folder that the prepare stage of a recipe made, or "
            f"write the file, like {EXAMPLE}, beside data-bin/ and the BPE merges in code"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        pass  # as bad as other JSON, see below
    if not isinstance(content, dict):
        content = {}
    steps = content.get("source_steps")
    values = content.get("source"), content.get("target"), steps, content.get("target_steps", steps)
    if not all(map(isinstance, values, (str, str, list, list))):
        raise UserError(f"{path} should hold a JSON object like {EXAMPLE}")
    return Preprocessing(*values)


def dictionary_path(data: Path, language: str) -> Path:
    """The dictionary of a language that fairseq-preprocess wrote into the data folder.

    Raises:
        UserError: if it is missing.
    """
    path = data / "data-bin" / f"dict.{language}.txt"
    if not path.is_file():
        raise UserError(
            f"{path} is missing: it is written by fairseq-preprocess and belongs to the model"
        )
    return path
