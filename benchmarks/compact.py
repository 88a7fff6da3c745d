"""Shorten what a benchmark's --json wrote: of repetitions median, least, greatest and number.

The files are rewritten in place; one that is short already stays as it is. What is kept in
`benchmarks/results` is this, not every repetition.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files

# What tells the measurements of a file apart, not what was measured.
KEYS = ("work", "size", "row", "column", "side", "beam", "batch", "length", "types")
DIGITS = 4


def compact(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a file with its repetitions as `figures`: a list of [median, min, max, n]."""
    groups: dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]] = {}
    for one in content["repetitions"]:
        groups.setdefault(tuple((k, one[k]) for k in KEYS if k in one), []).append(one)
    figures = [
        {
            **dict(key),
            **{
                name: summary(x.get(name) for x in found)
                for name in dict.fromkeys(name for x in found for name in x)
                if name not in (*KEYS, "repetition")
                and any(isinstance(x.get(name), int | float) for x in found)
            },
        }
        for key, found in groups.items()
    ]
    rest = {name: value for name, value in content.items() if name != "repetitions"}
    return {**rest, "figures": figures}


def summary(values: Iterable[float | None]) -> list[float]:
    """Median, least, greatest and number of the values of those repetitions that have one."""
    known = [x for x in values if x is not None]
    three = statistics.median(known), min(known), max(known)
    return [*(float(f"{x:.{DIGITS}g}") for x in three), len(known)]


def main() -> None:
    """Shorten the files that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE.json", help="what --json wrote; it is replaced"
    )
    for path in parser.parse_args().files:
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            parser.error(f"{path}: {getattr(error, 'strerror', None) or 'it is not JSON'}")
        if "repetitions" in content:
            files.write(path, json.dumps(compact(content), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
