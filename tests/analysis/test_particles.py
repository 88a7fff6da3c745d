"""The ideal systems, against closed forms, numerical differentiation and what is proved of them."""

import json
from functools import partial

import numpy as np
import pytest
from helpers import pictures
from helpers.particles import simulate

from macaron_fairseq import UserError, cli
from macaron_fairseq.analysis import measures
from macaron_fairseq.analysis.particles import run, simulation, systems
from macaron_fairseq.analysis.particles.sphere import equal_cosines, experiments
from macaron_fairseq.analysis.particles.systems import System

pytestmark = pytest.mark.usefixtures("undrawn")

WELLS = systems.gradient_form("tanh", np.array([[1.5, 0.0]]), np.array([2.0]))
TIMES = np.linspace(0, 20, 41)


def move(system, start, times=TIMES):
    return simulation.integrate(system, start, times)


def rotated(seed, dim):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


# What moves the particles.


def test_velocity_of_two_orthogonal_particles():
    x = np.eye(2)
    e = np.e
    # The other one's weight is 1 beside one's own e; one's own pull has no tangent part.
    assert System("sa", 1).velocity(x) == pytest.approx(x[::-1] / (e + 1))
    assert System("usa", 1).velocity(x) == pytest.approx(x[::-1] / 2)
    assert not System("none", 1).velocity(x).any()


def test_velocity_of_three_particles_by_the_sums():
    x = simulation.random_start(3, 4, seed=5)
    beta = 1.7
    block = systems.random_perceptron("relu", 5, 4, 0.7, seed=3)
    for name in ("sa", "usa"):
        for i, found in enumerate(System(name, beta, block).velocity(x)):
            weights = [np.exp(beta * sum(x[i] * x[j])) for j in range(3)]
            pull = sum(weights[j] * x[j] for j in range(3))
            pull = pull / (sum(weights) if name == "sa" else 3)
            for a, s in zip(block.a, block.s, strict=True):
                pull = pull + s * max(0, sum(a * x[i])) * a
            assert found == pytest.approx(pull - sum(pull * x[i]) * x[i])


def test_a_perceptron_in_any_form_adds_its_neurons():
    block = systems.Perceptron("relu", np.array([[1.0, 0], [0, -1]]), np.array([[0, 3.0], [5, 5]]))
    assert block.drift(np.array([[0.6, 0.8]])) == pytest.approx(np.array([[0, 1.8]]))
    with pytest.raises(ValueError, match="gradient form"):
        block.potential(np.eye(2))


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "tanh"])
@pytest.mark.parametrize("beta", [0, 2.5])
def test_usa_climbs_its_energy(beta, activation):
    """Its velocity is n times the gradient of F, here by differences, on the product of spheres."""
    x = simulation.random_start(5, 3, seed=2)
    block = activation and systems.random_perceptron(activation, 4, 3, 0.8, seed=1)

    def climbed(points):  # constant along each |x_i|, so that its gradient is tangent
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
        potential = block.potential(points).mean() if block else 0
        return np.exp(beta) * measures.energy(points, beta) + potential

    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        gradient[place] = (climbed(x + step) - climbed(x - step)) / 2e-5
    assert System("usa", beta, block).velocity(x) == pytest.approx(5 * gradient, abs=1e-8)


def test_no_beta_overflows_sa():
    x = simulation.random_start(8, 3, seed=1)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert np.abs(System("sa", 1e9).velocity(x)).max() < 1e-12
        assert move(System("sa", 1e9), x)[-1] == pytest.approx(x)


# How they move.


@pytest.mark.parametrize("name", ["sa", "usa"])
def test_two_particles_at_beta_0_follow_the_closed_form(name):
    # Half of each one's pull is the other: the angle phi between them follows phi' = -sin phi.
    start = np.array([[1, 0, 0], [np.cos(2.5), np.sin(2.5), 0]])
    found = np.arccos(np.clip((np.prod(move(System(name, 0), start), axis=1)).sum(axis=1), -1, 1))
    assert found == pytest.approx(2 * np.arctan(np.tan(1.25) * np.exp(-TIMES)), abs=1e-6)


