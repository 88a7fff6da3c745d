"""Published scores to set beside one's own."""

import json
from pathlib import Path
from typing import Any

from macaron_fairseq.common.errors import UserError

FIELDS: dict[str, type | tuple[type, ...]] = {
    "arch": str,
    "test": str,
    "metric": str,
    "score": (int, float),
    "source": str,
}


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a JSON file: a list of objects with the fields above.

    Raises:
        UserError: if it cannot be read or has another form.
    """
    try:
        entries = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON file: {error}") from error
    if not isinstance(entries, list):
        raise UserError(f"{path} should hold a list of objects with {', '.join(FIELDS)}")
    for i, entry in enumerate(entries, 1):
        for name, kind in FIELDS.items():
            if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
                raise UserError(
                    f"entry {i} of {path} has no {'number' if name == 'score' else 'text'} "
                    f"'{name}': it should have {', '.join(FIELDS)}"
                )
    return entries
