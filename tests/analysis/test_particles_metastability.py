"""Metastability on the circle, against scalar equations, rates and what is proved."""

import numpy as np
import pytest
from scipy.integrate import quad

from macaron_fairseq import UserError
from macaron_fairseq.analysis import measures
from macaron_fairseq.analysis.particles.metastability import (
    first_clusters,
    mean_field,
    modes,
    staircase,
)
from macaron_fairseq.analysis.particles.systems import System

pytestmark = pytest.mark.usefixtures("undrawn")

# Dynamic metastability.


@pytest.mark.parametrize(
    ("density", "cells"),
    [
        ([0, 0, 1, 5, 5, 9, 3, 0, 0, 0, 0, 0], [5]),  # after a shoulder
        ([0, 0, 3, 9, 5, 5, 1, 0, 0, 0, 0, 0], [3]),  # before one
        ([0, 0, 1, 9, 9, 9, 1, 0, 0, 0, 0, 0], [4]),  # the middle of a plateau
        ([9, 9, 1, 0, 0, 0, 0, 8, 0, 0, 0, 9], [0, 7]),  # across 0
        ([2, 9, 2, 0, 3, 0, 0, 0, 0, 0, 2, 0], [1]),  # not above twice the mean
        ([1] * 12, []),
    ],
)
def test_maxima_of_a_density(density, cells):
    found = modes.maxima(np.array(density, float))
    assert found == pytest.approx((np.array(cells) + 0.5) * 2 * np.pi / 12)


@pytest.mark.parametrize("name", ["usa-scaled", "sa"])
@pytest.mark.parametrize(("beta", "angle"), [(5.0, 2.0), (200.0, 0.4), (2000.0, 0.3)])
def test_two_particles_meet_when_the_scalar_equation_says(name, beta, angle):
    # Their angle follows delta' = -w sin(delta) / z with w = e^{beta (cos - 1)}.
    # For scaled USA z is 1.
    def slowness(delta):
        weight = np.exp(beta * (np.cos(delta) - 1))
        return (1 if name == "usa-scaled" else (1 + weight) / 2) / weight / np.sin(delta)

    nearest = staircase.MERGED / np.sqrt(beta)
    expected = quad(slowness, nearest, angle, limit=500)[0]
    log_times, _, energies, clusters, mergers = staircase.climb(np.array([0, angle]), beta, name)
    assert mergers == pytest.approx([np.log(expected)], abs=2e-3)
    assert log_times[-1] == mergers[0]
    assert (energies[-1], clusters[-1]) == (1, 1)


def test_the_path_is_that_of_all_angles():
    """Two merge, g apart, and then meet a third: of the way d, two go d/3 each and one 2 d/3."""
    g, d, beta = 0.5, 2.0, 200
    lengths = staircase.climb(np.array([0, g, g / 2 + d]), beta, "usa-scaled")[1]
    expected = g / 2**0.5 + d * (2 / 9 + 4 / 9) ** 0.5
    assert lengths[-1] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ["usa-scaled", "sa"])
def test_energy_is_a_monotone_staircase(name):
    with np.errstate(over="raise", invalid="raise"):
        found = staircase.staircase(np.array([0.5, 1.5, 2, 3]), np.array([100.0, 2000.0]), name)
    for log_times, energies, clusters in zip(
        found.log_times, found.energies, found.clusters, strict=True
    ):
        assert np.diff(energies).min() > -1e-12
        assert np.diff(log_times).min() >= 0
        assert set(clusters) == {1, 2, 3, 4, 5}
    # The squared masses of clusters, which are far apart at beta 2000.
    steps = [energies[np.flatnonzero(clusters == k)[0]] for k in (4, 3, 2, 1)]
    assert steps == pytest.approx([7 / 25, 11 / 25, 13 / 25, 1], abs=0.002)
    # Orders of magnitude apart.
    assert np.diff(found.mergers[1]).min() > 10


def test_energy_of_the_staircase_is_that_of_the_measures():
    theta = np.array([0.1, 0.3, 1.2])
    points = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    found = staircase.energy(theta, np.full(3, 1 / 3), 7)
    assert found == pytest.approx(14 * measures.energy(points, 7))


# Metastability by modes.


@pytest.mark.parametrize("beta", [0.5, 5, 25])
def test_velocity_by_the_series_is_that_of_the_pairs(beta):
    theta = np.random.default_rng(1).uniform(0, 7, 50)
    x = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    along = np.stack([-np.sin(theta), np.cos(theta)], axis=1)
    expected = (System("usa", beta).velocity(x) * along).sum(axis=1)
    found = first_clusters.velocity(theta, first_clusters.series(beta))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * np.exp(beta))


def seeded(n, k, phase, size):
    """Angles whose mode k is the only one: mu_k = size / 2 e^{-i phase}."""
    grid = 2 * np.pi * np.arange(n) / n
    return grid - size / k * np.sin(k * grid - phase)