def test_a_relu_neuron_pulls_along_the_closed_form():
    # u = <x, a> > 0 follows u' = u (1 - u^2), so that u^2 / (1 - u^2) grows like e^(2 t).
    block = systems.gradient_form("relu", np.array([[0.0, 1, 0]]), np.array([1.0]))
    start = np.array([[0.8, 0.6, 0], [0.8, -0.6, 0]])
    found = move(System("none", 0, block), start)
    ratio = 0.36 / 0.64 * np.exp(2 * TIMES)
    assert found[:, 0, 1] == pytest.approx(np.sqrt(ratio / (1 + ratio)), abs=1e-7)
    assert found[:, 1] == pytest.approx(np.tile(start[1], (41, 1)))  # where relu is 0


@pytest.mark.parametrize("name", ["sa", "usa"])
def test_turning_the_start_turns_the_paths(name):
    start, turn = simulation.random_start(6, 4, seed=3), rotated(1, 4)
    system = System(name, 2)
    assert move(system, start @ turn) == pytest.approx(move(system, start) @ turn, abs=1e-6)


@pytest.mark.parametrize("name", ["sa", "usa"])
@pytest.mark.parametrize("beta", [0, 1, 4])
def test_energy_rises(name, beta):
    start = simulation.random_start(20, 3, seed=4)
    energies = [measures.energy(x, beta) for x in move(System(name, beta), start)]
    assert np.diff(energies).min() > -1e-9
    assert energies[-1] > energies[0] + 0.001


def test_energy_and_potential_together_rise_along_usa():
    # All start near the ridge between two steep wells, which tears them apart.
    angles = np.pi / 2 + np.linspace(-0.1, 0.11, 20)
    start = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    block = systems.gradient_form("gelu", np.array([[1.0, 0], [-1, 0]]), np.array([30.0, 30]))
    result = experiments.trajectories(System("usa", 2, block), start, TIMES, 0.999)
    assert np.diff(result.total).min() > -1e-9
    assert result.total[-1] > result.total[0] + 0.1
    assert result.energy[-1] < result.energy[0] - 0.1


@pytest.mark.parametrize("name", ["sa", "usa"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_particles_in_many_dimensions_end_in_one_point(name, seed):
    start = simulation.random_start(10, 12, seed)
    assert measures.clusters(start, 0.999) == 10
    end = move(System(name, 2), start, np.array([0.0, 40]))[-1]
    assert measures.cosines(end).min() > 1 - 1e-9


def test_without_attention_and_perceptron_nothing_moves():
    start = simulation.random_start(10, 12, seed=1)
    end = move(System("none", 2), start)[-1]
    assert end == pytest.approx(start, abs=1e-14)
    assert measures.clusters(end, 0.999) == 10


def test_without_attention_no_particle_feels_another():
    """A perceptron alone gathers particles in its own wells, however many there are."""
    start = simulation.random_start(20, 2, seed=1)
    together = move(System("none", 2, WELLS), start)
    alone = [move(System("none", 2, WELLS), one[None])[:, 0] for one in start]
    assert together == pytest.approx(np.stack(alone, axis=1), abs=1e-6)
    # The wells are at x_1 = 1 and -1, and nobody crosses the ridge between them.
    assert together[-1, :, 0] == pytest.approx(np.sign(start[:, 0]), abs=1e-6)
    assert measures.clusters(together[-1], 0.999) == 2


# Equal cosines.


@pytest.mark.parametrize("name", ["sa", "usa", "usa-scaled"])
@pytest.mark.parametrize(("n", "rho"), [(2, -0.9), (5, -0.2), (5, 0), (9, 0.4)])
def test_equiangular_rate_is_what_the_particles_do(name, n, rho):
    x = equal_cosines.start(n, rho)
    assert x @ x.T == pytest.approx((1 - rho) * np.eye(n) + rho)
    velocity = System(name, 1.5).velocity(x)
    rates = (velocity @ x.T + x @ velocity.T)[~np.eye(n, dtype=bool)]
    assert rates == pytest.approx(np.full(n * (n - 1), equal_cosines.rate(rho, 1.5, n, name)))


@pytest.mark.parametrize("name", ["sa", "usa"])
@pytest.mark.parametrize(("n", "rho"), [(16, 0), (4, -0.3)])
def test_equiangular_particles_follow_their_equation(name, n, rho):
    result = experiments.equiangular(name, n, rho, TIMES, [0, 1, 4])
    assert result.difference.max() < 1e-6  # 1e-3 is asked for
    assert result.equation[:, 0] == pytest.approx([rho] * 3)
    assert result.simulation[:2, -1] == pytest.approx([1] * 2, abs=1e-3)


def test_equiangular_rate_by_hand():
    # n = 2, rho = 0: SA 2 / (e^beta + 1), USA 1.
    assert equal_cosines.rate(0, 1, 2, "sa") == pytest.approx(2 / (np.e + 1))
    assert equal_cosines.rate(0, 1, 2, "usa") == pytest.approx(1)
    assert equal_cosines.rate(0, 1e9, 2, "sa") == 0


# Many trials.


def test_phase_of_pairs_is_the_closed_form():
    # Two random particles on the circle at beta 0: their angle starts uniform in [0, pi] and has
    # come below that of the cosine at t if tan(phi_0 / 2) < e^t tan(phi_c / 2), as above.
    times = np.linspace(0, 8, 5)
    starts = simulation.random_start(2, 2, seed=1, trials=2000)
    result = experiments.phase(System("sa", 0), starts, times, np.array([0.0]), cosine=0.99)
    expected = 2 / np.pi * np.arctan(np.exp(times) * np.tan(np.arccos(0.99) / 2))
    assert result.all_pairs[0] == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 2000))
    assert result.pairs == pytest.approx(result.all_pairs)


