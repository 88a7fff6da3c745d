"""`macaron-fairseq order`: the local error order of schemes and sub-steps."""

import argparse
from pathlib import Path

from macaron_fairseq.commands.arguments import above_zero, folder, seed
from macaron_fairseq.commands.reading import add_reading, refuse_unclear
from macaron_fairseq.common import files, names
from macaron_fairseq.common.errors import UserError, explain_missing

DESCRIPTION = """\
Measure the error of one step of length h, h/2, h/4 ..., and the slope of log error over log h: 2
for a method of order 1, 3 for one of order 2. Without --path it measures toy systems whose flow is
known, attention and an FFN with random weights. With --path it measures the layers of a trained
model at the states of real sentences, by step halving: |Phi_h(x) - Phi_h/2(Phi_h/2(x))| / |x|.
"""

EXAMPLES = """\
FOLDER then holds order.txt (which is also printed), order.json and order.png, a log-log picture.
Of a trained model order.json also has each layer alone. A trained model is measured with all
schemes and sub-steps that its weights allow, whichever it was trained with: schemes of as many FFNs
in a layer, and gated sub-steps where it has the gates. It must be pre-norm: post-norm layers
project the state, and follow no flow.

DATA is the data folder of a recipe, or what fairseq-preprocess wrote. Without INPUT, the sentences
are those of its set --gen-subset. Without TARGET, the decoder reads the model's own translation.

examples:
  macaron-fairseq order -o order
  macaron-fairseq order --scheme strang-marchuk yoshida4 --substep exact euler midpoint
  macaron-fairseq order --path averaged.pt --data DATA --gen-subset valid -o order
  macaron-fairseq order news.en --target news.de --path averaged.pt --data DATA --scheme parallel
"""

# What has a meaning only with --path, and only without.
OF_A_MODEL = ("input", "target", "gen_subset", "sentences", "longest", "source_lang", "target_lang")
OF_TOYS = ("seed",)

SENTENCES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("input", nargs="?", type=Path, metavar="INPUT", help="with --path: raw text; - is stdin")
    add(
        "--scheme",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="measure only these (default: all)",
    )
    add(
        "--substep",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="measure only these (default: all, and exact flows)",
    )
    add(
        "--step",
        type=above_zero,
        metavar="H",
        help="the longest step, up to 4 on toy systems (default: 0.01, with --path 1)",
    )
    add("--seed", type=seed, metavar="N", help="seed of toy systems' weights (default: 1)")
    add("--path", type=Path, metavar="FILE", help="measure the layers of this checkpoint instead")
    add("--data", type=Path, metavar="DATA", help="with --path: the data folder")
    add_reading(
        parser,
        f"(default: {SENTENCES}). With all schemes and sub-steps a sentence takes some seconds on "
        "a CPU with 1.5 million parameters, and longer with more",
    )
    add(
        "-o",
        "--output",
        type=folder,
        default=Path("order"),
        metavar="FOLDER",
        help="where to write the files, in place of those of before (default: order)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure, write FOLDER and print the table."""
    refuse_meaningless(args)
    try:
        from macaron_fairseq.analysis import output
        from macaron_fairseq.analysis.order import report as order_report
        from macaron_fairseq.analysis.order import toy_systems
    except ImportError as error:
        explain_missing(error, "scipy matplotlib threadpoolctl", "dynamics")
    files.refuse_unwritable(args.output)
    if args.path:
        from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq
        from macaron_fairseq.analysis import models, sentences
        from macaron_fairseq.analysis.order import trained_models

        (model,), data = models.load([args.path], args.data, args.source_lang, args.target_lang)
        subset, limit = args.gen_subset or "test", args.sentences or SENTENCES
        sample = sentences.read(data, args.input, args.target, subset, limit, args.longest)
        longest = args.step or 1.0
        measured = trained_models.of_trained_model(
            model, sample, args.scheme, args.substep, longest
        )
    else:
        seed = 1 if args.seed is None else args.seed
        measured = toy_systems.of_toy_systems(args.scheme, args.substep, args.step or 0.01, seed)
    written = output.write(args.output, order_report.contents(measured))
    output.report(order_report.table(measured), written)


def refuse_meaningless(args: argparse.Namespace) -> None:
    """Raise a `UserError` for arguments that do not go together."""
    if bool(args.path) != bool(args.data):
        raise UserError("--path and --data belong together: a checkpoint, and the data it was of")
    for name in OF_TOYS if args.path else OF_A_MODEL:
        if getattr(args, name) is not None:
            title = "INPUT" if name == "input" else names.flag(name)
            raise UserError(f"{title} has no meaning {'with' if args.path else 'without'} --path")
    refuse_unclear(args)
