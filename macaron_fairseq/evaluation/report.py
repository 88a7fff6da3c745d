"""Writing a report's files (`macaron-fairseq report`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation import curves, runs, significance, summary, tables


def write(
    folders: Sequence[Path],
    out: Path,
    baseline: str | None = None,
    published: Sequence[dict[str, Any]] = (),
    title: str = "Comparison of architectures",
) -> str:
    """Write report.md, report.json and, with matplotlib, curves.png; return the text of report.md.

    Args:
        folders: the runs, each trained and scored.
        out: the folder to write to.
        baseline: an architecture of theirs; if None, the first whose name is without "macaron", or
            else the first.
        published: entries as `published.read` returns them.
        title: of the report.

    Raises:
        UserError: if a run is not complete, or they cannot be compared.
    """
    found = [runs.read(folder) for folder in folders]
    runs.refuse_different(found)
    archs = list(dict.fromkeys(run.arch for run in found))
    if baseline is None:
        baseline = next((arch for arch in archs if "macaron" not in arch), archs[0])
    elif baseline not in archs:
        raise UserError(
            f"no run is of the baseline {baseline}: add its runs, or choose from {', '.join(archs)}"
        )
    differences = significance.compare(found, baseline)
    content = summary.summarize(found, baseline, differences, published, title)
    picture = curves.draw(found)
    text = tables.markdown(content, "curves.png" if picture else None)
    if picture:
        files.write(out / "curves.png", picture)
    files.write(out / "report.json", files.as_json(content))
    files.write(out / "report.md", text)
    return text
