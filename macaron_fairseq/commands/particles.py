"""`macaron-fairseq particles`: the ideal systems themselves."""

import argparse
import logging
import math
from pathlib import Path
from typing import Any

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import explain_missing

EXAMPLES = """\
examples:
  macaron-fairseq particles trajectories --beta 9 --dim 3 --particles 64 -o particles
  macaron-fairseq particles trajectories --system usa --beta 2 --perceptron relu --neurons 4
  macaron-fairseq particles histograms --beta 6 --dim 16 --particles 128
  macaron-fairseq particles phase --dim 2 --particles 32 --trials 200
  macaron-fairseq particles equiangular --particles 16 --beta 0 2 4 6
  macaron-fairseq particles landscape --perceptron tanh --neurons 5
each with --help of its own, as in
  macaron-fairseq particles phase --help

The systems, on the unit sphere (arXiv 2312.10794): x_i' is the projection to the tangent space at
x_i of attention plus perceptron, with
  sa    attention = sum_j e^(beta <x_i, x_j>) x_j / Z_i, Z_i the sum of the weights (softmax)
  usa   the same with n in place of Z_i; much faster at large beta: its speed grows like e^beta
  none  no attention: without a perceptron nothing moves, with one each particle moves by itself
and perceptron = sum_m w_m activation(a_m . x_i), where one is asked for (arXiv 2601.21366).
"""

WEIGHTS = """\
--weights takes a JSON file, in gradient form, w_m = s_m a_m, as --perceptron alone makes it,
  {"a": [[1, 0], [0, 1]], "s": [1, -0.5]}
or in any form
  {"a": [[1, 0], [0, 1]], "w": [[0, 1], [-1, 0]]}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its choices."""
    parser.description = (
        "Simulate self-attention as particles on a sphere (SA, USA), with and without a perceptron "
        "block. Each choice writes its numbers, CHOICE.json, and a picture of them, CHOICE.png."
    )
    parser.epilog = EXAMPLES
    choices = parser.add_subparsers(title="choices", required=True, metavar="CHOICE")

    one = _add(choices, "trajectories", "paths, clusters and energy of one run")
    _add_system(one)
    _add_beta(one, 9)
    _add_cloud(one, dim=3, particles=64)
    _add_time(one, 30, frames=121)

    one = _add(choices, "histograms", "cosines of all pairs over time")
    _add_system(one)
    _add_beta(one, 6)
    _add_cloud(one, dim=16, particles=128)
    _add_time(one, 40, frames=201)
    one.add_argument(
        "--shown",
        type=_not_negative,
        nargs="+",
        metavar="T",
        help="times to show a histogram of (default: 0, 1/8, 1/4, 1/2 and 1 of --time)",
    )

    one = _add(choices, "phase", "over time and beta, which trials ended in a point")
    _add_system(one)
    _add_betas(one, 0, 9, 46)
    _add_cloud(one, dim=2, particles=32)
    _add_time(one, 30, frames=61)
    one.add_argument(
        "--trials",
        type=positive,
        default=100,
        metavar="N",
        help="random starts, the same for each beta (default: %(default)s)",
    )

    one = _add(choices, "equiangular", "equal cosines, beside their differential equation")
    one.add_argument("--system", default="sa", metavar="NAME", help="sa or usa (default: sa)")
    one.add_argument(
        "--beta",
        type=_beta,
        nargs="+",
        default=[0.0, 1.0, 3.0, 5.0],
        metavar="B",
        help="inverse temperatures (default: 0 1 3 5)",
    )
    one.add_argument(
        "--particles",
        type=_few_particles,
        default=16,
        metavar="N",
        help="and as many dimensions: more change nothing (default: %(default)s)",
    )
    one.add_argument(
        "--rho",
        type=float,
        default=0.0,
        metavar="COSINE",
        help="of all pairs at the start (default: 0, orthogonal)",
    )
    _add_time(one, 20, frames=201)

    one = _add(choices, "landscape", "where a perceptron makes particles end, d = 2")
    _add_system(one, perceptron="relu")
    _add_betas(one, 0, 12, 49)
    _add_cloud(one, dim=None, particles=64)
    _add_time(one, 200)
    one.set_defaults(dim=2)


