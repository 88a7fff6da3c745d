"""`macaron-fairseq export`: a trained model for another program."""

import argparse
from pathlib import Path

from macaron_fairseq.commands.arguments import folder
from macaron_fairseq.common.files import show
from macaron_fairseq.translation.ctranslate2_engine import QUANTIZATIONS

DESCRIPTION = """\
Write a trained model for CTranslate2, which runs it without fairseq and PyTorch. The result is a
folder with the model and its vocabularies. CTranslate2 can express fairseq's transformer, and of
Macaron models lie-trotter and, in pre-norm, strang-marchuk. Anything else is refused with the
reason. The result is compared with the checkpoint on some sentences, and written whole or not at
all.
"""

EXAMPLES = """\
quantization:
  float32   as exact as fairseq; a token's log-probability differs by some 1e-6
  int8      a third of the size or less, for CPUs. Some translations differ. More differ on
            CPUs without VNNI (AMD's before Zen 4, Intel's before Cascade Lake): give
            --reduce-range for these, which takes one bit from the weights
  float16, bfloat16, int8_float16, int8_bfloat16
            for GPUs; a device computes in the nearest type that it has

Translate with the result, or load it with ctranslate2.Translator("averaged.ct2") in Python:
  macaron-fairseq translate --path averaged.ct2 --data DATA news.en -o news.de

examples:
  macaron-fairseq export --path averaged.pt --data DATA --quantization int8 -o averaged.int8
  macaron-fairseq export --path averaged.pt --data DATA -o averaged.ct2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--path", required=True, metavar="FILE", help="the checkpoint")
    add(
        "--data",
        required=True,
        type=Path,
        metavar="DATA",
        help="the data folder, with preprocessing.json and data-bin",
    )
    add(
        "--quantization",
        choices=QUANTIZATIONS,
        default="float32",
        metavar="TYPE",
        help=f"the type of the weights: {', '.join(QUANTIZATIONS)} (default: float32)",
    )
    add(
        "--reduce-range",
        action="store_true",
        help="write int8 weights of 7 bits, whose sums do not overflow on CPUs without VNNI",
    )
    add("-o", "--output", required=True, type=folder, metavar="FOLDER", help="the folder to write")
    add("--force", action="store_true", help="replace FOLDER if it is an export")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Export, and say how exact it is."""
    # With fairseq, which --help does not wait for.
    from macaron_fairseq import plugin  # noqa: F401 - registers the models
    from macaron_fairseq.translation import ctranslate2_export

    difference = ctranslate2_export.export(
        args.path,
        args.data,
        args.output,
        args.quantization,
        reduce_range=args.reduce_range,
        replace=args.force,
    )
    show(
        f"wrote {args.output}; token log-probabilities differ from the checkpoint's by at most "
        f"{difference:.2g} on sentences of random words"
    )
