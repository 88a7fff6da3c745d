"""Phase diagrams with random matrices, and their boundary, against closed forms."""

import numpy as np
import pytest

from macaron_fairseq.analysis import measures
from macaron_fairseq.analysis.particles import simulation
from macaron_fairseq.analysis.particles.sphere import equal_cosines, experiments, random_matrices
from macaron_fairseq.analysis.particles.sphere.random_matrices import Matrices
from macaron_fairseq.analysis.particles.systems import System

pytestmark = pytest.mark.usefixtures("undrawn")

# The boundary beta(t).


@pytest.mark.parametrize("name", ["sa", "usa"])
@pytest.mark.parametrize("beta", [0, 3])
def test_orthogonal_particles_arrive_at_the_boundary(name, beta):
    time = equal_cosines.arrival_time(0.99, beta, 8, name)
    times = np.array([0, time / 2, time])
    end = simulation.integrate(System(name, beta), equal_cosines.start(8, 0), times)[-1]
    assert measures.cosines(end) == pytest.approx(np.full(28, 0.99), abs=1e-6)


def test_arrival_by_the_closed_form():
    # n = 2 at beta 0: rho = cos phi with tan(phi / 2) = e^-t.
    expected = -np.log(np.tan(np.arccos(0.999) / 2))
    assert equal_cosines.arrival_time(0.999, 0, 2) == pytest.approx(expected, abs=1e-9)
    assert equal_cosines.arrival_time(0.999, 1e9, 2) == np.inf


# Random matrices.


def test_velocity_with_matrices_by_the_sums():
    generator = np.random.default_rng(1)
    x = simulation.random_start(3, 4, seed=5)
    values, keys = generator.normal(size=(2, 4, 4))
    for i, found in enumerate(random_matrices.velocity(x, 1.7, values, keys)):
        weights = [np.exp(1.7 * x[i] @ keys @ x[j]) for j in range(3)]
        pull = sum(weights[j] * values.T @ x[j] for j in range(3)) / sum(weights)
        assert found == pytest.approx(pull - sum(pull * x[i]) * x[i])


def test_matrices_have_their_distribution():
    draws, dim = 4000, 3
    generator = np.random.default_rng(1)
    _, goe = Matrices(keys="goe").draw(generator, draws, dim)
    assert (goe == goe.swapaxes(1, 2)).all()
    assert goe[:, 0, 0].var() == pytest.approx(2, rel=0.1)
    assert goe[:, 0, 1].var() == pytest.approx(1, rel=0.1)
    values, gaussian = Matrices("minus-keys", "gaussian").draw(generator, draws, dim)
    assert gaussian.var(axis=0) == pytest.approx(np.ones((3, 3)), rel=0.25)
    assert values == pytest.approx(-gaussian / np.sqrt(3))
    gram, identity = Matrices("gram").draw(generator, draws, dim)
    assert np.linalg.eigvalsh(gram).min() >= -1e-12
    assert gram.mean(axis=0) == pytest.approx(np.sqrt(3) * np.eye(3), abs=0.15)
    assert (identity == np.eye(3)).all()
    assert len(Matrices("gram", shared="trials").draw(generator, draws, dim)[0]) == 1


@pytest.mark.parametrize(("values", "sign"), [("keys", 1), ("minus-keys", -1)])
def test_symmetric_keys_as_values_climb_or_descend(values, sign):
    """x_i' is then, times Z_i, plus or minus the gradient of the sum of e^{beta x_i^T B x_j}."""
    v, b = (x[0] for x in Matrices(values, "goe").draw(np.random.default_rng(3), 1, 3))
    x, energies = simulation.random_start(10, 3, seed=4), []
    for _ in range(300):
        energies.append(np.exp(2 * x @ b @ x.T).sum())
        x = x + 0.01 * random_matrices.velocity(x, 2, v, b)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert (sign * np.diff(energies)).min() > 0


def test_phase_without_randomness_is_that_of_the_ideal_system():
    starts = simulation.random_start(6, 2, seed=1, trials=7)
    times, betas = np.linspace(0, 20, 6), np.array([0.0, 2.0])
    found = random_matrices.phase(Matrices(), starts, times, betas, 0.9, seed=1)
    expected = experiments.phase(System("sa", 0), starts, times, betas, 0.9)
    assert found.pairs == pytest.approx(expected.pairs)
    assert found.boundary == pytest.approx(expected.equiangular_time)
    assert found.sizes @ np.arange(1, 7) == pytest.approx([6, 6])
    assert found.clusters[0, -1] == found.largest[0, -1] == found.eigenvalues[0, -1] == 1
    # On the circle particles span two dimensions.
    assert (found.eigenvalues[:, 0] == 2).all()
    clusters = [measures.clusters(start, 0.9) for start in starts]
    assert found.clusters[:, 0] == pytest.approx([np.mean(clusters)] * 2)


@pytest.mark.parametrize("shared", random_matrices.SHARED)
def test_phase_in_parts_is_the_same(shared, monkeypatch):
    starts = simulation.random_start(6, 3, seed=1, trials=5)
    what = Matrices("gram", "goe", shared, 3.0), starts, np.linspace(0, 8, 5), np.array([0.5, 2])
    whole = random_matrices.phase(*what, 0.9, seed=1)
    monkeypatch.setattr(simulation, "MOST_COSINES", 36)
    parts = random_matrices.phase(*what, 0.9, seed=1)
    assert parts.pairs == pytest.approx(whole.pairs)
    assert parts.largest == pytest.approx(whole.largest)
    assert parts.sizes @ np.arange(1, 7) == pytest.approx([6, 6])


def test_matrices_are_drawn_anew_after_each_period():
    starts = simulation.random_start(12, 2, seed=1, trials=6)
    times, betas = np.linspace(0, 8, 9), np.array([1.0])

    def pairs(period):
        what = Matrices("gram", "goe", "trials", period)
        return random_matrices.phase(what, starts, times, betas, 0.9, seed=2).pairs[0]

    assert pairs(4)[:5] == pytest.approx(pairs(None)[:5])
    assert pairs(4)[5:] != pytest.approx(pairs(None)[5:])
    assert pairs(8.5) == pytest.approx(pairs(None))


def test_cluster_sizes_of_known_graphs():
    above = np.zeros((2, 4, 4), dtype=bool)
    above[0, 0, 1] = above[0, 1, 0] = above[0, 1, 2] = above[0, 2, 1] = True
    sizes, largest = random_matrices.cluster_sizes(above)
    assert sizes.tolist() == [1 + 4, 0, 1, 0]
    assert largest.tolist() == [3, 1]