@pytest.mark.parametrize("limit", ["MOST_COSINES", "MOST_POSITIONS"])
def test_phase_in_parts_is_the_same(limit, monkeypatch):
    starts = simulation.random_start(6, 2, seed=1, trials=7)
    betas = np.array([0.0, 2.0])
    whole = experiments.phase(System("sa", 0), starts, TIMES, betas, cosine=0.9)
    monkeypatch.setattr(simulation, limit, 36 * 3)
    parts = experiments.phase(System("sa", 0), starts, TIMES, betas, cosine=0.9)
    assert (whole.pairs == parts.pairs).all()
    # Counted one by one, at one place.
    ends = [move(System("sa", 2), start)[20] for start in starts]
    assert 0 < whole.all_pairs[1, 20] < whole.pairs[1, 20] < 1
    assert whole.all_pairs[1, 20] == np.mean([measures.cosines(x).min() > 0.9 for x in ends])
    assert whole.pairs[1, 20] == pytest.approx(
        np.mean([measures.share_above(x, 0.9) for x in ends])
    )


def test_equiangular_time_is_when_the_equation_arrives():
    # n = 2 at beta 0: rho = cos phi with tan(phi / 2) = e^-t.
    starts = simulation.random_start(2, 2, seed=1, trials=1)
    betas = np.array([0.0, 20.0])
    result = experiments.phase(System("sa", 0), starts, np.linspace(0, 9, 4), betas, cosine=0.99)
    assert result.equiangular_time[0] == pytest.approx(
        -np.log(np.tan(np.arccos(0.99) / 2)), abs=0.01
    )
    assert np.isnan(result.equiangular_time[1])  # far later


def test_equiangular_time_is_without_a_perceptron():
    starts = simulation.random_start(2, 2, seed=1, trials=1)
    betas = np.array([0.0])
    result = experiments.phase(System("sa", 0, WELLS), starts, TIMES, betas, cosine=0.99)
    assert np.isnan(result.equiangular_time).all()


def test_landscape_ends_in_the_wells():
    start = simulation.random_start(12, 2, seed=1)
    betas = np.array([0.0, 30.0])
    result = experiments.landscape(System("sa", 0, WELLS), start, 40, betas, 0.999)
    assert result.clusters[1] == 2
    assert np.abs(np.cos(result.final_angles[1])) == pytest.approx(np.ones(12), abs=1e-3)
    assert result.separation[1] == pytest.approx(np.pi, abs=0.01)
    assert result.speed.max() < 1e-3
    assert result.potential == pytest.approx(2 * np.log(np.cosh(1.5 * np.cos(result.angles))))


# The command.

SMALL = {
    "trajectories": ["--particles", "5", "--frames", "4", "--time", "2"],
    "histograms": ["--particles", "5", "--frames", "4", "--time", "2", "--shown", "0", "2"],
    "phase": ["--particles", "4", "--frames", "3", "--time", "2", "--betas", "3", "--trials", "3"],
    "equiangular": ["--particles", "4", "--frames", "5", "--time", "2", "--beta", "0", "2"],
    "landscape": ["--particles", "4", "--time", "2", "--betas", "3"],
}
command = partial(simulate, SMALL)