def run(args: argparse.Namespace) -> None:
    """Run the choice, if what it needs is installed."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # one of fairseq's modules lowers it
    try:
        from macaron_fairseq.analysis import output
        from macaron_fairseq.analysis.particles.run import run as run_experiment
    except ImportError as error:
        explain_missing(error, "scipy matplotlib", "dynamics")
    output.refuse_unwritable(args.output)
    parameters = {k: v for k, v in vars(args).items() if k not in ("run", "choice", "output")}
    output.report(run_experiment(args.choice, parameters, args.output))


def _add(choices: Any, name: str, summary: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = choices.add_parser(
        name,
        help=summary,
        description=f"Write {name}.json and {name}.png: {summary}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("particles"),
        metavar="FOLDER",
        help="where to write the files (default: %(default)s)",
    )
    one.set_defaults(run=run, choice=name)
    return one


def _add_system(one: argparse.ArgumentParser, perceptron: str | None = None) -> None:
    one.epilog = WEIGHTS
    one.add_argument("--system", default="sa", metavar="NAME", help="sa, usa or none (default: sa)")
    one.add_argument(
        "--perceptron",
        default=perceptron,
        metavar="ACTIVATION",
        help=f"add a perceptron block: relu, gelu or tanh (default: {perceptron or 'none'})",
    )
    one.add_argument(
        "--neurons",
        type=positive,
        metavar="M",
        help="of the perceptron, in random directions (default: 4)",
    )
    one.add_argument(
        "--strength",
        type=_above_0,
        metavar="S",
        help="s_m is S or -S, at random (default: 1)",
    )
    one.add_argument("--weights", type=Path, metavar="FILE", help="of the perceptron, see below")


def _add_beta(one: argparse.ArgumentParser, default: float) -> None:
    one.add_argument(
        "--beta",
        type=_beta,
        default=default,
        metavar="B",
        help="inverse temperature (default: %(default)s)",
    )


def _add_betas(one: argparse.ArgumentParser, lowest: float, highest: float, count: int) -> None:
    for name, which, default in (("min", "lowest", lowest), ("max", "highest", highest)):
        one.add_argument(
            f"--beta-{name}",
            type=_beta,
            default=default,
            metavar="B",
            help=f"{which} inverse temperature (default: %(default)s)",
        )
    one.add_argument(
        "--betas",
        type=_two_or_more,
        default=count,
        metavar="N",
        help="how many, evenly between (default: %(default)s)",
    )


def _add_cloud(one: argparse.ArgumentParser, particles: int, dim: int | None) -> None:
    one.add_argument(
        "--particles",
        type=_particles,
        default=particles,
        metavar="N",
        help="uniform on the sphere at the start (default: %(default)s)",
    )
    if dim is not None:
        one.add_argument(
            "--dim",
            type=_two_or_more,
            default=dim,
            metavar="D",
            help="dimensions of the space around the sphere (default: %(default)s)",
        )
    one.add_argument(
        "--seed", type=_seed, default=1, metavar="N", help="of all that is random (default: 1)"
    )
    one.add_argument(
        "--cosine",
        type=_cosine,
        default=0.999,
        metavar="C",
        help="above it two particles are taken for one (default: %(default)s)",
    )


def _add_time(one: argparse.ArgumentParser, default: float, frames: int | None = None) -> None:
    one.add_argument(
        "--time",
        type=_above_0,
        default=default,
        metavar="T",
        help="to simulate; 1 is about a layer (default: %(default)s)",
    )
    if frames is not None:
        one.add_argument(
            "--frames",
            type=_two_or_more,
            default=frames,
            metavar="N",
            help="times to write down, evenly from 0 to T (default: %(default)s)",
        )


def _number(text: str, lowest: float, highest: float, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not lowest <= value <= highest:
        raise argparse.ArgumentTypeError(f"{text} is not {wanted}")
    return value


def _beta(text: str) -> float:
    # Beyond it, fp64 no longer tells the cosines of near particles apart.
    return _number(text, 0, 1e9, "a number from 0 to 1e9")


def _cosine(text: str) -> float:
    return _number(text, -1, 1 - 1e-9, "a cosine below 1")


def _above_0(text: str) -> float:
    return _number(text, 1e-9, 1e9, "a number above 0")


def _not_negative(text: str) -> float:
    return _number(text, 0, 1e9, "a number of at least 0")


def _whole(text: str, lowest: int, highest: int, wanted: str) -> int:
    value = int(text) if text.isdecimal() else -1
    if not lowest <= value <= highest:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number {wanted}")
    return value


def _two_or_more(text: str) -> int:
    return _whole(text, 2, 10**6, "from 2 to a million")


def _particles(text: str) -> int:
    return _whole(text, 2, 4096, "from 2 to 4096")  # a matrix of all their cosines: 128 MiB


def _few_particles(text: str) -> int:
    return _whole(text, 2, 512, "from 2 to 512")


def _seed(text: str) -> int:
    return _whole(text, 0, 2**63, "of at least 0")
