"""`macaron-fairseq particles`: the ideal systems themselves."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from macaron_fairseq.analysis.particles.choices import CHOICES, NEURONS, STRENGTH
from macaron_fairseq.commands.arguments import folder, number, positive, whole
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import explain_missing

EXAMPLES = """\
The systems are on the unit sphere (arXiv 2312.10794). A particle moves by the projection of
attention plus perceptron to the tangent space at x_i, with
  sa    attention = sum_j e^(beta <x_i, x_j>) x_j / Z_i, Z_i the sum of the weights (softmax)
  usa   the same with n in place of Z_i; its speed grows like e^beta
  usa-scaled  usa times e^-beta; its speed does not grow with beta
  none  no attention; without a perceptron nothing moves
and perceptron = sum_m w_m activation(a_m . x_i), if --perceptron asks for it (arXiv 2601.21366).
Each choice explains its options, as in: macaron-fairseq particles phase --help

"phase" and "phase-random" take long. Ended early, they go on when the same command is given again:
what is done is in FOLDER/phase.parts, or phase-random.parts, until the files are written.

examples:
  macaron-fairseq particles trajectories --system usa --beta 2 --perceptron relu --neurons 4
  macaron-fairseq particles histograms --beta 6 --dim 16 --particles 128
  macaron-fairseq particles phase --dim 2 --particles 32 --trials 200
  macaron-fairseq particles equiangular --particles 16 --beta 0 2 4 6
  macaron-fairseq particles landscape --perceptron tanh --neurons 5
  macaron-fairseq particles block-counts --direction descent --dim 3
  macaron-fairseq particles trajectories --beta 9 --dim 3 --particles 64 -o particles
  macaron-fairseq particles trajectories --page --animate particles/sphere.gif
  macaron-fairseq particles trajectories --particles 10000 --time 5 --frames 11
  macaron-fairseq particles phase-random --key-matrix goe --regenerate 1
  macaron-fairseq particles rescaled --geometry hyperplanes --dim 3
  macaron-fairseq particles first-clusters --beta 7
"""

WEIGHTS = """\
--weights takes a JSON file in gradient form, w_m = s_m a_m, which is what --perceptron alone makes:
  {"a": [[1, 0], [0, 1]], "s": [1, -0.5]}
or in any other form:
  {"a": [[1, 0], [0, 1]], "w": [[0, 1], [-1, 0]]}

"""


# Beyond it, fp64 no longer tells the cosines of near particles apart.
BETA = number(0, 1e9, "a number from 0 to 1e9")
ABOVE_0 = number(1e-9, 1e9, "a number from 1e-9 to 1e9")
NOT_NEGATIVE = number(0, 1e9, "a number from 0 to 1e9")
SEVERAL = whole(2, 10**6, "from 2 to a million")


class Option(NamedTuple):
    """How an option's value is read, what --help calls it, and what it says of it."""

    read: Callable[[str], Any]
    metavar: str
    meaning: str