@pytest.mark.parametrize("choice", SMALL)
def test_command_writes_numbers_and_a_picture(choice, drawn, tmp_path, capsys):
    found = command(choice, output=tmp_path)
    assert found["experiment"] == choice
    assert found["parameters"]["particles"] == int(SMALL[choice][1])
    assert {"numpy", "scipy", "matplotlib", "python"} < found["versions"].keys()
    assert f"{choice}.json" in capsys.readouterr().out
    with pictures.undrawn():
        assert command(choice, output=tmp_path) == found
        if choice != "equiangular":
            assert command(choice, "--seed", 2, output=tmp_path)["results"] != found["results"]


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_trajectories_hold_the_paths(dim, drawn, tmp_path):
    found = command("trajectories", "--dim", dim, "--system", "usa", "--beta", 1, output=tmp_path)
    paths = np.array(found["results"]["positions"])
    assert paths.shape == (4, 5, dim)
    assert np.linalg.norm(paths, axis=2) == pytest.approx(np.ones((4, 5)))
    assert found["results"]["clusters"][0] == measures.clusters(paths[0], 0.999)
    assert found["results"]["mean_cosine"][-1] == pytest.approx(measures.cosines(paths[-1]).mean())
    assert found["results"]["potential"] is None


def test_histograms_count_each_pair(tmp_path):
    counts = command("histograms", output=tmp_path)["results"]["counts"]
    assert [sum(row) for row in counts] == [10] * 4


def test_a_perceptron_can_be_written_down_and_used_again(tmp_path):
    flags = ("--dim", 3, "--perceptron", "gelu", "--neurons", 3, "--strength", 0.5)
    found = command("trajectories", *flags, output=tmp_path)
    assert np.abs(found["perceptron"]["s"]) == pytest.approx([0.5] * 3)
    (tmp_path / "weights.json").write_text(json.dumps({k: found["perceptron"][k] for k in "as"}))
    flags = ("--dim", 3, "--perceptron", "gelu", "--weights", tmp_path / "weights.json")
    again = command("trajectories", *flags, output=tmp_path)
    assert again["results"] == found["results"]
    # Without it, the same start.
    other = command("trajectories", "--dim", 3, output=tmp_path)
    assert other["results"]["positions"][0] == found["results"]["positions"][0]
    assert other["results"]["positions"][-1] != found["results"]["positions"][-1]


