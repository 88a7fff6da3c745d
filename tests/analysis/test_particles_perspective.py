"""Systems of arXiv 2312.10794 and its relatives, against closed forms and what is proved."""

import json

import numpy as np
import pytest
from helpers import pictures
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.spatial import Delaunay

from macaron_fairseq import UserError, cli
from macaron_fairseq.analysis import integrators, measures
from macaron_fairseq.analysis.particles import (
    boundary,
    experiments,
    mean_field,
    metastability,
    random_matrices,
    rescaled,
    simulation,
    staircase,
)
from macaron_fairseq.analysis.particles.random_matrices import Matrices
from macaron_fairseq.analysis.particles.systems import System

pytestmark = pytest.mark.usefixtures("undrawn")

# The boundary beta(t).


@pytest.mark.parametrize("name", ["sa", "usa"])
@pytest.mark.parametrize("beta", [0, 3])
def test_orthogonal_particles_arrive_at_the_boundary(name, beta):
    time = boundary.arrival_time(0.99, beta, 8, name)
    times = np.array([0, time / 2, time])
    end = simulation.integrate(System(name, beta), simulation.equiangular_start(8, 0), times)[-1]
    assert measures.cosines(end) == pytest.approx(np.full(28, 0.99), abs=1e-6)


def test_arrival_by_the_closed_form():
    # n = 2 at beta 0: rho = cos phi with tan(phi / 2) = e^-t.
    expected = -np.log(np.tan(np.arccos(0.999) / 2))
    assert boundary.arrival_time(0.999, 0, 2) == pytest.approx(expected, abs=1e-9)
    assert boundary.arrival_time(0.999, 1e9, 2) == np.inf


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


# Rescaled tokens.

TIMES = np.linspace(0, 3, 31)


@pytest.mark.parametrize("geometry", rescaled.GEOMETRIES)
def test_rescaled_tokens_are_tokens_rescaled(geometry):
    """x = e^{tV} z follows attention without rescaling, here by another integrator."""
    values = rescaled.value_matrix(geometry, 2, 1, seed=1)
    start = rescaled.cube_start(6, 2, 1.0, seed=2)

    def attention(_, flat):
        x = flat.reshape(start.shape)
        weights = np.exp(x @ x.T - (x @ x.T).max(axis=1, keepdims=True))
        return (weights @ x @ values.T / weights.sum(axis=1, keepdims=True)).ravel()

    x = integrators.flow(attention, start.ravel(), TIMES).reshape(31, 6, 2)
    z = rescaled.follow(values, start, TIMES, 0.01)
    for time, tokens, original in zip(TIMES, z, x, strict=True):
        assert tokens @ expm(time * values).T == pytest.approx(original, rel=1e-4, abs=1e-5)


def test_late_rescaled_tokens_are_those_in_the_basis_of_v():
    """There e^{tV} is diagonal; else rounding would be all that remains at time 60.

    Here Runge and Kutta's steps, twice as many, follow y_i' = v sum_j p_ij (y_j - y_i), coordinate
    by coordinate, where p is the softmax over j of sum_k e^{2 t v_k} y_ik y_jk.
    """
    values = rescaled.value_matrix("codimension", 3, 2, seed=1)
    start, times = rescaled.cube_start(20, 3, 5, seed=1), np.linspace(0, 60, 7)
    found = rescaled.rescaled(values, start, times, 0.1)
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


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_hull_shrinks_where_v_is_the_identity(dim, seed):
    result = rescaled.rescaled(np.eye(dim), rescaled.cube_start(20, dim, 5, seed), TIMES, 0.05)
    assert np.diff(result.volume).max() < 0
    for before, after in zip(result.positions, result.positions[1:], strict=False):
        middle = before.mean(axis=0)  # within a hull that is larger by a millionth
        assert (Delaunay(middle + (1 + 1e-6) * (before - middle)).find_simplex(after) >= 0).all()


def test_coordinates_are_along_the_eigenvectors_that_grow_and_shrink():
    values = np.diag([-1.0, 0.7, -0.5, 1.0])
    found = rescaled.rescaled(values, rescaled.cube_start(5, 4, 1, seed=1), TIMES, 0.05)
    assert found.real(1).tolist() == [1, 0.7] and found.real(-1).tolist() == [-0.5, -1]
    z = found.positions
    assert np.abs(found.coordinates) == pytest.approx(np.abs(z[..., [3, 1]]))
    assert np.abs(found.shrinking) == pytest.approx(np.abs(z[..., [2, 0]]))


