"""Angles and paths on the circle, against arithmetic."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from macaron_fairseq.analysis.particles import drawing


def test_points_have_their_angles():
    angles = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(drawing.angles_of(drawing.on_circle(angles)), angles)
    assert drawing.on_circle(angles).shape == (7, 2)


def test_a_path_that_goes_over_an_edge_has_a_gap_and_keeps_its_points():
    angles, times = drawing.with_gaps(np.array([3.0, 3.1, -3.1, -3.0]), np.arange(4.0))
    np.testing.assert_array_equal(angles, [3.0, 3.1, np.nan, -3.1, -3.0])
    np.testing.assert_array_equal(times, [0, 1, np.nan, 2, 3])


@pytest.mark.parametrize("n", [0, 1, 8, 10, 11, 40])
def test_each_colour_is_there_once(n):
    assert len({to_hex(x) for x in drawing.colours(n)}) == n


def test_each_path_is_a_line():
    axes = Figure().subplots()
    drawing.draw_angles(axes, np.arange(3.0), np.array([[0.0, 3], [0.1, -3], [0.2, -2.9]]), lw=2)
    first, second = axes.get_lines()
    assert len(first.get_xdata()) == 3 and len(second.get_xdata()) == 4
    assert second.get_linewidth() == pytest.approx(2)
