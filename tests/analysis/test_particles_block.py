"""Particles with a perceptron block: formulas, numerical differentiation, known clouds."""

from functools import partial

import numpy as np
import pytest
from helpers.particles import simulate
from scipy.integrate import quad
from scipy.special import iv

from macaron_fairseq import UserError, cli
from macaron_fairseq.analysis import measures
from macaron_fairseq.analysis.particles import drawing, growth, simulation, systems
from macaron_fairseq.analysis.particles.block import experiments, localization, settling, views
from macaron_fairseq.analysis.particles.sphere import equal_cosines
from macaron_fairseq.analysis.particles.systems import System

pytestmark = pytest.mark.usefixtures("undrawn")

DIRECTIONS = pytest.mark.parametrize("descends", [False, True])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])


def circle(*angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


# What moves the particles, and what they climb.


@ACTIVATIONS
def test_potentials_are_the_integrals_of_the_activations(activation):
    """phi' = 2 sigma with phi = 2 S, as the paper has it."""
    sigma, integral = systems.ACTIVATIONS[activation]
    u, h = np.linspace(-4, 4, 41), 1e-5
    assert (2 * integral(u + h) - 2 * integral(u - h)) / (2 * h) == pytest.approx(
        2 * sigma(u),
        abs=1e-5,  # relu has a kink
    )
    assert integral(u) - integral(0.0) == pytest.approx([quad(sigma, 0, x)[0] for x in u])


@DIRECTIONS
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "tanh"])
@pytest.mark.parametrize("beta", [0, 2.5, 40])
def test_scaled_usa_moves_along_the_gradient_of_its_energy(beta, activation, descends):
    x = simulation.random_start(5, 3, seed=2)
    block = activation and systems.random_perceptron(activation, 4, 3, 0.8, seed=1)
    system = System("usa-scaled", beta, block, descends)
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        ends = [x + step, x - step]  # back on the sphere, so that the gradient is tangent
        ends = [system.energy(y / np.linalg.norm(y, axis=1, keepdims=True)) for y in ends]
        gradient[place] = (ends[0] - ends[1]) / 2e-5
    sign = -1 if descends else 1
    assert system.velocity(x) == pytest.approx(sign * 5 * gradient, abs=1e-7)


@DIRECTIONS
@pytest.mark.parametrize("name", ["usa", "usa-scaled"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "tanh"])
def test_energy_only_rises_or_only_falls(name, activation, descends):
    start = simulation.random_start(12, 2, seed=4)
    block = activation and systems.random_perceptron(activation, 3, 2, 0.3, seed=2)
    system = System(name, 3, block, descends)
    path = simulation.integrate(system, start, np.linspace(0, 20, 41))
    energies = np.array([system.energy(x) for x in path])
    change = -np.diff(energies) if descends else np.diff(energies)
    assert change.min() > -1e-9
    assert change.sum() > 1e-3


def test_scaled_usa_is_usa_by_another_clock():
    start = simulation.random_start(6, 3, seed=1)
    times = np.linspace(0, 3, 7)
    slow = simulation.integrate(System("usa-scaled", 2), start, times * np.exp(2))
    assert slow == pytest.approx(simulation.integrate(System("usa", 2), start, times), abs=1e-6)


def test_scaled_usa_never_overflows():
    x = simulation.random_start(6, 3, seed=1)
    with np.errstate(over="raise", invalid="raise"):
        assert System("usa-scaled", 1e9).velocity(x) == pytest.approx(np.zeros_like(x))


@pytest.mark.parametrize("name", ["sa", "usa", "usa-scaled"])
@DIRECTIONS
def test_two_particles_follow_the_scalar_equation(name, descends):
    """rho' = 2 (1 - rho^2) e^(beta rho) / Z with Z = e^beta + e^(beta rho), 2 or 2 e^beta."""
    beta, rho = 1.5, -0.3
    times = np.linspace(0, 2, 5)
    sign = -1 if descends else 1

    def weight(r):
        total = {"sa": np.exp(beta) + np.exp(beta * r), "usa": 2, "usa-scaled": 2 * np.exp(beta)}
        return np.exp(beta * r) / total[name]

    path = simulation.integrate(
        System(name, beta, descends=descends), circle(0, np.arccos(rho)), times
    )
    for time, end in zip(times[1:], (path[1:, 0] * path[1:, 1]).sum(axis=1), strict=True):
        # Separation of variables: the time from rho to the end.
        needed = quad(lambda r: 1 / (2 * (1 - r**2) * weight(r)), rho, end)[0]
        assert sign * needed == pytest.approx(time, abs=1e-5)
    assert equal_cosines.rate(rho, beta, 2, name) == pytest.approx(2 * (1 - rho**2) * weight(rho))