@pytest.mark.parametrize("seed", range(4))
def test_positive_matrices_lead_to_three_hyperplanes_at_most(seed):
    values = rescaled.value_matrix("hyperplanes", 3, 1, seed)
    assert values.min() > 0
    start = rescaled.cube_start(20, 3, 5, seed)
    found = rescaled.rescaled(values, start, np.linspace(0, 8, 9), 0.05)
    first, last = (np.sort(found.coordinates[i, :, 0]) for i in (0, -1))
    # Between parallel hyperplanes are gaps; the leading coordinate hardly varies within one.
    assert (np.diff(first) > 0.01 * np.ptp(first)).sum() > 10
    assert (np.diff(last) > 0.01 * np.ptp(last)).sum() <= 2
    assert found.groups[-1, 0] <= 3
    left = np.linalg.eig(values.T)
    leading = left.eigenvectors[:, left.eigenvalues.real.argmax()].real
    assert found.coordinates[-1, :, 0] == pytest.approx(found.positions[-1] @ leading)


def test_value_matrices_have_their_eigenvalues():
    found = np.linalg.eigvalsh(rescaled.value_matrix("codimension", 5, 2, seed=1))
    assert (found > 0).sum() == 2
    assert rescaled.value_matrix("product", 3, 2, 1).tolist() == np.diag([1, 1, -0.5]).tolist()
    assert np.linalg.eigvalsh(rescaled.gram_matrix(5, 1))[-1] == pytest.approx(1)


def test_attention_loses_rank_until_one_leads():
    start = rescaled.cube_start(20, 2, 1, seed=1)
    found = rescaled.leaders(rescaled.gram_matrix(2, 1), start, np.linspace(0, 10, 11), 0.1, 3)
    assert found.matrices.sum(axis=2) == pytest.approx(np.ones((3, 20)))
    logits = start @ start.T
    assert found.matrices[0] == pytest.approx(np.exp(logits) / np.exp(logits).sum(1)[:, None])
    assert (found.rank[0], found.rank[-1], found.leaders[-1]) == (20, 1, 1)
    assert found.effective_rank[-1] == pytest.approx(1, abs=0.01)


def test_groups_and_places_of_known_points():
    assert rescaled.count_values(np.array([0, 0.01, 1, 0.99, 0.5])) == 3
    assert rescaled.count_values(np.ones(4)) == 1
    square = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [1, 1.001], [0.5, 0.5]])
    assert rescaled.places(square) == 5
    corners, area = rescaled.hull(square[:4])
    assert (len(corners), area) == (4, pytest.approx(1))
    assert rescaled.hull(np.array([[0.0, 0], [1, 1], [2, 2]]))[1] == 0
    assert np.isnan(rescaled.hull(np.eye(5))[1])


# Dynamic metastability.


@pytest.mark.parametrize("name", ["usa", "sa"])
@pytest.mark.parametrize(("beta", "angle"), [(5.0, 2.0), (200.0, 0.4), (2000.0, 0.3)])
def test_two_particles_meet_when_the_scalar_equation_says(name, beta, angle):
    # Their angle follows delta' = -w sin(delta) / z with w = e^{beta (cos - 1)} and z = 1 for USA.
    def slowness(delta):
        weight = np.exp(beta * (np.cos(delta) - 1))
        return (1 if name == "usa" else (1 + weight) / 2) / weight / np.sin(delta)

    nearest = staircase.MERGED / np.sqrt(beta)
    expected = quad(slowness, nearest, angle, limit=500)[0]
    log_times, _, energies, clusters, mergers = staircase.climb(np.array([0, angle]), beta, name)
    assert mergers == pytest.approx([np.log(expected)], abs=2e-3)
    assert log_times[-1] == mergers[0]
    assert (energies[-1], clusters[-1]) == (1, 1)


@pytest.mark.parametrize("name", ["usa", "sa"])
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
    found = metastability.velocity(theta, metastability.series(beta))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * np.exp(beta))


def seeded(n, k, phase, size):
    """Angles whose mode k is the only one: mu_k = size / 2 e^{-i phase}."""
    grid = 2 * np.pi * np.arange(n) / n
    return grid - size / k * np.sin(k * grid - phase)