def test_weights_in_any_form_have_no_potential(tmp_path):
    (tmp_path / "w.json").write_text('{"a": [[1, 0, 0]], "w": [[0, 1, 0]]}')
    flags = ("--perceptron", "relu", "--weights", tmp_path / "w.json")
    found = command("trajectories", *flags, output=tmp_path)
    assert found["perceptron"]["s"] is found["results"]["total"] is None


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["trajectories", "--system", "ussa"],
            r"sa, usa, usa-scaled or none\. Did .* usa",
        ),
        (["trajectories", "--system", "x"], r"takes sa, usa, usa-scaled or none"),
        (
            ["trajectories", "--perceptron", "rellu"],
            r"unknown activation 'rellu': .*\. Did you mean relu",
        ),
        (["trajectories", "--neurons", "3"], r"--neurons is of a perceptron: add --perceptron"),
        (
            ["trajectories", "--system", "usa", "--beta", "50"],
            r"needs too many steps: lower --time",
        ),
        (
            ["phase", "--system", "usa"],
            r"lower --time, or lower beta, since the rate of usa is e\^beta, until",
        ),
        (["phase", "--system", "usa", "--beta-max", "1e9"], r"needs too many steps"),
        (["equiangular", "--system", "usa", "--beta", "1", "800"], r"needs too many steps"),
        (
            ["landscape", "--strength", "1e9"],
            r"too many steps: lower --time or weaken the perceptron",
        ),
        (
            ["phase", "--beta-min", "3", "--beta-max", "3"],
            r"--beta-min 3 is not below --beta-max 3",
        ),
        (
            ["equiangular", "--rho", "-0.5", "--particles", "4"],
            r"choose one above -0.3333 and below",
        ),
        (["equiangular", "--system", "none"], r"take --system sa or usa"),
        (
            ["phase", "--betas", "1000000", "--frames", "100000"],
            r"1,000,000 betas at 100,000 times are 100,000,000,000 numbers: lower --betas or",
        ),
        (
            ["trajectories", "--perceptron", "relu", "--neurons", "1000000000000"],
            r"1,000,000,000,000 neurons are .* numbers: lower --neurons, until",
        ),
        (["histograms", "--time", "3", "--shown", "4"], r"--shown 4 is after the end"),
        (["trajectories", "-o", __file__], r"is a file: name a folder"),
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
        (["--time", "-1"], "argument --time: -1 is not a number from 1e-9 to 1e9"),
        (["--time", "nan"], "argument --time: nan is not a number from 1e-9 to 1e9"),
        (["--beta", "-1"], "argument --beta: -1 is not a number from 0 to 1e9"),
        (["--beta", "1e10"], "argument --beta: 1e10 is not a number from 0 to 1e9"),
        (["--beta", "much"], "argument --beta: much is not a number from 0 to 1e9"),
        (["--dim", "1"], "argument --dim: 1 is not a whole number from 2"),
        (["--particles", "0"], "argument --particles: 0 is not a whole number from 2 to 100000"),
        (["--particles", "1"], "argument --particles: 1 is not a whole number from 2 to 100000"),
        (["--particles", "2.5"], "argument --particles: 2.5 is not a whole number"),
        (["--frames", "1"], "argument --frames: 1 is not a whole number from 2"),
        (["--seed", "-1"], "argument --seed: -1 is not a whole number from 0 to 2^63"),
        (["--cosine", "1"], "argument --cosine: 1 is not a cosine below 1"),
    ],
)
def test_numbers_out_of_range_are_refused(flags, sentence, capsys):
    with pytest.raises(SystemExit):
        cli.main(["particles", "trajectories", *flags])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"cannot read .*w.json .* give a JSON file"),
        ("a: [1]", r"is not a JSON file: give a JSON file"),
        ('{"s": [1]}', r"has no list 'a': give a JSON file"),
        ('{"a": [[1, 0, 0]]}', r'must hold "a" and one of "s" and "w": give a JSON file'),
        ('{"a": [[1, 0]], "s": [1]}', r"does not hold weights for 3 dimensions"),
        ('{"a": [[1, 0, 0]], "s": [1, 2]}', r"does not hold weights for 3 dimensions"),
        ('{"a": [[1, 0, 0]], "s": [1], "w": [[1, 0, 0]]}', r'must hold "a" and one of "s" and "w"'),
        ('{"a": [[1, 0, 0], [1]], "s": [1]}', r"does not hold numbers in a regular shape"),
        ('{"a": [[1, 0, "x"]], "s": [1]}', r"does not hold numbers in a regular shape"),
        (f'{{"a": [[1, 0, 1{"0" * 400}]], "s": [1]}}', r"does not hold numbers in a regular shape"),
        ('{"a": [[1, 0, NaN]], "s": [1]}', r"is not a JSON file"),
        ('{"a": [[1, 0, 1e999]], "s": [1]}', r"holds a number that is not finite"),
    ],
)
def test_weights_that_are_none_are_refused(content, sentence, tmp_path):
    file = tmp_path / "w.json"
    if content:
        file.write_text(content)
    with pytest.raises(SystemExit, match=sentence):
        cli.main(["particles", "trajectories", "--perceptron", "relu", "--weights", str(file)])


def test_weights_stand_alone(tmp_path):
    (tmp_path / "w.json").write_text('{"a": [[1, 0]], "w": [[0, 1]]}')
    flags = ["--weights", str(tmp_path / "w.json"), "--perceptron", "relu"]
    with pytest.raises(SystemExit, match="leave out --neurons"):
        cli.main(["particles", "landscape", *flags, "--neurons", "3"])
    with pytest.raises(SystemExit, match="a landscape needs weights in gradient form"):
        cli.main(["particles", "landscape", *flags])


def test_an_experiment_runs_from_python_with_its_defaults(tmp_path):
    """What is left out is what the command's --help says."""
    own = {"particles": 4, "time": 1, "frames": 3, "beta": [1.0]}
    said = run.run("equiangular", own, tmp_path)
    assert str(tmp_path / "equiangular.json") in said
    written = json.loads((tmp_path / "equiangular.json").read_text())["parameters"]
    assert written == {**own, "system": "sa", "rho": 0}
    with pytest.raises(UserError, match=r"^unknown parameter 'particle': equiangular takes .*\?$"):
        run.run("equiangular", {"particle": 4}, tmp_path)
    with pytest.raises(UserError, match=r"^unknown experiment 'phases'.* Did you mean phase"):
        run.run("phases", {}, tmp_path)
