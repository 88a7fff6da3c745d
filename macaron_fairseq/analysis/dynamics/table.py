"""The figures of whole layers as a table in Markdown, for a terminal and for documents."""

from typing import Any

# Of the state after the layer, then of the layer: heads, names in the JSON file.
STATE = {"cosine": "cosine", "rank per token": "effective_rank_per_token"}
LAYER = {
    "relative step": "step",
    "turn": "turn",
    "largest singular value": "singular_value",
    "local error": "local_error_1",
}


def markdown(models: list[dict[str, Any]]) -> str:
    """The models' layers, one below the other."""
    heads = ["layer", "model", *STATE, *LAYER, "slope"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for number, side in enumerate(models[0]["sides"]):
        depth = max(len(model["sides"][number]["layers"]) for model in models)
        for i in range(depth):
            for model in models:
                rows = model["sides"][number]["layers"][i : i + 1]
                states = model["sides"][number]["states"]
                for row in rows:
                    (state,) = (x for x in states if x["time"] == row["layer"])
                    cells = [
                        f"{side['side']} {row['layer']}",
                        f"`{model['label']}`",
                        *(mean(state, name) for name in STATE.values()),
                        *(mean(row, name) for name in LAYER.values()),
                        shown(row.get("local_error_slope")),
                    ]
                    lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def mean(row: dict[str, Any], name: str) -> str:
    """A figure's mean, or a dash where the row does not have it."""
    return shown(row["figures"][name]["mean"] if name in row["figures"] else None)


def shown(value: float | None) -> str:
    """Three digits."""
    return "-" if value is None else f"{value:#.3g}".rstrip(".")