def test_a_seeded_mode_grows_by_its_rate_into_the_predicted_clusters():
    beta, k = 5.0, 3
    start = seeded(600, k, 0.7, 1e-3)
    times = np.linspace(0, 0.6, 25)
    found = first_clusters.first_clusters(start, beta, times)
    growth = np.log(found.amplitudes[8, k - 1] / found.amplitudes[0, k - 1]) / times[8]
    assert growth == pytest.approx(found.rates[k - 1], rel=0.01)
    expected = (0.7 + 2 * np.pi * np.arange(3)) / 3
    assert np.sort(found.predicted) == pytest.approx(expected)
    assert found.amplitudes[-1, k - 1] > 0.95
    assert found.found == pytest.approx(expected, abs=0.05)
    # Every particle is near one of them.
    ends = first_clusters.first_clusters(start, beta, times[[0, -1]]).angles[-1]
    nearest = np.abs(np.exp(1j * ends[:, None]) - np.exp(1j * expected)).min(axis=1)
    assert nearest.max() < 0.2


def test_clusters_that_no_theory_predicts_are_found_too():
    """Mode 4 alone makes four clusters, also where mode 3 would grow faster."""
    found = first_clusters.first_clusters(seeded(600, 4, 0.7, 0.01), 5.0, np.linspace(0, 0.6, 3))
    expected = (0.7 + 2 * np.pi * np.arange(4)) / 4
    assert found.fastest == 3
    assert found.found == pytest.approx(expected, abs=0.05)


# The mean-field equation.


def wave(cells, k, phase, size):
    theta = 2 * np.pi / cells * (np.arange(cells) + 0.5)
    return (1 + size * np.cos(k * theta - phase)) / (2 * np.pi)


@pytest.mark.parametrize("scheme", mean_field.SCHEMES)
def test_mass_is_kept(scheme):
    start = mean_field.disturbed(256, 0.02, seed=1)
    found = mean_field.mean_field(start, 5, np.linspace(0, 0.1, 5), scheme)
    assert np.abs(found.mass - 1).max() < 1e-12
    assert found.densities.min() >= 0
    assert np.ptp(found.densities[-1]) > np.ptp(wave(256, 3, 0, 0.1))


def test_a_wave_grows_by_its_rate_into_the_predicted_clusters():
    k, phase = 4, 1.1
    times = np.linspace(0, 0.12, 13)
    found = mean_field.mean_field(wave(300, k, phase, 1e-3), 7, times, "finite-volumes")
    assert np.abs(found.mass - 1).max() < 1e-12
    assert found.densities.min() >= 0
    assert np.diff(found.energy).min() > 0
    growth = np.log(found.amplitudes[3, k - 1] / found.amplitudes[0, k - 1]) / times[3]
    assert growth == pytest.approx(found.rates[k - 1], rel=0.02)
    expected = (phase + 2 * np.pi * np.arange(4)) / 4
    assert np.sort(found.predicted) == pytest.approx(expected, abs=1e-9)
    assert found.found == pytest.approx(expected, abs=0.05)
    # Four clusters of the same mass: energy 1 / (2 beta) times 1 / 4, if they were points.
    assert found.energy[-1] == pytest.approx(1 / 14 / 4, rel=0.05)


def test_velocities_of_a_wave():
    # K * cos(k theta) = (2 k / beta) I_k pi sin(k theta), and v is minus that.
    u = wave(200, 3, 0.4, 1.0)
    theta = 2 * np.pi / 200 * (np.arange(200) + 0.5)
    expected = -first_clusters.series(5)[2] / 2 * np.sin(3 * theta - 0.4)
    assert mean_field.velocities(u, 5) == pytest.approx(expected)
    shifted = -first_clusters.series(5)[2] / 2 * np.sin(3 * (theta + np.pi / 200) - 0.4)
    assert mean_field.at_edges(mean_field.velocities(u, 5)) == pytest.approx(shifted)


def test_density_and_particles_agree():
    """Finite volumes and particles, from the same start."""
    times = np.linspace(0, 0.35, 4)
    density = mean_field.mean_field(wave(600, 3, 0.7, 0.02), 5, times, "finite-volumes")
    particles = first_clusters.first_clusters(seeded(1500, 3, 0.7, 0.02), 5, times)
    assert particles.amplitudes[:, 2] == pytest.approx(density.amplitudes[:, 2], rel=0.02)
    assert 0.5 < density.amplitudes[-1, 2] < 0.99


def test_how_often_one_looks_changes_no_density():
    start = mean_field.disturbed(256, 0.02, seed=1)
    ends = [
        mean_field.mean_field(start, 5, np.linspace(0, 0.1, looks), "lax-friedrichs").densities[-1]
        for looks in (2, 121, 1001)
    ]
    assert (ends[0] == ends[1]).all() and (ends[0] == ends[2]).all()


def test_a_step_too_long_is_told():
    start = mean_field.disturbed(256, 0.02, seed=1)
    with pytest.raises(UserError, match=r"Lax-Friedrichs' step of .* is too long for a velocity"):
        mean_field.mean_field(start, 7, np.array([0, 0.2]), "lax-friedrichs")
