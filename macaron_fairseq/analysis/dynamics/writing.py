"""Writing the page, the numbers and one small picture (`macaron-fairseq dynamics`)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from macaron_fairseq.analysis.dynamics import page, pictures
from macaron_fairseq.analysis.dynamics.glossary import ERRORS, JACOBIANS, STATES, STEPS
from macaron_fairseq.analysis.dynamics.measuring import Settings
from macaron_fairseq.common import environment, files

# What the small picture shows: of the states, then of whole layers.
SHOWN = ("cosine", "effective_rank_per_token"), ("step", "singular_value", "local_error_1")


def summary(
    title: str, command: str, data: dict[str, Any], settings: Settings, models: list[dict[str, Any]]
) -> dict[str, Any]:
    """All that was found, as it goes into the JSON file."""
    return {
        "title": title,
        "command": command,
        "versions": environment.versions(),
        "data": data,
        "settings": asdict(settings),
        "models": models,
    }


def write(content: dict[str, Any], folder: Path) -> list[Path]:
    """Write dynamics.html, dynamics.json and dynamics.png; return their paths.

    Raises:
        UserError: if they cannot be written.
    """
    numbers = files.as_json(content)
    written = {
        folder / "dynamics.json": numbers.encode(),
        folder / "dynamics.png": overview(content["models"]),
        folder / "dynamics.html": page.render(content).encode(),
    }
    for path, text in written.items():
        files.write(path, text)
    return list(written)


def overview(models: list[dict[str, Any]]) -> bytes:
    """A PNG file: a row for each side, a column for each measure of `SHOWN` that all sides have."""
    groups = (STATES, STEPS, JACOBIANS, ERRORS)
    by_name = {measure.name: measure for group in groups for measure in group.measures}
    columns = []
    for name in SHOWN[0] + SHOWN[1]:
        measure = by_name[name]
        column = []
        for side_name in [side["side"] for side in models[0]["sides"]]:
            sides = [page.find(model, side_name) for model in models]
            if name in SHOWN[0]:
                lines, what = page.state_lines(sides, measure), measure.title
            else:
                lines = page.move_lines(sides, measure, page.LAYER)
                what = f"{measure.title} of a layer"
            column.append((f"{side_name}: {what[0].lower()}{what[1:]}", lines, measure))
        if all(lines for _, lines, _ in column):
            columns.append(column)
    panels = [
        (title, lines, page.extent(measure, lines), measure.log)
        for row in zip(*columns, strict=True)
        for title, lines, measure in row
    ]
    return pictures.png(panels, [model["label"] for model in models], len(columns))