def test_a_seeded_mode_grows_by_its_rate_into_the_predicted_clusters():
    beta, k = 5.0, 3
    start = seeded(600, k, 0.7, 1e-3)
    times = np.linspace(0, 0.6, 25)
    found = metastability.first_clusters(start, beta, times)
    growth = np.log(found.amplitudes[8, k - 1] / found.amplitudes[0, k - 1]) / times[8]
    assert growth == pytest.approx(found.rates[k - 1], rel=0.01)
    expected = (0.7 + 2 * np.pi * np.arange(3)) / 3
    assert np.sort(found.predicted) == pytest.approx(expected)
    assert found.amplitudes[-1, k - 1] > 0.95
    assert found.found == pytest.approx(expected, abs=0.05)
    # Every particle is near one of them.
    ends = metastability.first_clusters(start, beta, times[[0, -1]]).angles[-1]
    nearest = np.abs(np.exp(1j * ends[:, None]) - np.exp(1j * expected)).min(axis=1)
    assert nearest.max() < 0.2


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
    expected = -metastability.series(5)[2] / 2 * np.sin(3 * theta - 0.4)
    assert mean_field.velocities(u, 5) == pytest.approx(expected)
    shifted = -metastability.series(5)[2] / 2 * np.sin(3 * (theta + np.pi / 200) - 0.4)
    assert mean_field.at_edges(mean_field.velocities(u, 5)) == pytest.approx(shifted)


def test_density_and_particles_agree():
    """Finite volumes and particles, from the same start."""
    times = np.linspace(0, 0.35, 4)
    density = mean_field.mean_field(wave(600, 3, 0.7, 0.02), 5, times, "finite-volumes")
    particles = metastability.first_clusters(seeded(1500, 3, 0.7, 0.02), 5, times)
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


# The command.

SMALL = {
    "phase-random": ["--particles", "4", "--frames", "3", "--time", "1", "--betas", "2"]
    + ["--trials", "3", "--regenerate", "0.4", "--beta-max", "2", "--key-matrix", "goe"],
    "rescaled": ["--particles", "8", "--frames", "4", "--time", "2"],
    "leaders": ["--particles", "8", "--frames", "4", "--time", "2"],
    "staircase": ["--beta", "50", "80", "--gaps", "1", "2"],
    "first-clusters": ["--particles", "50", "--frames", "4"],
    "mean-field": ["--cells", "64", "--frames", "5"],
}