@pytest.mark.parametrize("name", ["sa", "usa", "usa-scaled", "none"])
@DIRECTIONS
def test_the_field_at_the_particles_is_their_velocity(name, descends):
    angles = np.array([-2, -0.3, 0.4, 2.9])
    block = systems.random_perceptron("gelu", 3, 2, 0.7, seed=1)
    system = System(name, 2, block, descends)
    found = experiments.field(system, circle(*angles)[None], angles)
    tangents = circle(*(angles + np.pi / 2))
    expected = (system.velocity(circle(*angles)) * tangents).sum(axis=1)
    assert found.attention[0] + found.block == pytest.approx(expected)


def test_the_field_of_attention_far_from_all_particles():
    """SA weighs particles against each other: the nearest has all the weight."""
    system = System("sa", 1e4, systems.random_perceptron("gelu", 3, 2, 0.7, seed=1))
    found = experiments.field(system, circle(0.0, 0.5)[None], np.array([-1.5, 2.5]))
    assert found.attention[0] == pytest.approx(np.sin([1.5, -2.0]))


# Theory.


@pytest.mark.parametrize(
    ("beta", "mode"), [(0, 1), (1, 1), (3, 2), (5, 3), (7, 4), (10, 4), (25, 7)]
)
def test_the_mode_that_grows_fastest(beta, mode):
    assert growth.predicted_mode(beta) == mode


@pytest.mark.parametrize("beta", [1e4, 1e6, 1e9])
def test_no_beta_overflows_the_growth_rates(beta):
    # A Gaussian where beta is large: k^2 e^(-k^2 / (2 beta)), largest at sqrt(2 beta).
    assert growth.predicted_mode(beta) == pytest.approx(np.sqrt(2 * beta), rel=0.02)
    assert np.isfinite(growth.rates(beta, 20)).all()


@pytest.mark.parametrize("beta", [0, 1, 5, 25])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_waves_on_the_circle_grow_at_that_rate(beta, k):
    even = 2 * np.pi * np.arange(60) / 60
    wave = 1e-6 * np.sin(k * even)
    velocity = System("usa-scaled", beta).velocity(circle(*(even + wave)))
    speed = (velocity * circle(*(even + wave + np.pi / 2))).sum(axis=1)
    rate = growth.rates(beta, k)[k]
    assert speed == pytest.approx(rate * wave, abs=1e-11)
    if beta:
        assert rate == pytest.approx(np.exp(-beta) * k**2 * iv(k, beta) / beta)


def test_the_bound_of_the_heaviest_mass():
    assert localization.heaviest_mass_bound(1e9, 3) == pytest.approx(0.5742, abs=5e-5)
    assert localization.heaviest_mass_bound(1e9, 3) == pytest.approx(16 / (16 + 3 * np.exp(11 / 8)))
    # (4 + 2 * 4.4817) / (4 + 0.75 * 3.9551)
    assert localization.heaviest_mass_bound(0, 1) == pytest.approx(1.8609, abs=1e-4)


@ACTIVATIONS
def test_the_constant_of_the_block(activation):
    slope = max(np.gradient(systems.ACTIVATIONS[activation][0](np.linspace(-9, 9, 9001)), 0.002))
    assert localization.SLOPES[activation] == pytest.approx(slope, abs=1e-5)
    block = systems.Perceptron(
        activation, np.array([[3.0, 4], [1, 0]]), np.array([[0, 2.0], [1, 0]])
    )
    expected = 2 * (slope * 25 + (0 + slope * 5) * 5) + 1 * (slope + slope)
    assert localization.block_constant(block) == pytest.approx(expected, rel=1e-4)
    assert localization.block_constant(None) == 0


# Clusters, modes, masses, rest.


def test_thresholds():
    assert settling.threshold(0.1, 25, 2) == pytest.approx(0.02)
    assert settling.threshold(2, 1, 3) == pytest.approx(np.pi / 6)
    assert settling.threshold(0.1, 0, 2) == pytest.approx(np.pi / 4)