# Which of these a choice takes, and with which defaults: `analysis.particles.choices`.
OPTIONS = {
    "system": Option(str, "NAME", "sa, usa, usa-scaled or none"),
    "perceptron": Option(str, "ACTIVATION", "add a perceptron block: relu, gelu or tanh"),
    "neurons": Option(
        positive, "M", f"neurons of the perceptron, in random directions (default: {NEURONS})"
    ),
    "strength": Option(ABOVE_0, "S", f"s_m is S or -S, at random (default: {STRENGTH:g})"),
    "weights": Option(Path, "FILE", "the perceptron's weights, see below"),
    "beta": Option(BETA, "B", "inverse temperature"),
    "beta-min": Option(BETA, "B", "lowest inverse temperature"),
    "beta-max": Option(BETA, "B", "highest inverse temperature"),
    "betas": Option(SEVERAL, "N", "how many inverse temperatures, evenly between them"),
    # A step takes time like their number squared.
    "particles": Option(
        whole(2, 10**5, "from 2 to 100000"),
        "N",
        "how many particles; they start uniformly on the sphere",
    ),
    "dim": Option(SEVERAL, "D", "dimensions of the space around the sphere"),
    "rho": Option(float, "COSINE", "cosine of all pairs at the start (default: 0, orthogonal)"),
    "seed": Option(whole(0, 2**63, "from 0 to 2^63"), "N", "seed of all random draws"),
    "cosine": Option(
        number(-1, 1 - 1e-9, "a cosine below 1"),
        "C",
        "above it two particles are taken for one",
    ),
    "time": Option(ABOVE_0, "T", "how long to simulate; for sa 1 is about a layer"),
    "frames": Option(SEVERAL, "N", "how many times to write down, evenly from 0 to T"),
    "shown": Option(
        NOT_NEGATIVE,
        "T",
        "times to show a histogram of (default: 0, 1/8, 1/4, 1/2 and 1 of --time)",
    ),
    "trials": Option(positive, "N", "how many random starts, the same for each beta"),
    # The perceptron paper, arXiv 2601.21366.
    "direction": Option(
        str, "NAME", "ascent, or descent of the energy: x_i' with the opposite sign"
    ),
    "cluster-scale": Option(
        ABOVE_0,
        "C",
        "particles of a cluster are at most min(C / sqrt(beta), pi / (2 d)) apart, in radians; in "
        "more than two dimensions each and its nearest",
    ),
    "drift": Option(
        ABOVE_0,
        "V",
        "particles are metastable when none is faster than V and clusters are stable; clusters may "
        "still merge much later",
    ),
    "mass": Option(
        number(1e-9, 1, "a share of at most 1"), "M", "share that makes a cluster heavy"
    ),
    "over": Option(str, "NAME", "what to change from run to run: strength, of the block, or dim"),
    "values": Option(ABOVE_0, "V", "its values (default: nine, from 0.003 to 2, or from 2 to 64)"),
    # arXiv 2312.10794 and its relatives.
    "value-matrix": Option(
        str,
        "NAME",
        "V: identity, gram (G G^T / sqrt d), keys or minus-keys (B or -B, over sqrt d if gaussian "
        "and sqrt(d + 1) if goe)",
    ),
    "key-matrix": Option(
        str,
        "NAME",
        "B = Q^T K: identity, gaussian (a product of two) or goe (symmetric)",
    ),
    "shared": Option(
        str, "WHAT", "what has the same matrices: no two, trials (of one beta) or all"
    ),
    "regenerate": Option(ABOVE_0, "T", "draw the matrices anew after that time"),
    "geometry": Option(
        str,
        "NAME",
        "V: polytope (I), hyperplanes (entries in (0, 1)), codimension (symmetric) or product "
        "(1 and -1/2 on the diagonal)",
    ),
    "positive": Option(
        positive,
        "K",
        "positive eigenvalues of V in codimension and product (default: all but one)",
    ),
    "step": Option(ABOVE_0, "H", "the longest step of the Runge-Kutta method"),
    "gaps": Option(
        number(1e-3, 1e3, "a number from 0.001 to 1000"),
        "G",
        "angles between neighbours at the start, in units of ln(beta) / (2 sqrt(beta))",
    ),
    "cells": Option(whole(32, 10**5, "from 32 to 100000"), "N", "cells of the circle"),
    "noise": Option(
        number(1e-12, 1, "a number from 1e-12 to 1"),
        "S",
        "standard deviation of the density in a cell at the start",
    ),
    "scheme": Option(str, "NAME", "finite-volumes, or lax-friedrichs with steps of 1/50 of a cell"),
}

