"""What the authors' scripts on particles computed, in folders that `MACARON_REFERENCE` names.

Of its subfolders those are read whose name begins with `particles`. By default it is
tests/fixtures/reference, which holds a part of such a folder.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import FIXTURES

from macaron_fairseq.analysis.particles import growth
from macaron_fairseq.analysis.particles.metastability import first_clusters, mean_field
from macaron_fairseq.analysis.particles.metastability import modes as linear
from macaron_fairseq.analysis.particles.sphere import equal_cosines

pytestmark = pytest.mark.reference

ROOT = Path(os.environ.get("MACARON_REFERENCE") or FIXTURES / "reference")


def read(name):
    return [json.loads(path.read_text("utf-8")) for path in ROOT.glob(f"particles*/{name}.json")]


CURVES, RUNS = read("curve"), read("metastability")
PARTICLES = [run for file in RUNS for run in file["particles"]]
DENSITIES = [run for file in RUNS for run in file["pde"]]


def name(run):
    return f"beta {run['beta']}"


def test_particles_have_references():
    assert CURVES and PARTICLES and DENSITIES, f"{ROOT} has no particles*/curve.json or so"


# --- the boundary beta(t) ------------------------------------------------------------------------


@pytest.mark.parametrize("curve", CURVES)
def test_particles_arrive_when_the_curve_says(curve):
    cosine, n = 1 - curve["epsilon"], curve["n"]
    found = [equal_cosines.arrival_time(cosine, beta, n) for beta in curve["beta_grid"]]
    assert found == pytest.approx(curve["exact_threshold_time_of_beta_grid"], abs=1e-9)
    arrived = [
        max((b for b, at in zip(curve["beta_grid"], found, strict=True) if at <= t), default=0)
        for t in curve["t"]
    ]
    assert arrived == pytest.approx(curve["beta_exact_on_same_grid"])
    # The authors' solver is loose: a few of its points are up to two steps of the grid away.
    away = np.abs(np.subtract(arrived, curve["beta_authors"])) / np.diff(curve["beta_grid"])[0]
    assert (away > 0.01).mean() < 0.05
    assert away.max() < 2.01


# --- particles on the circle ---------------------------------------------------------------------


@pytest.mark.parametrize("run", PARTICLES, ids=name)
def test_particles_modes_and_predicted_positions(run):
    beta, k = run["beta"], run["k"]
    modes = np.arange(11)
    rates = linear.growth_rates(beta, modes)
    assert rates / np.pi == pytest.approx(run["gamma_0_to_10"], rel=1e-12)
    assert growth.predicted_mode(beta) == k
    start = np.array(run["theta_at_frames"][0])
    amplitudes = [abs(linear.fourier(start, mode)) for mode in range(9)]
    assert amplitudes == pytest.approx(run["abs_mu_0_to_8_run"], abs=1e-12)
    mu = linear.fourier(start, k)
    assert [mu.real, mu.imag] == pytest.approx(run["mu_k_run"], abs=1e-12)
    # Those were rounded to fp32.
    assert linear.predicted_angles(mu, k) == pytest.approx(run["predicted_positions_run"], abs=1e-6)


@pytest.mark.parametrize("run", PARTICLES, ids=name)
def test_particles_of_the_authors_number(run):
    """Their 20,000 particles at the start, from their generator on a CPU."""
    import torch

    generator = torch.Generator().manual_seed(run["seed"])
    start = torch.rand(run["N_authors"], generator=generator, dtype=torch.float64) * 2 * np.pi
    mu = linear.fourier(start.numpy(), run["k"])
    assert [mu.real, mu.imag] == pytest.approx(run["mu_k_authors_N_cpu"], abs=1e-12)
    assert linear.predicted_angles(mu, run["k"]) == pytest.approx(
        run["predicted_positions_authors_N_cpu"], abs=1e-6
    )


@pytest.mark.parametrize("run", PARTICLES, ids=name)
def test_particles_move_as_the_authors(run):
    """The velocity by the series of the kernel, in the authors' Euler steps."""
    coefficients = first_clusters.series(run["beta"])
    theta = np.array(run["theta_at_frames"][0])
    at_frames = dict(zip(run["frames"], run["theta_at_frames"], strict=True))
    for step in range(1, run["frames"][-1] + 1):
        theta = theta + run["dt"] * first_clusters.velocity(theta, coefficients)
        if step in at_frames:
            assert theta == pytest.approx(np.array(at_frames[step]), abs=1e-8)


# --- the mean-field equation ---------------------------------------------------------------------


@pytest.mark.parametrize("run", DENSITIES, ids=name)
def test_particles_mean_field_by_lax_friedrichs(run):
    """The authors' notebook takes the velocity from the density's mirror image u(-theta).

    With it their numbers are met, computed by their code without its rounding to fp32; with
    u(theta), the equation of the paper, they are not.
    """
    ratio = run["dt"] / run["dx"]

    def last(seen):
        u = np.array(run["u_initial_all_points"])
        for step in range(run["saved_steps"][-1] + 1):
            if step == run["saved_steps"][-1]:
                difference = np.abs(u[::5] - run["u64_every_5th_point_last"]).max()
                mass = u.sum() * run["dx"]
            u = mean_field.lax_friedrichs(u, mean_field.velocities(seen(u), run["beta"]), ratio)
        return difference, mass

    difference, mass = last(lambda u: np.roll(u[::-1], 1))
    assert difference < 1e-12
    assert mass == pytest.approx(run["mass"][-1], abs=1e-6)
    assert last(lambda u: u)[0] > 0.01
