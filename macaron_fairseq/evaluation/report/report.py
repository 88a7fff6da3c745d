"""Trained and scored models side by side: a report's files (`macaron-fairseq report`)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.report import (
    TITLE,
    against_baseline,
    curves,
    report_page,
    report_text,
    summary,
    verdict,
)
from macaron_fairseq.evaluation.scores.scoring import STDIO
from macaron_fairseq.evaluation.training import runs

# Of a published score.
FIELDS: dict[str, type | tuple[type, ...]] = {
    "arch": str,
    "test": str,
    "metric": str,
    "score": (int, float),
    "source": str,
}


def write(
    folders: Sequence[Path],
    out: Path,
    baseline: str | None = None,
    published: Path | None = None,
    title: str = TITLE,
    train_text: Path | None = None,
) -> str:
    """Write report.html, report.md, report.json and, with matplotlib, curves.png.

    All say the same, which `summary.summarize` computes once.

    Args:
        folders: the runs, each trained and scored.
        out: the folder to write to.
        baseline: an architecture of theirs, as ARCH/SCHEME or ARCH/SCHEME/SUBSTEP where those are
            not the default; if None, the first whose name is without "macaron" or whose scheme is
            lie-trotter, or else the first.
        published: a JSON file of published scores to set next to those of the runs.
        title: of the report.
        train_text: the target side of the training data in Moses' tokens, for scores by the
            frequency of words.

    Returns:
        The text of report.md.

    Raises:
        UserError: if a run is not complete, they cannot be compared, or a file cannot be written;
            then none is.
    """
    if not folders:
        raise UserError("there are no runs to compare: name their folders")
    files.refuse_unwritable(out)
    if train_text and train_text != STDIO and not train_text.exists():
        raise UserError(f"{train_text}: no such file")
    entries = read_published(published) if published else []
    found = [runs.read(folder) for folder in folders]
    runs.refuse_different(found)
    baseline = choose_baseline(list(dict.fromkeys(run.arch for run in found)), baseline)
    differences = against_baseline.compare(found, baseline)
    content = summary.summarize(found, baseline, differences, entries, title, train_text)
    picture = curves.draw_png(found)
    text = report_text.markdown(content, "curves.png" if picture else None)
    contents: dict[Path, str | bytes] = {
        out / "report.md": text,
        out / "report.html": report_page.page(content, curves.draw_svg(found), dynamics(out)),
        out / "report.json": files.as_json(content),
    }
    if picture:
        contents[out / "curves.png"] = picture
    files.write_all(contents)
    return text


def choose_baseline(archs: Sequence[str], named: str | None) -> str:
    """The architecture that a user named, or the one that a report chooses.

    A name without a scheme will do where the runs have that architecture with one scheme only.

    Raises:
        UserError: if none is meant, or several are.
    """
    if named is None:
        return next(filter(verdict.is_transformer, archs), archs[0])
    if (name := runs.name_of(*named.split("/", 2))) in archs:
        return name
    others = [arch for arch in archs if arch.split("/")[0] == named]
    if not others:
        raise UserError(
            f"no run is of the baseline {named}: add its runs, or choose from {', '.join(archs)}"
        )
    if len(others) > 1:
        raise UserError(f"the runs of {named} have several schemes: choose {' or '.join(others)}")
    return others[0]


def dynamics(out: Path) -> str | None:
    """The address of a page of `macaron-fairseq dynamics`, as seen from a report next to it."""
    name = Path("dynamics", "dynamics.html")
    for path in (out / name.name, out / name, out.parent / name):
        if path.is_file():
            return os.path.relpath(path, out)
    return None


def read_published(path: Path) -> list[dict[str, Any]]:
    """The entries of a JSON file: a list of objects with the fields above.

    Raises:
        UserError: if it cannot be read or has another form.
    """
    hint = f"it should hold a list of objects with {', '.join(FIELDS)}"
    entries = files.load_json(path, hint)
    if not isinstance(entries, list):
        raise UserError(f"{path} is not as expected: {hint}")
    for i, entry in enumerate(entries, 1):
        for name, kind in FIELDS.items():
            if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
                raise UserError(
                    f"entry {i} of {path} has no {'number' if name == 'score' else 'text'} "
                    f"'{name}': it should have {', '.join(FIELDS)}"
                )
    return entries
