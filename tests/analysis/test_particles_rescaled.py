"""Rescaled tokens of arXiv 2305.05465, against closed forms and what is proved."""

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.spatial import Delaunay

from macaron_fairseq.analysis.particles import choices, simulation
from macaron_fairseq.analysis.particles.rescaled import tokens

pytestmark = pytest.mark.usefixtures("undrawn")

TIMES = np.linspace(0, 3, 31)


@pytest.mark.parametrize("geometry", tokens.GEOMETRIES)
def test_rescaled_tokens_are_tokens_rescaled(geometry):
    """x = e^{tV} z follows attention without rescaling, here by another integrator."""
    values = tokens.value_matrix(geometry, 2, 1, seed=1)
    start = tokens.cube_start(6, 2, 1.0, seed=2)

    def attention(flat):
        x = flat.reshape(start.shape)
        weights = np.exp(x @ x.T - (x @ x.T).max(axis=1, keepdims=True))
        return (weights @ x @ values.T / weights.sum(axis=1, keepdims=True)).ravel()

    x = simulation.flow(attention, start.ravel(), TIMES).reshape(31, 6, 2)
    z = tokens.follow(values, start, TIMES, 0.01)
    for time, found, original in zip(TIMES, z, x, strict=True):
        assert found @ expm(time * values).T == pytest.approx(original, rel=1e-4, abs=1e-5)


def test_late_rescaled_tokens_are_those_in_the_basis_of_v():
    """There e^{tV} is diagonal; else rounding would be all that remains at time 60.

    Here Runge and Kutta's steps, twice as many, follow y_i' = v sum_j p_ij (y_j - y_i), coordinate
    by coordinate, where p is the softmax over j of sum_k e^{2 t v_k} y_ik y_jk.
    """
    values = tokens.value_matrix("codimension", 3, 2, seed=1)
    start, times = tokens.cube_start(20, 3, 5, seed=1), np.linspace(0, 60, 7)
    found = tokens.rescaled(values, start, times, 0.1)
    eigenvalues, vectors = np.linalg.eigh(values)

    def field(t, y):
        logits = (y * np.exp(2 * t * eigenvalues)) @ y.T
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return (weights @ y - y) * eigenvalues

    y, h = start @ vectors, 0.05
    for i in range(1200):
        t = i * h
        a = field(t, y)
        b = field(t + h / 2, y + h / 2 * a)
        c = field(t + h / 2, y + h / 2 * b)
        d = field(t + h, y + h * c)
        y = y + h / 6 * (a + 2 * b + 2 * c + d)
    # Along each eigenvector by itself: one grows to 1e21. There the position is full of rounding.
    ours = np.concatenate([found.coordinates[-1], found.shrinking[-1]], axis=1)
    order = np.argsort(-eigenvalues)
    for mine, other in zip(ours.T, y.T[order], strict=True):
        assert np.abs(mine) == pytest.approx(np.abs(other), rel=2e-2, abs=2e-3 * np.ptp(other))
    assert found.groups[-1].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("geometry", "dim"),
    [("polytope", 2), ("hyperplanes", 3), ("codimension", 3), ("product", 3)],
)
def test_the_usual_step_is_short_enough_for_the_gallery(geometry, dim):
    """With half of it tokens end in as many groups and places, at nearly the same points."""
    usual = choices.defaults("rescaled")
    values = tokens.value_matrix(geometry, dim, dim - 1, usual["seed"])
    start = tokens.cube_start(usual["particles"], dim, tokens.HALF_SIDE, usual["seed"])
    times = np.linspace(0, usual["time"], usual["frames"])
    found, finer = (
        tokens.rescaled(values, start, times, step) for step in (usual["step"], usual["step"] / 2)
    )
    assert found.groups[-1].tolist() == finer.groups[-1].tolist()
    assert found.places[-1] == finer.places[-1]
    size = np.ptp(finer.positions[-1])
    assert found.positions[-1] == pytest.approx(finer.positions[-1], rel=0, abs=1e-3 * size)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_hull_shrinks_where_v_is_the_identity(dim, seed):
    result = tokens.rescaled(np.eye(dim), tokens.cube_start(20, dim, 5, seed), TIMES, 0.05)
    assert np.diff(result.volume).max() < 0
    for before, after in zip(result.positions, result.positions[1:], strict=False):
        middle = before.mean(axis=0)  # within a hull that is larger by a millionth
        assert (Delaunay(middle + (1 + 1e-6) * (before - middle)).find_simplex(after) >= 0).all()


