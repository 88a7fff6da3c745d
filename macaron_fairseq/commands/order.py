"""`macaron-fairseq order`: the local error order of schemes and sub-steps."""

import argparse
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from macaron_fairseq.commands.arguments import above_zero, positive
from macaron_fairseq.errors import UserError

DESCRIPTION = """\
Measure the error of one step of length h, h/2, h/4 ..., and the slope of its logarithm: 2 for a
method of order 1, 3 for one of order 2. Without --path on toy systems, attention and an FFN with
random weights, whose flow is known; with it on the frozen weights of a trained model's layers at
the states of real sentences, by step halving: |Phi_h(x) - Phi_h/2(Phi_h/2(x))| / |x|.
"""

EXAMPLES = """\
OUTPUT then holds order.txt (which is also printed), order.json and order.png, a log-log picture.
DATA is the data folder of a recipe, or what fairseq-preprocess wrote. Of a trained model the scheme
is its own; a gated sub-step can only be measured where it was trained.

examples:
  macaron-fairseq order -o order
  macaron-fairseq order --scheme strang-marchuk yoshida4 --substep exact euler midpoint
  macaron-fairseq order --path averaged.pt --data DATA --gen-subset valid -o order
"""


def describe(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--scheme", nargs="+", metavar="NAME", help="only these (default: all)")
    add("--substep", nargs="+", metavar="NAME", help="only these (default: all, and exact flows)")
    add("--path", type=Path, metavar="FILE", help="a checkpoint, whose layers are measured instead")
    add("--data", type=Path, metavar="DATA", help="with --path: the data folder")
    add("--gen-subset", default="test", metavar="SET", help="of the data (default: test)")
    add(
        "--sentences",
        type=positive,
        default=20,
        metavar="N",
        help="at most the first N (default: 20)",
    )
    add(
        "--step",
        type=above_zero,
        default=0.01,
        metavar="H",
        help="the longest step on the toy systems (default: 0.01)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of the toy systems' weights (default: 1)")
    add(
        "-o",
        "--output",
        type=Path,
        default=Path("order"),
        metavar="OUTPUT",
        help="the folder to write to (default: order)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure, write OUTPUT and print the table."""
    if bool(args.path) != bool(args.data):
        raise UserError("--path and --data belong together: a checkpoint, and the data it was of")
    if args.path and args.scheme:
        raise UserError("a trained model's scheme is its own: drop --scheme")
    for library in ("fairseq", "matplotlib"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        from macaron_fairseq.numerics import writing  # needs matplotlib

        if args.path:
            from macaron_fairseq import measures  # noqa: F401 - needs scipy
    except ImportError as error:
        raise UserError(
            f"{error.name} is missing, which this command needs: pip install scipy matplotlib, or "
            "install this package with its extra [dynamics]"
        ) from error
    measure = of_model if args.path else of_toy
    title, steps, results = measure(args, writing.Result)
    about = {"title": title, "command": shlex.join(["macaron-fairseq", *sys.argv[1:]])}
    paths = writing.write(args.output, title, about, results, steps)
    print(writing.table(results, steps), end="")
    for path in paths:
        print(f"wrote {path}", file=sys.stderr)


def of_toy(args: argparse.Namespace, result: Any) -> tuple[str, list[float], list[Any]]:
    """Title, step sizes and results on the toy systems."""
    from macaron_fairseq.names import look_up
    from macaron_fairseq.numerics import fitting, toy

    sides = {side: toy.methods(side) for side in ("encoder", "decoder")}
    known = sides["encoder"]
    for name in args.scheme or ():
        look_up(known, name, "splitting scheme", "--scheme")
    for name in args.substep or ():
        look_up(toy.SUBSTEPS, name, "sub-step", "--substep")
    steps = [args.step / 2**i for i in range(3)]
    results = []
    wanted = [(x, y) for x in args.scheme or known for y in args.substep or toy.SUBSTEPS]
    for scheme, substep in tqdm(wanted, unit="method", disable=None, leave=False):
        for side in sides:
            errors = toy.errors(side, scheme, substep, steps, args.seed)
            results.append(result(side, scheme, substep, errors, fitting.slope(steps, errors)))
    return "Local error on toy systems", steps, results


def of_model(args: argparse.Namespace, result: Any) -> tuple[str, list[float], list[Any]]:
    """Title, step sizes and results on a trained model."""
    from macaron_fairseq import (
        plugin,  # noqa: F401 - registers the models with fairseq
        substeps,
    )
    from macaron_fairseq.numerics import fitting, trained

    for name in args.substep or ():
        substeps.get(name, "--substep")
    model, sentences = trained.load(args.path, args.data, args.gen_subset, args.sentences)
    names = trained.usable(model, args.substep or list(substeps.SUBSTEPS))
    with tqdm(total=len(sentences), unit="sentence", disable=None, leave=False) as bar:
        found = trained.errors(model, sentences, names, bar.update)
    results = [
        result(side, f"layer {number}", name, errors, fitting.slope(trained.STEPS, errors))
        for (side, number), by_name in found.items()
        for name, errors in by_name.items()
    ]
    return f"Local error of the layers of {args.path}", trained.STEPS, results
