"""Measures of a cloud of points, against numbers by hand."""

import numpy as np
import pytest

from macaron_fairseq.analysis import measures


def circle(*degrees):
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_cosines_are_of_all_pairs_whatever_the_lengths():
    points = np.array([[2, 0], [0, 1e300], [3e-300, 3e-300]])
    assert measures.cosines(points) == pytest.approx([0, 0.5**0.5, 0.5**0.5])


def test_cosines_stay_within_their_range():
    points = np.random.default_rng(0).normal(size=(1, 7)).repeat(50, axis=0)
    found = measures.cosines(np.concatenate([points, -points]))
    assert np.abs(found).max() <= 1
    assert [found.min(), found.max()] == pytest.approx([-1, 1])


def test_share_above_counts_pairs():
    assert measures.share_above(circle(0, 0, 0, 90), 0.999) == pytest.approx(3 / 6)
    assert measures.share_above(circle(0, 50, 100), 0.6) == pytest.approx(2 / 3)


def test_a_cluster_is_what_is_linked():
    # cos 2 degrees is .99939, cos 4 degrees .99756: the outer two are linked by the middle one.
    points = circle(0, 90, 4, 2)
    assert measures.clusters(points, 0.999) == 2
    labels = measures.cluster_labels(points, 0.999)
    assert labels[0] == labels[2] == labels[3] != labels[1]
    assert measures.clusters(points, 0.9995) == 4
    assert measures.clusters(points, -0.5) == 1


def test_separation_is_between_clusters():
    assert np.degrees(measures.separation(circle(0, 2, 4, 90, 200), 0.999)) == pytest.approx(86)
    assert np.isnan(measures.separation(circle(0, 2, 4), 0.999))


@pytest.mark.parametrize("dim", [2, 5])  # with fewer and more dimensions than points
def test_ranks_of_two_orthogonal_groups(dim):
    points = np.zeros((4, dim))
    points[:3, 0] = points[3, 1] = 7
    assert measures.effective_rank(points) == pytest.approx(4 / 27**0.25)  # of p = 3/4, 1/4
    assert measures.participation_ratio(points) == pytest.approx(1 / (9 / 16 + 1 / 16))


def test_ranks_of_one_and_of_all_directions():
    for rank in (measures.effective_rank, measures.participation_ratio):
        assert rank(np.eye(6, 9)) == pytest.approx(6)
        assert rank(np.ones((6, 9))) == pytest.approx(1)


def test_energy_of_two_points():
    points, beta, cosine = circle(0, 60), 3, 0.5
    expected = (2 + 2 * np.exp(beta * (cosine - 1))) / (2 * beta * 4)
    assert measures.energy(points, beta) == pytest.approx(expected)
    assert measures.energy(circle(10, 10), beta) == pytest.approx(1 / (2 * beta))
    assert measures.energy(points, 1e9) == pytest.approx(1 / (4 * 1e9))


def test_energy_at_beta_0_is_the_limit():
    points = np.random.default_rng(0).normal(size=(9, 4))
    near = measures.energy(points, 1e-5) - 1 / 2e-5
    assert measures.energy(points, 0) == pytest.approx(near, abs=1e-4)
    assert measures.energy(circle(0, 180), 0) == pytest.approx(-1 / 2)


@pytest.mark.parametrize(
    "points", [np.ones(3), np.ones((1, 3)), [[1, 0], [0, 0]], [[1, 0], [1, np.nan]]]
)
def test_points_without_directions_are_refused(points):
    with pytest.raises(ValueError, match=r"two or more rows|has no direction"):
        measures.cosines(points)


@pytest.mark.parametrize("beta", [-1, np.inf, np.nan])
def test_energy_refuses_other_betas(beta):
    with pytest.raises(ValueError, match="finite and not negative"):
        measures.energy(np.eye(2), beta)