def test_clusters_on_the_circle_are_arcs():
    # A chain of small steps is longer than an arc; one cluster lies across the cut at pi.
    chain = np.arange(5) * 0.09
    x = circle(*chain, np.pi - 0.02, -np.pi + 0.02, -1)
    labels = settling.cluster_labels(x, 0.2)
    groups = {frozenset(np.flatnonzero(labels == i).tolist()) for i in range(labels.max() + 1)}
    assert groups == {frozenset({0, 1, 2}), frozenset({3, 4}), frozenset({5, 6}), frozenset({7})}
    assert settling.masses(labels) == pytest.approx([3 / 8, 2 / 8, 2 / 8, 1 / 8])
    assert settling.spread(x, labels) == pytest.approx(0.18)


def test_clusters_on_the_sphere_are_chains():
    chain = circle(*np.arange(5) * 0.09, 2)
    x = np.pad(chain, ((0, 0), (0, 1)))
    assert settling.masses(settling.cluster_labels(x, 0.1)) == pytest.approx([5 / 6, 1 / 6])
    assert settling.spread(x, settling.cluster_labels(x, 0.1)) == pytest.approx(0.36)
    assert settling.cluster_labels(x, 0.08).max() == 5


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_modes_are_the_peaks_of_the_density(dim):
    generator = np.random.default_rng(1)
    middles = np.eye(dim)[:2]

    def around(sizes):
        near = np.repeat(middles, sizes, axis=0)
        near = near + 0.03 * generator.normal(size=near.shape)
        return near / np.linalg.norm(near, axis=1, keepdims=True)

    assert settling.modes(around([40, 30]), 0.3) == 2
    assert settling.modes(around([40, 2]), 0.3) == 1  # too few to count
    assert settling.modes(np.repeat(middles, 3, axis=0), 0.3) == 2  # points on top of each other


def test_particles_rest_when_nothing_changes():
    start = simulation.random_start(20, 2, seed=1)
    end = settling.settle(System("usa-scaled", 1), start, 0.1, time=500, drift=5e-4)
    assert end.converged and end.time < 500
    assert set(end.labels) == {0}
    assert np.linalg.norm(System("usa-scaled", 1).velocity(end.positions), axis=1).max() <= 5e-4
    # The same path, at once.
    there = simulation.integrate(System("usa-scaled", 1), start, np.array([0, end.time]))[-1]
    assert end.positions == pytest.approx(there, abs=1e-6)
    early = settling.settle(System("usa-scaled", 1), start, 0.1, time=7.5, drift=5e-4)
    assert (early.converged, early.time) == (False, 7.5)


def test_a_start_that_is_slow_is_not_at_rest():
    """In 64 dimensions a random start moves at 3e-5; what cannot move is at rest."""
    start = simulation.random_start(100, 64, seed=1)
    system = System("usa-scaled", 10)
    assert 0 < np.linalg.norm(system.velocity(start), axis=1).max() < 5e-4
    end = settling.settle(system, start, settling.threshold(0.5, 10, 64), time=20, drift=5e-4)
    assert (end.converged, end.time) == (False, 20)
    still = settling.settle(System("none", 10), start, 0.1, time=20, drift=5e-4)
    assert (still.converged, still.time) == (True, settling.WINDOW - 1)


def test_particles_that_repel_each_other_spread_evenly():
    start = simulation.random_start(4, 2, seed=1)
    end = settling.settle(System("usa-scaled", 1, None, True), start, 0.1, time=300, drift=1e-6)
    angles = np.sort(np.arctan2(*end.positions.T))
    assert np.diff(angles) == pytest.approx([np.pi / 2] * 3, abs=1e-3)
    assert settling.masses(end.labels) == pytest.approx([0.25] * 4)


# The experiments.


def test_a_strong_block_decides_where_particles_end():
    """They climb to its potential's maxima or descend to its minima; without it, to one point."""
    block = systems.gradient_form("relu", np.array([[1.0, 0], [-1, 0]]), np.array([5.0, 5.0]))
    starts = simulation.random_start(20, 2, seed=1, trials=2)
    criteria = experiments.Criteria(scale=0.1, drift=1e-4, time=200, mass=0.3)
    found = experiments.counts(System("usa-scaled", 1, block), starts, np.array([1.0]), criteria)
    assert found.without.clusters.tolist() == [[1, 1]]
    assert found.with_block.clusters.tolist() == [[2, 2]]
    assert found.with_block.modes.tolist() == [[2, 2]]
    assert found.with_block.converged.all() and found.without.converged.all()
    assert found.with_block.time.max() < found.without.time.min()
    east = [(start[:, 0] > 0).mean() for start in starts]
    assert [x[0] for x in found.with_block.masses[0]] == [max(x, 1 - x) for x in east]
    assert found.with_block.heavy.tolist() == [[1 + (min(x, 1 - x) >= 0.3) for x in east]]
    assert found.predicted_mode.tolist() == [1]
    up, down = (
        experiments.paths(
            System("usa-scaled", 1, block, descends), starts[0], np.array([0, 40.0]), 0.1
        ).with_block.positions[-1]
        for descends in (False, True)
    )
    assert np.abs(up[:, 0]).min() > 0.99
    assert np.abs(down[:, 0]).max() < 0.5


