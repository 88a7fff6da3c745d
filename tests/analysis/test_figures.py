"""What can be read in pictures: axes of one layer or many decades, legends with long names."""

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from macaron_fairseq.analysis import figures
from macaron_fairseq.analysis.figures import Line, Panel
from macaron_fairseq.common.themed_svg import STYLE


def drawn(panel):
    axes = Figure().subplots()
    figures.draw_lines(axes, panel, ["red", "blue"], "layer")
    return axes


def numbers(axis):
    low, high = sorted(axis.get_view_interval())
    return [x for x in axis.get_major_locator()() if low <= x <= high]


@pytest.mark.parametrize("decades", [1, 3, 6, 7, 12, 30])
def test_a_logarithmic_axis_has_numbers(decades):
    lines = [Line(0, [0, 1], [10.0**-decades, 1])]
    axes = drawn(Panel("", lines, figures.limits(lines, log=True), log=True))
    assert 2 <= len(numbers(axes.yaxis)) <= 12


def test_lines_of_one_layer_are_told_apart():
    lines = [Line(0, [1], [x], dash=x, label=f"part {x}") for x in range(4)]
    axes = drawn(Panel("", lines, (0, 1)))
    assert numbers(axes.xaxis) == [1]
    shown = [x for x in axes.get_lines() if len(x.get_xdata())]
    in_legend = axes.get_legend().get_lines()
    assert len({x.get_marker() for x in shown}) == 4
    assert [x.get_marker() for x in shown] == [x.get_marker() for x in in_legend]


@pytest.mark.parametrize("names", [["a", "b"], ["a/" + "long/" * 12, "b", "c"], [*"abcdefghijkl"]])
def test_a_legend_is_within_its_picture(names):
    with rc_context(STYLE):
        figure = Figure(figsize=(3.3, 2.7), layout="constrained")
        axes = figure.subplots()
        figures.add_colours(figure, names)
        FigureCanvasAgg(figure).draw()
        (legend,) = figure.legends
        place = legend.get_window_extent()
    assert [x.get_text() for x in legend.get_texts()] == names
    assert place.x0 >= 0 <= place.y0 and place.x1 <= figure.bbox.x1 and place.y1 <= figure.bbox.y1
    assert axes.get_window_extent().height > 100


def test_a_label_with_two_dollars_is_no_formula():
    with rc_context(STYLE):
        assert not Figure().text(0, 0, "$5 and $6").get_parse_math()


def test_headings_fit():
    with rc_context(STYLE):
        figure = Figure(figsize=(3.0, 2.0), layout="constrained")
        heading = "of the products from the first layer on; stronger: more layers"
        text = figure.suptitle(figures.wrapped(f"{heading}\n{heading}", 3.0, 8), fontsize=8)
        FigureCanvasAgg(figure).draw()
        assert text.get_window_extent().width <= figure.bbox.width
    assert text.get_text().count("\n") == 3
    assert np.all([part in text.get_text() for part in heading.split()])


def luminance(colour):
    """The relative luminance of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("n", [1, 2, 9, 60])
def test_colours_of_many_are_seen_on_light_and_dark_pages(n):
    found = figures.spread(n)
    assert len({*found}) == n
    for page in ("#ffffff", "#14181e"):
        for colour in found:
            low, high = sorted([luminance(page), luminance(colour)])
            assert (high + 0.05) / (low + 0.05) > 2.5
