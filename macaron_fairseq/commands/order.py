"""`macaron-fairseq order`: the local error order of schemes and sub-steps."""

import argparse
import logging
import math
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macaron_fairseq.commands.arguments import above_zero, positive
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError, explain_missing
from macaron_fairseq.common.names import look_up

# A title, what the JSON file says of what was measured, the step sizes and the results.
Measured = tuple[str, dict[str, Any], list[float], list[Any]]

DESCRIPTION = """\
Measure the error of one step of length h, h/2, h/4 ..., and the slope of its logarithm: 2 for a
method of order 1, 3 for one of order 2. Without --path on toy systems, attention and an FFN with
random weights, whose flow is known; with it on the frozen weights of a trained model's layers at
the states of real sentences, by step halving: |Phi_h(x) - Phi_h/2(Phi_h/2(x))| / |x|.
"""

EXAMPLES = """\
OUTPUT then holds order.txt (which is also printed), order.json and order.png, a log-log picture;
of a trained model order.json has each layer besides all together. A trained model is measured with
all schemes and sub-steps that its weights allow, whichever it was trained with: schemes of as many
FFNs in a layer, and gated sub-steps where it has the gates. It must be pre-norm: post-norm layers
project the state, and follow no flow.

DATA is the data folder of a recipe, or what fairseq-preprocess wrote. Without INPUT, the sentences
are those of its set --gen-subset; without TARGET, the decoder reads the model's own translation.

examples:
  macaron-fairseq order -o order
  macaron-fairseq order --scheme strang-marchuk yoshida4 --substep exact euler midpoint
  macaron-fairseq order --path averaged.pt --data DATA --gen-subset valid -o order
  macaron-fairseq order news.en --target news.de --path averaged.pt --data DATA --scheme parallel
"""

# What has a meaning only with --path, and only without.
OF_A_MODEL = ("input", "target", "gen_subset", "sentences", "source_lang", "target_lang")
OF_TOYS = ("seed",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("input", nargs="?", type=Path, metavar="INPUT", help="with --path: raw text; - is stdin")
    add("--scheme", nargs="+", metavar="NAME", help="only these (default: all)")
    add("--substep", nargs="+", metavar="NAME", help="only these (default: all, and exact flows)")
    add(
        "--step",
        type=above_zero,
        metavar="H",
        help="the longest step (default: 0.01, with --path 1)",
    )
    add("--seed", type=int, metavar="N", help="of the toy systems' weights (default: 1)")
    add("--path", type=Path, metavar="FILE", help="a checkpoint, whose layers are measured instead")
    add("--data", type=Path, metavar="DATA", help="with --path: the data folder")
    add("--target", type=Path, metavar="TARGET", help="the translation of INPUT, line by line")
    add("--gen-subset", metavar="SET", help="of the data (default: test)")
    add("--source-lang", metavar="LANG", help="where the data folder does not tell it")
    add("--target-lang", metavar="LANG", help="the same")
    add("--sentences", type=positive, metavar="N", help="at most the first N (default: 20)")
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
    refuse_meaningless(args)
    files.refuse_file(args.output)
    for library in ("fairseq", "matplotlib"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        from macaron_fairseq.analysis.numerics import writing  # needs matplotlib

        if args.path:
            from macaron_fairseq.analysis import measures  # noqa: F401 - needs scipy
    except ImportError as error:
        explain_missing(error, "scipy matplotlib", "dynamics")
    title, about, steps, results = of_model(args) if args.path else of_toys(args)
    if not all(math.isfinite(error) for x in results for error in x.errors):
        raise UserError(
            f"the errors of steps of {steps[0]:g} are not finite: give a smaller --step"
        )
    about = {"title": title, "command": shlex.join(["macaron-fairseq", *sys.argv[1:]]), **about}
    paths = writing.write(args.output, about, results, steps)
    print(writing.table(title, results, steps), end="")
    for path in paths:
        print(f"wrote {path}", file=sys.stderr)


def refuse_meaningless(args: argparse.Namespace) -> None:
    """Raise a `UserError` for arguments that do not go together."""
    if bool(args.path) != bool(args.data):
        raise UserError("--path and --data belong together: a checkpoint, and the data it was of")
    for name in OF_TOYS if args.path else OF_A_MODEL:
        if getattr(args, name) is not None:
            title = "INPUT" if name == "input" else f"--{name.replace('_', '-')}"
            raise UserError(f"{title} has no meaning {'with' if args.path else 'without'} --path")
    if args.target and not args.input:
        raise UserError("--target is the translation of INPUT: name that file too, or drop it")
    if args.input and args.gen_subset:
        raise UserError("INPUT and --gen-subset both say which sentences: drop one")


def of_toys(args: argparse.Namespace) -> Measured:
    """What the toy systems give."""
    from macaron_fairseq.analysis.numerics import toy

    check_names(args, toy.methods("encoder"), toy.SUBSTEPS)
    seed = 1 if args.seed is None else args.seed
    steps = halved(args.step or 0.01, times=2)
    results = toy.measure(args.scheme, args.substep, steps, seed)
    return "Local error on toy systems", {"seed": seed}, steps, results


def of_model(args: argparse.Namespace) -> Measured:
    """What a trained model gives."""
    import torch

    from macaron_fairseq import plugin as plugin  # registers the models with fairseq
    from macaron_fairseq.analysis.dynamics import comparing, loading, sentences
    from macaron_fairseq.analysis.numerics import trained
    from macaron_fairseq.schemes import splitting, substeps

    check_names(args, splitting.SCHEMES, substeps.SUBSTEPS)
    data = comparing.open_data([args.path], args.data, args.source_lang, args.target_lang)
    subset, limit = args.gen_subset or "test", args.sentences or 20
    if args.input:
        found = sentences.from_text(data, args.input, args.target, limit)
    else:
        found = sentences.from_data_set(data, subset, limit)
    where = str(args.input or f"{data.folder}, set {subset}")
    (loaded,) = loading.load_all([args.path], None, data, torch.device("cpu"))
    pairs = trained.choose(loaded.model, args.scheme, args.substep)
    model, with_target = trained.prepare(loaded, data, found)
    description = loaded.description()
    steps = halved(args.step or 1.0, times=5)
    return (
        f"Local error of the layers of {args.path}, trained as {trained.settings(description)}",
        {"model": description, "data": sentences.description(data, found, where)},
        steps,
        trained.measure(model, with_target, pairs, steps),
    )


def check_names(
    args: argparse.Namespace, schemes: Mapping[str, Any], substeps: Mapping[str, Any]
) -> None:
    """Raise a `UserError` if there is no scheme or no sub-step of a name."""
    for name in args.scheme or ():
        look_up(schemes, name, "splitting scheme", "--scheme")
    for name in args.substep or ():
        look_up(substeps, name, "sub-step", "--substep")


def halved(longest: float, times: int) -> list[float]:
    """That step, and so many that are half of the one before."""
    return [longest / 2**i for i in range(times + 1)]
