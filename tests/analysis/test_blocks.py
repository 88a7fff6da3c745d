"""All pairs of many points in blocks: the same as with the whole matrix, in less memory."""

import threading
import tracemalloc

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from macaron_fairseq.analysis import blocks, measures
from macaron_fairseq.analysis.particles import simulation
from macaron_fairseq.analysis.particles.block import settling
from macaron_fairseq.analysis.particles.sphere import experiments
from macaron_fairseq.analysis.particles.systems import System


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "ENTRIES", 50)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


def velocity(name, beta, x):
    """By the sums, for one cloud."""
    weights = np.exp(beta * (x @ x.T - (name == "usa-scaled")))
    drift = weights @ x / (weights.sum(1, keepdims=True) if name == "sa" else len(x))
    return drift - (drift * x).sum(1, keepdims=True) * x


@pytest.mark.parametrize("name", ["sa", "usa", "usa-scaled"])
@pytest.mark.parametrize("shape", [(23, 4), (50, 2), (3, 9, 2)])
def test_velocity_in_blocks(name, shape, small_blocks):
    trials, n, dim = (1, *shape)[-3:]
    clouds = simulation.random_start(n, dim, seed=1, trials=trials)
    found = System(name, 1.5).velocity(clouds.reshape(shape))
    expected = np.stack([velocity(name, 1.5, x) for x in clouds])
    assert np.abs(found - expected.reshape(shape)).max() < 1e-13


def test_measures_in_blocks(small_blocks):
    # Some places with many points, single points, and chains of near ones.
    x = simulation.random_start(40, 3, seed=1)
    x[5:20] = x[7]
    x[20:24] = x[30:34]
    gram = np.clip(x @ x.T, -1, 1)
    pairs = gram[np.triu_indices(40, 1)]
    edges = np.linspace(-1, 1, 9)
    assert (measures.histogram(x, 8) == np.histogram(pairs, edges)[0]).all()
    assert measures.mean_cosine(x) == pytest.approx(pairs.mean(), abs=1e-14)
    for threshold in (-0.5, 0.3, 0.8, 0.95, 0.999):
        labels = connected_components(csr_array(gram > threshold), directed=False)[1]
        assert (measures.cluster_labels(x, threshold) == labels).all()
        assert measures.pairs_above(x, threshold) == (pairs > threshold).sum()
        different = gram[labels[:, None] != labels]
        if different.size:
            angle = measures.separation(x, threshold)
            assert angle == pytest.approx(np.arccos(different.max()), abs=1e-12)
    for beta in (0.5, 9.0):
        expected = np.exp(beta * (gram - 1)).mean() / (2 * beta)
        assert measures.energy(x, beta) == pytest.approx(expected, rel=1e-12)
    assert measures.energy(x, 0) == pytest.approx((gram - 1).mean() / 2, rel=1e-12)


def test_modes_and_spread_in_blocks(small_blocks):
    x = simulation.random_start(60, 2, seed=3)
    gram = np.clip(x @ x.T, -1, 1)
    for angle in (0.2, 0.5):
        density = np.exp((gram - 1) / (angle / 2) ** 2).mean(axis=1)
        near = gram >= np.cos(angle)
        peaks = [
            i
            for i in range(60)
            if density[i] >= density[near[i]].max() and density[i] >= density.max() / 5
        ]
        together = gram[np.ix_(peaks, peaks)] > np.cos(angle)
        expected = connected_components(csr_array(together), directed=False)[0]
        assert settling.modes(x, angle) == expected > 1
        labels = settling.cluster_labels(x, angle)
        places = x @ [1, 1j]
        apart = np.abs(np.angle(places[:, None] / places))
        widest = apart[labels[:, None] == labels].max()
        assert settling.spread(x, labels) == pytest.approx(widest, abs=1e-7)


@pytest.mark.slow
def test_phase_of_large_clouds(small_blocks):
    starts = simulation.random_start(8, 2, seed=1, trials=3)
    times, betas = np.linspace(0, 3, 4), np.array([0.0, 2.0])
    found = experiments.phase(System("sa", 0), starts, times, betas, cosine=0.9)
    for column, time in enumerate(times[1:], 1):
        ends = [
            simulation.integrate(System("sa", 2), start, np.array([0, time]))[-1]
            for start in starts
        ]
        pairs = np.array([(x @ x.T)[np.triu_indices(8, 1)] > 0.9 for x in ends])
        assert found.pairs[1, column] == pytest.approx(pairs.mean())
        assert found.all_pairs[1, column] == pytest.approx(pairs.all(axis=1).mean())


def test_blocks_are_computed_at_the_same_time(small_blocks):
    both = threading.Barrier(2, timeout=30)

    def work(rows):
        both.wait()  # for a second thread
        return rows.start

    assert [*blocks.over_rows(10, work)] == [0, 5]


def test_memory_is_not_that_of_the_matrix(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    n = 4000
    x = simulation.random_start(n, 3, seed=1)
    tracemalloc.start()
    try:
        System("sa", 4.0).velocity(x)
        measures.clusters(x, 0.9)  # nearly all in one
        measures.energy(x, 4.0)
        settling.modes(x, 0.5)
        settling.spread(x, np.zeros(n, dtype=np.intp))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * n**2 / 3