FEW = whole(2, 512, "from 2 to 512")
TOKENS = Option(FEW, "N", "how many tokens")
GROWN = Option(ABOVE_0, "T", "how long to simulate (default: until the fastest mode has grown)")
# What means something else in one choice, or has other limits there.
OPTIONS_IN = {
    "equiangular": {
        "system": Option(str, "NAME", "sa, usa or usa-scaled"),
        "beta": Option(BETA, "B", "inverse temperatures"),
        "particles": Option(
            FEW, "N", "how many particles, in as many dimensions: more change nothing"
        ),
    },
    "block-frames": {
        "shown": Option(
            NOT_NEGATIVE,
            "T",
            "times to show next to 0 (default: the middle, the last; on a sphere also the "
            "quarters)",
        ),
    },
    "block-sweep": {"dim": Option(SEVERAL, "D", "dimensions, if not swept over (default: 2)")},
    "phase-random": {
        "particles": Option(FEW, "N", "how many particles; they start uniformly on the sphere"),
    },
    "rescaled": {
        "particles": TOKENS,
        "dim": Option(FEW, "D", "dimensions; from 4 on coordinates are drawn and no paths"),
        "time": Option(ABOVE_0, "T", "how long to simulate"),
    },
    "leaders": {
        "particles": TOKENS,
        "dim": Option(FEW, "D", "dimensions; 2 shows who leads whom"),
        "time": Option(ABOVE_0, "T", "how long to simulate; V's largest eigenvalue is 1"),
    },
    "staircase": {
        "system": Option(str, "NAME", "sa or usa-scaled"),
        "beta": Option(number(0, 1e5, "a number from 0 to 1e5"), "B", "inverse temperatures"),
    },
    "first-clusters": {
        "particles": Option(whole(2, 10**6, "from 2 to a million"), "N", "how many particles"),
        "time": GROWN,
    },
    "mean-field": {"time": GROWN},
}
WITH_MOVIE = ("trajectories", "histograms")
WITH_PAGE = ("trajectories",)
# What belongs to the command and not to the experiment.
OF_THE_COMMAND = ("run", "choice", "output", "animate", "page")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its choices."""
    parser.description = (
        "Simulate self-attention as particles on a sphere, with and without a perceptron block. "
        "Each choice writes its numbers to CHOICE.json and a picture of them to CHOICE.png."
    )
    parser.epilog = EXAMPLES
    choices = parser.add_subparsers(title="choices", required=True, metavar="CHOICE")
    for name, (summary, options) in CHOICES.items():
        one = choices.add_parser(
            name,
            help=summary,
            description=f"Write {name}.json and {name}.png: {summary}.",
            epilog=(WEIGHTS if "weights" in options else "")
            + f"example:\n  macaron-fairseq particles {name} -o particles",
        )
        one.add_argument(
            "-o",
            "--output",
            type=folder,
            default=Path("particles"),
            metavar="FOLDER",
            help="where to write the files (default: %(default)s)",
        )
        one.set_defaults(run=run, choice=name, animate=None, page=False)
        if name in WITH_MOVIE:
            one.add_argument(
                "--animate",
                type=Path,
                metavar="FILE",
                help="write a movie as well, FILE.gif or FILE.mp4; the latter needs ffmpeg",
            )
        if name in WITH_PAGE:
            one.add_argument(
                "--page",
                action="store_true",
                help=f"write {name}.html as well: the particles with a slider over time, to turn "
                "and to point at (needs plotly)",
            )
        for option, default in options.items():
            if name == "landscape" and option == "dim":  # a circle
                one.set_defaults(dim=default)
                continue
            read, metavar, meaning = OPTIONS_IN.get(name, {}).get(option) or OPTIONS[option]
            several = isinstance(default, list)
            shown = " ".join(map(str, default)) if several else default
            if "default" not in meaning and option != "weights":
                meaning += f" (default: {'none' if default is None else shown})"
            one.add_argument(
                f"--{option}",
                type=read,
                nargs="+" if several or option in ("shown", "values") else None,
                default=default,
                metavar=metavar,
                help=meaning,
            )


def run(args: argparse.Namespace) -> None:
    """Run the choice, if what it needs is installed."""
    try:
        from macaron_fairseq.analysis import output
        from macaron_fairseq.analysis.particles.run import run as run_experiment
    except ImportError as error:
        explain_missing(error, "scipy matplotlib threadpoolctl", "dynamics")
    files.refuse_unwritable(args.output)
    parameters = {k: v for k, v in vars(args).items() if k not in OF_THE_COMMAND}
    output.report(run_experiment(args.choice, parameters, args.output, args.animate, args.page))
