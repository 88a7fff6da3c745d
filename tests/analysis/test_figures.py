"""What can be read in pictures: axes of one layer or many decades, legends with long names."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from macaron_fairseq.analysis import figures
from macaron_fairseq.analysis.figures import Line, Panel
from macaron_fairseq.common import html_page, palette
from macaron_fairseq.common.themed_svg import STYLE


def drawn(panel):
    axes = Figure().subplots()
    figures.draw_lines(axes, panel, ["red", "blue"])
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
    shown = [x for x in axes.get_lines() if len(x.get_xdata()) == 2]
    assert all(x.get_xdata()[0] < 1 < x.get_xdata()[1] for x in shown)
    dashes = [x._dash_pattern for x in shown]  # matplotlib tells it nowhere else
    assert len({*map(str, dashes)}) == 4
    assert dashes == [x._dash_pattern for x in axes.get_legend().get_lines()]


def test_the_band_of_one_layer_has_a_width():
    axes = drawn(Panel("", [Line(0, [1], [0.5], [0.1])], (0, 1)))
    (band,) = axes.collections
    box = band.get_datalim(axes.transData)
    assert box.width > 0 and (box.y0, box.y1) == pytest.approx((0.4, 0.6))


def test_models_are_told_apart_without_colour():
    axes = drawn(Panel("", [Line(i, [0, 1], [i, i]) for i in range(8)], (0, 8)))
    marks = [x.get_marker() for x in axes.get_lines() if x.get_marker() != "None"]
    assert len({*marks}) == 8
    figure = Figure()
    figures.add_colours(figure, [*"abcdefgh"])
    assert [x.get_marker() for x in figure.legends[0].get_lines()] == marks


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


def contrast(one, other):
    """The contrast of WCAG 2, which asks for 3 where something is to be seen."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


LIGHT_CARD, DARK_CARD = "#f6f7f9", "#1c222b"  # of html_page.py


@pytest.mark.parametrize("n", [1, 2, 9, 60])
def test_colours_of_many_are_seen_on_light_and_dark_pages(n):
    found = figures.spread(n)
    assert len({*found}) == n
    for page in ("#ffffff", "#14181e"):
        assert min(contrast(page, colour) for colour in found) > 3


def test_colours_are_seen_on_cards():
    assert f"--card: {LIGHT_CARD}" in html_page.CSS and f"--card: {DARK_CARD}" in html_page.CSS
    for card, colours in ((LIGHT_CARD, palette.LIGHT), (DARK_CARD, palette.DARK)):
        assert min(contrast(card, x) for x in (*colours, *palette.AREA)) > 3


# Machado, Oliveira and Fernandes 2009: what is seen without one kind of cone, of linear RGB.
WITHOUT_CONE = {
    "red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}


def lab(colour, seen):
    """CIELAB of what is seen of a colour."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(to_xyz @ np.clip(seen @ linear, 0, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("cone", WITHOUT_CONE)
@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_the_colour_blind_tell_the_colours_apart(cone, colours):
    """From about 2 on a difference can just be seen."""
    seen = [lab(colour, np.array(WITHOUT_CONE[cone])) for colour in colours]
    assert min(np.linalg.norm(x - y) for x, y in combinations(seen, 2)) > 10