def test_the_share_of_a_cap():
    """On the circle an arc; on the sphere Archimedes' (1 - cosine) / 2."""
    for cosine in (-0.5, 0.2, 0.999):
        assert measures.share_of_cap(cosine, 2) == pytest.approx(np.arccos(cosine) / np.pi)
        assert measures.share_of_cap(cosine, 3) == pytest.approx((1 - cosine) / 2)
    near = simulation.random_start(10**5, 5, seed=1)[:, 0] > 0.6
    assert measures.share_of_cap(0.6, 5) == pytest.approx(near.mean(), rel=0.03)


def test_chains_by_chance_are_told_of(tmp_path, capsys):
    for particles, is_told in (("300", True), ("8", False)):
        words = ["--particles", particles, "--dim", "2", "--time", "0.1", "-o", str(tmp_path)]
        cli.main(["particles", "trajectories", *words])
        assert ("within the cosine 0.999 of each" in capsys.readouterr().out) == is_told


def test_a_bound_is_told_where_it_holds():
    starts = simulation.random_start(4, 2, seed=1, trials=1)
    criteria = experiments.Criteria(scale=0.1, drift=1e-4, time=1, mass=0.3)

    def bounds(name, descends):
        found = experiments.counts(System(name, 1, None, descends), starts, np.ones(1), criteria)
        return found.bound is not None, found.bound_without is not None

    assert bounds("usa", True) == (True, True)
    assert bounds("usa-scaled", True) == (False, True)
    for name, descends in (("usa-scaled", False), ("usa", False), ("sa", True), ("none", True)):
        assert bounds(name, descends) == (False, False)


@pytest.mark.parametrize("system", [System("none", 1), System("usa", 1, descends=True)])
def test_where_no_mode_grows_none_is_predicted(system):
    starts = simulation.random_start(4, 2, seed=1, trials=1)
    criteria = experiments.Criteria(scale=0.1, drift=1e-4, time=1, mass=0.3)
    found = experiments.counts(system, starts, np.array([1.0]), criteria)
    assert found.predicted_mode is None


def test_cells_of_the_sphere_have_one_area():
    """The middle of each is in it, and even points are."""
    longitudes, heights = views.CELLS
    east = -np.pi + 2 * np.pi / longitudes * (np.arange(longitudes)[:, None] + 0.5)
    up = -1 + 2 / heights * (np.arange(heights) + 0.5) + 0 * east
    flat = np.sqrt(1 - up**2)
    x = np.stack([flat * np.cos(east), flat * np.sin(east), up], axis=-1)
    assert (views.counts_of_cells(x.reshape(-1, 3)) == 1).all()
    counts = views.counts_of_cells(simulation.random_start(10**5, 3, seed=1))
    assert np.abs(counts / 10**5 * longitudes * heights - 1).max() < 0.25  # 5 standard deviations


# The command.

SMALL = {
    "modes": ["--beta", "1", "3"],
    "block-paths": ["--particles", "6", "--time", "3"],
    "block-frames": ["--particles", "6", "--time", "3"],
    "block-counts": ["--particles", "6", "--time", "30", "--trials", "2", "--beta", "0", "1"],
    "block-energy": ["--particles", "6", "--time", "3", "--beta", "0", "1"],
    "block-sweep": ["--particles", "6", "--time", "30", "--values", "2", "3", "--trials", "1"],
}
command = partial(simulate, SMALL)


@pytest.mark.parametrize(
    ("choice", "flags"),
    [
        ("modes", []),
        ("block-paths", []),
        ("block-paths", ["--dim", "3", "--direction", "descent"]),
        ("block-frames", ["--shown", "1", "2"]),
        ("block-frames", ["--dim", "3", "--system", "sa"]),
        ("block-counts", ["--dim", "4"]),
        ("block-energy", ["--direction", "descent", "--perceptron", "relu"]),
    ],
)
def test_command_writes_numbers_and_a_picture(choice, flags, drawn, tmp_path, capsys):
    found = command(choice, *flags, output=tmp_path)
    assert found["experiment"] == choice
    assert f"{choice}.json" in capsys.readouterr().out
    assert found["results"]