def command(choice, *flags, output):
    cli.main(["particles", choice, *SMALL[choice], *map(str, flags), "-o", str(output)])
    assert (output / f"{choice}.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((output / f"{choice}.json").read_text("utf-8"))


@pytest.mark.parametrize("choice", SMALL)
def test_command_writes_numbers_and_a_picture(choice, drawn, tmp_path, capsys):
    found = command(choice, output=tmp_path)
    assert found["experiment"] == choice
    assert f"{choice}.json" in capsys.readouterr().out
    if choice != "staircase":
        with pictures.undrawn():
            assert command(choice, "--seed", 2, output=tmp_path)["results"] != found["results"]


@pytest.mark.parametrize("geometry", rescaled.GEOMETRIES)
def test_rescaled_tokens_in_space(geometry, tmp_path):
    flags = "--geometry", geometry, "--dim", 3
    found = command("rescaled", *flags, output=tmp_path)["results"]
    assert np.shape(found["positions"]) == (4, 8, 3)


def test_rescaled_tokens_in_many_dimensions(tmp_path, capsys):
    flags = ["--dim", "9", "--geometry", "codimension"]
    found = command("rescaled", *flags, output=tmp_path)["results"]
    assert np.shape(found["coordinates"]) == (4, 8, 8)
    assert np.shape(found["shrinking"]) == (4, 8, 1)
    assert found["volume"] == [None] * 4
    assert ", ..." in capsys.readouterr().out


@pytest.mark.parametrize("frames", [2, 3])
def test_leaders_at_few_times(frames, tmp_path):
    found = command("leaders", "--frames", frames, output=tmp_path)["results"]
    assert len(found["matrices"]) == frames


def test_leaders_in_many_dimensions(tmp_path):
    found = command("leaders", "--dim", 20, output=tmp_path)["results"]
    assert np.shape(found["matrices"]) == (4, 8, 8)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["phase-random", "--key-matrix", "gau"], r"unknown key matrix 'gau'.*mean gaussian"),
        (["phase-random", "--value-matrix", "x"], r"takes identity, gram, keys or minus-keys"),
        (["phase-random", "--shared", "x"], r"--shared takes no, trials or all"),
        (["phase-random", "--beta-max", "1e9"], r"needs too many steps: lower --time or --beta"),
        (["phase-random", "--beta-max", "0"], r"--beta-min 0 is not below --beta-max 0"),
        (["phase-random", "--regenerate", "1e-5"], r"give a longer period"),
        (["rescaled", "--geometry", "poly"], r"unknown geometry 'poly'.*Did you mean polytope"),
        (["rescaled", "--positive", "1"], r"--positive is of --geometry codimension and product"),
        (["rescaled", "--geometry", "product", "--positive", "3"], r"3 is above --dim 2"),
        (["rescaled", "--step", "3"], r"--step 3 is too long for V of norm 1: .* below 2.7"),
        (["rescaled", "--time", "400"], r"leaves the range of numbers at time 300: lower --time"),
        (
            ["rescaled", "--geometry", "codimension", "--dim", "3", "--time", "440"],
            r"leaves the range of numbers at time 351: lower --time",
        ),
        (
            ["rescaled", "--geometry", "hyperplanes", "--dim", "3", "--time", "30"],
            r"from time 21.4 on rounding would be most of the result: lower --time 30",
        ),
        (["block-sweep", "--over", "dim", "--dim", "7"], r"leave out --dim"),
        (["phase", "--trials", "1000000", "--particles", "10000"], r"lower --trials, until"),
        (["phase-random", "--trials", "1000000", "--particles", "512"], r"lower --trials, until"),
        (["first-clusters", "--particles", "1000000", "--frames", "999"], r"lower --frames, unt"),
        (["equiangular", "--particles", "512", "--frames", "1000000"], r"lower --frames, until"),
        (
            ["phase-random", "--dim", "100000", "--particles", "2", "--trials", "2"],
            r"2 random matrices in 100,000 dimensions are 20,000,000,000 numbers: lower --dim or",
        ),
        (["phase-random", "--dim", "500", "--frames", "9999"], r"lower --frames, until"),
        (["leaders", "--particles", "512", "--frames", "1000"], r"lower --frames, until"),
        (["rescaled", "--particles", "512", "--dim", "512", "--frames", "999"], r"lower --frames"),
        (["mean-field", "--cells", "100000", "--frames", "999"], r"lower --frames, until"),
        (["staircase", "--system", "none"], r"--system takes sa or usa"),
        (["staircase", "--beta", "1"], r"a staircase needs a beta above 1"),
        (["staircase", "--beta", "2", "--gaps", "9", "9"], r"more than half the circle"),
        (["first-clusters", "--beta", "0"], r"--beta 0 has no kernel with modes"),
        (["first-clusters", "--beta", "800"], r"e\^beta leaves the range of numbers at beta 800"),
        (["first-clusters", "--beta", "20", "--time", "9"], r"needs? too many steps: lower --time"),
        (["mean-field", "--scheme", "lax"], r"unknown scheme 'lax'.*lax-friedrichs"),
        (["mean-field", "--beta", "100", "--cells", "99"], r"99 cells are too few for beta 100"),
        (["mean-field", "--beta", "1e6"], r"leaves the range of numbers"),
        (
            ["mean-field", "--beta", "20", "--time", "9"],
            r"more than 200,000 steps",
        ),
    ],
)
def test_mistakes_end_in_a_sentence(flags, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=sentence):
        cli.main(["particles", *flags])
    assert not list(tmp_path.iterdir())
    (tmp_path / "particles").mkdir()  # the user's own stays
    with pytest.raises(SystemExit, match=sentence):
        cli.main(["particles", *flags])
    assert (tmp_path / "particles").is_dir() and not list((tmp_path / "particles").iterdir())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["leaders", "--particles", "1"], "1 is not a whole number from 2 to 512"),
        (["rescaled", "--dim", "1"], "1 is not a whole number from 2 to 512"),
        (["first-clusters", "--particles", "0"], "0 is not a whole number from 2"),
        (["mean-field", "--cells", "1"], "1 is not a whole number from 32"),
        (["staircase", "--gaps", "0"], "0 is not a number from 0.001"),
        (["phase-random", "--regenerate", "-1"], "-1 is not a number from 1e-9 to 1e9"),
    ],
)
def test_numbers_out_of_range_are_refused(flags, sentence, capsys):
    with pytest.raises(SystemExit):
        cli.main(["particles", *flags])
    assert sentence in capsys.readouterr().err
