"""The experiments that there are, and the parameters of each with their defaults.

`macaron-fairseq particles EXPERIMENT --help` says what each parameter is.
"""

from typing import Any

from macaron_fairseq.common.names import look_up

NEURONS, STRENGTH = 4, 1.0  # of a perceptron, unless others are given

SYSTEM: dict[str, Any] = {"system": "sa", "perceptron": None}
SYSTEM |= dict.fromkeys(("neurons", "strength", "weights"))
BETAS: dict[str, Any] = {"beta-min": 0, "beta-max": 9, "betas": 46}
CLOUD: dict[str, Any] = {"particles": 64, "dim": 3, "seed": 1, "cosine": 0.999}
TIME: dict[str, Any] = {"time": 30, "frames": 121}
# The perceptron paper, arXiv 2601.21366.
BLOCK: dict[str, Any] = {**SYSTEM, "system": "usa-scaled", "perceptron": "gelu"}
BLOCK |= {"direction": "ascent", "beta": 10, "particles": 100, "dim": 2, "seed": 1}
BLOCK |= {"cluster-scale": 0.1, "time": 100}
REST: dict[str, Any] = {"trials": 3, "time": 2000, "drift": 5e-4, "mass": 0.05}

# What each experiment is, and its parameters with their defaults.
CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "trajectories": (
        "paths, clusters and energy of one run",
        {**SYSTEM, "beta": 9, **CLOUD, **TIME},
    ),
    "histograms": (
        "cosines of all pairs over time",
        {**SYSTEM, "beta": 6, **CLOUD, **TIME}
        | {"particles": 128, "dim": 16, "time": 40, "frames": 201, "shown": None},
    ),
    "phase": (
        "over time and beta, in which trials all pairs are near",
        {**SYSTEM, **BETAS, **CLOUD, **TIME}
        | {"particles": 32, "dim": 2, "frames": 61, "trials": 100},
    ),
    "equiangular": (
        "equal cosines, compared with their differential equation",
        {"system": "sa", "beta": [0.0, 1.0, 3.0, 5.0], "particles": 16, "rho": 0.0}
        | {"time": 20, "frames": 201},
    ),
    "landscape": (
        "where a perceptron makes particles end, d = 2",
        {**SYSTEM, **BETAS, **CLOUD}
        | {"perceptron": "relu", "beta-max": 12, "betas": 49, "dim": 2, "time": 200},
    ),
    # The perceptron paper, arXiv 2601.21366.
    "block-paths": ("paths with a perceptron block and without, d = 2 or 3", BLOCK),
    "block-frames": (
        "the particles at a few times, with a block and without, d = 2 or 3",
        {**BLOCK, "shown": None},
    ),
    "block-counts": (
        "clusters, modes and masses over beta, with a block and without",
        {**BLOCK, **REST, "beta": [0.1, 0.5, 1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 25.0, 35.0, 50.0]},
    ),
    "block-energy": (
        "energy over time at several beta, with a block and without",
        {name: value for name, value in BLOCK.items() if name != "cluster-scale"}
        | {"beta": [3.0, 5.0, 7.0, 10.0, 25.0]},
    ),
    "block-sweep": (
        "time until metastable and clusters over the block's strength or the dimension",
        {**BLOCK, **REST, "system": ["usa-scaled", "sa"], "over": "strength", "values": None}
        | {"dim": None},
    ),
    "modes": (
        "how fast each mode grows on the circle, gamma_k",
        {"beta": [1.0, 3.0, 5.0, 7.0, 10.0, 25.0]},
    ),
    # arXiv 2312.10794, with random matrices.
    "phase-random": (
        "phase diagrams with random V and KQ: pairs, rank, clusters",
        {"value-matrix": "identity", "key-matrix": "gaussian", "shared": "no", "regenerate": None}
        | {**BETAS, **CLOUD, **TIME}
        | {"betas": 19, "particles": 32, "dim": 2, "frames": 61, "trials": 50},
    ),
    "rescaled": (  # arXiv 2305.05465
        "rescaled tokens without a sphere: polytopes, hyperplanes",
        {"geometry": "polytope", "positive": None, "particles": 20, "dim": 2, "seed": 1}
        | {"time": 5, "frames": 51, "step": 0.1},
    ),
    "leaders": (  # arXiv 2305.05465
        "attention loses rank: who leads whom",
        {"particles": 20, "dim": 2, "seed": 1, "time": 10, "frames": 51, "step": 0.1},
    ),
    "staircase": (  # arXiv 2410.06833
        "the energy rises in steps at large beta, d = 2",
        {
            "system": "usa-scaled",
            "beta": [500.0, 1000.0, 2000.0, 4000.0],
            "gaps": [0.5, 1.5, 2.0, 3.0],
        },
    ),
    "first-clusters": (  # arXiv 2410.23228
        "how many clusters many particles form first, and where, d = 2",
        {"beta": 5, "particles": 20000, "seed": 1, "time": None, "frames": 61},
    ),
    "mean-field": (  # arXiv 2410.23228
        "the density of infinitely many particles, d = 2",
        {"beta": 5, "cells": 1000, "noise": 0.01, "scheme": "finite-volumes"}
        | {"seed": 1, "time": None, "frames": 121},
    ),
}


def defaults(experiment: str) -> dict[str, Any]:
    """The parameters of an experiment, as `run.run` takes them.

    Raises:
        UserError: if there is no such experiment.
    """
    _, parameters = look_up(CHOICES, experiment, "experiment", "particles")
    return {name.replace("-", "_"): value for name, value in parameters.items()}