def test_of_many_particles_some_paths_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "MOST_PATHS", 4)
    assert drawing.drawn_of(4).tolist() == [0, 1, 2, 3]
    assert drawing.drawn_of(6).tolist() == [0, 2, 4]
    found = command("block-paths", output=tmp_path)["results"]
    assert np.shape(found["with_block"]["positions"])[1] == 6  # the file holds all


@pytest.mark.parametrize("dim", [2, 3])
def test_clusters_that_cosines_do_not_tell_apart_are_refused(dim):
    with pytest.raises(UserError, match=r"1e-09 at beta 4 is 5e-10 radians, which cosines do not"):
        settling.threshold(1e-9, 4.0, dim)
    for beta in (2.0, 7.0):
        with pytest.raises(UserError) as error:
            settling.threshold(1e-9, beta, dim)
        settling.threshold(float(str(error.value).split()[-1]), beta, dim)  # what it says will do


def test_a_sweep_over_dimensions_has_its_own_null(tmp_path):
    results = command("block-sweep", "--over", "dim", output=tmp_path)["results"]
    assert results["systems"] == ["usa-scaled", "sa"]
    assert [len(x["clusters"]) for x in results["without"]] == [2, 2]
    results = command("block-sweep", output=tmp_path)["results"]
    assert [len(x["clusters"]) for x in results["without"]] == [1, 1]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["block-paths", "--dim", "4"], r"--dim 4 cannot be drawn: choose 2, the circle, or 3"),
        (["block-paths", "--direction", "up"], r"unknown direction 'up': --direction takes ascent"),
        (
            ["block-paths", "--system", "usa", "--beta", "800"],
            r"too many steps: lower --time",
        ),
        (["block-energy", "--system", "usa"], r"needs too many steps"),
        (["block-counts", "--system", "usa"], r"needs too many steps"),
        (
            ["block-counts", "--strength", "1e6"],
            r"too many steps: lower --time or weaken the perceptron",
        ),
        (["block-counts", "--beta", "1", "1"], r"--beta holds a value twice"),
        (["block-frames", "--time", "3", "--shown", "4"], r"none after --time 3"),
        (["block-frames", "--shown", "0"], r"--shown needs a time above 0"),
        (["block-sweep", "--over", "beta"], r"unknown sweep 'beta': --over takes strength or dim"),
        (["block-sweep", "--over", "dim", "--values", "2", "2.5"], r"holds no dimensions"),
        (["block-sweep", "--over", "dim", "--values", "1"], r"holds no dimensions"),
        (["block-sweep", "--strength", "2"], r"leave out --strength"),
        (["block-sweep", "--system", "saa"], r"unknown system 'saa'"),
        (["block-sweep", "--system", "sa", "sa"], r"--system holds a name twice"),
        (
            ["block-paths", "--cluster-scale", "1e-9"],
            r"--cluster-scale 1e-09 at beta .* from 0: give",
        ),
        (["block-paths", "--particles", "100000"], r"numbers: lower --particles, until there are"),
        (["block-counts", "--particles", "100000", "--dim", "50"], r"numbers: lower --particles"),
    ],
)
def test_mistakes_end_in_a_sentence(flags, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=sentence):
        cli.main(["particles", *flags])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--mass", "1.5"], "argument --mass: 1.5 is not a share of at most 1"),
        (["--drift", "0"], "argument --drift: 0 is not a number from 1e-9 to 1e9"),
    ],
)
def test_numbers_out_of_range_are_refused(flags, sentence, capsys):
    with pytest.raises(SystemExit):
        cli.main(["particles", "block-counts", *flags])
    assert sentence in capsys.readouterr().err


def test_weights_without_a_potential_can_be_counted_and_not_drawn(tmp_path):
    (tmp_path / "w.json").write_text('{"a": [[1, 0]], "w": [[0, 1]]}')
    flags = ["--weights", tmp_path / "w.json", "--beta", 1]
    assert command("block-counts", *flags, output=tmp_path / "out")["results"]
    with pytest.raises(SystemExit, match="a potential needs weights in gradient form"):
        command("block-paths", *flags, output=tmp_path / "out")
    with pytest.raises(SystemExit, match="leave out --weights"):
        command("block-sweep", "--weights", tmp_path / "w.json", output=tmp_path / "out")