def test_coordinates_are_along_the_eigenvectors_that_grow_and_shrink():
    values = np.diag([-1.0, 0.7, -0.5, 1.0])
    found = tokens.rescaled(values, tokens.cube_start(5, 4, 1, seed=1), TIMES, 0.05)
    assert found.real(1).tolist() == [1, 0.7] and found.real(-1).tolist() == [-0.5, -1]
    z = found.positions
    assert np.abs(found.coordinates) == pytest.approx(np.abs(z[..., [3, 1]]))
    assert np.abs(found.shrinking) == pytest.approx(np.abs(z[..., [2, 0]]))


@pytest.mark.parametrize("seed", range(4))
def test_positive_matrices_lead_to_three_hyperplanes_at_most(seed):
    values = tokens.value_matrix("hyperplanes", 3, 1, seed)
    assert values.min() > 0
    start = tokens.cube_start(20, 3, 5, seed)
    found = tokens.rescaled(values, start, np.linspace(0, 8, 9), 0.05)
    first, last = (np.sort(found.coordinates[i, :, 0]) for i in (0, -1))
    # Between parallel hyperplanes are gaps; the leading coordinate hardly varies within one.
    assert (np.diff(first) > 0.01 * np.ptp(first)).sum() > 10
    assert (np.diff(last) > 0.01 * np.ptp(last)).sum() <= 2
    assert found.groups[-1, 0] <= 3
    left = np.linalg.eig(values.T)
    leading = left.eigenvectors[:, left.eigenvalues.real.argmax()].real
    assert found.coordinates[-1, :, 0] == pytest.approx(found.positions[-1] @ leading)


def test_value_matrices_have_their_eigenvalues():
    found = np.linalg.eigvalsh(tokens.value_matrix("codimension", 5, 2, seed=1))
    assert (found > 0).sum() == 2
    assert tokens.value_matrix("product", 3, 2, 1).tolist() == np.diag([1, 1, -0.5]).tolist()
    assert np.linalg.eigvalsh(tokens.gram_matrix(5, 1))[-1] == pytest.approx(1)


def test_attention_loses_rank_until_one_leads():
    start = tokens.cube_start(20, 2, 1, seed=1)
    found = tokens.leaders(tokens.gram_matrix(2, 1), start, np.linspace(0, 10, 11), 0.1, 3)
    assert found.matrices.sum(axis=2) == pytest.approx(np.ones((3, 20)))
    logits = start @ start.T
    assert found.matrices[0] == pytest.approx(np.exp(logits) / np.exp(logits).sum(1)[:, None])
    assert (found.rank[0], found.rank[-1], found.leaders[-1]) == (20, 1, 1)
    assert found.effective_rank[-1] == pytest.approx(1, abs=0.01)


def test_groups_and_places_of_known_points():
    assert tokens.count_values(np.array([0, 0.01, 1, 0.99, 0.5])) == 3
    assert tokens.count_values(np.ones(4)) == 1
    square = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [1, 1.001], [0.5, 0.5]])
    assert tokens.places(square) == 5
    corners, area = tokens.hull(square[:4])
    assert (len(corners), area) == (4, pytest.approx(1))
    assert tokens.hull(np.array([[0.0, 0], [1, 1], [2, 2]]))[1] == 0
    assert np.isnan(tokens.hull(np.eye(5))[1])
