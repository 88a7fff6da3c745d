"""How the cosines of all pairs of tokens are distributed, layer by layer, as a PNG file.

Source: the histograms of arXiv 2312.10794 (ALBERT's layers), without each token's pair with itself.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from macaron_fairseq.analysis import figures
from macaron_fairseq.analysis.by_layer import Model, Row, Side, find
from macaron_fairseq.common import palette
from macaron_fairseq.common.themed_svg import STYLE

MOST = 8  # histograms in a row


def histograms_png(models: Sequence[Model]) -> bytes:
    """A row for each side and model, a histogram for each state before and after a layer.

    Of deeper models there are `MOST`, evenly spread from the first to the last.
    """
    sides = [side["side"] for side in models[0]["sides"]]
    of_rows = [
        (name, i, shown(find(model, name))) for name in sides for i, model in enumerate(models)
    ]
    columns = max(1, *(len(states) for _, _, states in of_rows))  # a text may have no pairs
    with mpl.rc_context(STYLE):
        size = (1.5 * columns + 0.5, 1.35 * len(of_rows) + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        grid: Any = figure.subplots(len(of_rows), columns, squeeze=False, sharex=True)
        for axes_of_row, (name, i, states) in zip(grid, of_rows, strict=True):
            colour = palette.light(i)
            for axes, state in zip(axes_of_row, states, strict=False):
                counts = np.array(state["cosine_histogram"])
                edges = np.linspace(-1, 1, len(counts) + 1)
                axes.stairs(counts / counts.sum(), edges, color=colour, fill=True)
                axes.set_title(f"{name} {state['time']:g}", fontsize=8)
                axes.tick_params(labelsize=6)
                axes.set_xlim(-1, 1)
            for axes in axes_of_row[len(states) :]:
                axes.set_axis_off()
        figures.add_colours(figure, [model["label"] for model in models])
        figure.supxlabel("cosine of two tokens", fontsize=8)
        figure.supylabel("share of all pairs", fontsize=8)
        return figures.png(figure, dpi=100)


def shown(side: Side) -> list[Row]:
    """The states whose cosines are drawn: that before the first layer, then after layers."""
    found = [
        row
        for row in side["states"]
        if "cosine_histogram" in row and row["time"] == int(row["time"])
    ]
    places = np.linspace(0, len(found) - 1, min(MOST, len(found))).round().astype(int)
    return [found[i] for i in places]
