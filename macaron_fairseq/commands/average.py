"""`macaron-fairseq average`: the mean of checkpoints."""

import argparse
import sys
from pathlib import Path

from macaron_fairseq.commands.arguments import new_file, positive
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.files import show

EXAMPLES = """\
Decode with the result as with any checkpoint:
  fairseq-generate data-bin --user-dir "$(macaron-fairseq user-dir)" --path checkpoints/averaged.pt

examples:
  macaron-fairseq average checkpoints/checkpoint7.pt checkpoints/checkpoint9.pt -o averaged.pt
  macaron-fairseq average checkpoints --best 5 -o checkpoints/averaged.pt
  macaron-fairseq average checkpoints --last 10 -o checkpoints/averaged.pt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Write a checkpoint whose parameters are the mean of several checkpoints'. Tied parameters "
        "stay tied, and sums are taken in fp64. The file is written whole or not at all."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "inputs", nargs="+", type=Path, metavar="PATH", help="checkpoints, or one save folder"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--last",
        type=positive,
        metavar="N",
        help="average the N checkpoints of a folder that had the most updates",
    )
    which.add_argument(
        "--best",
        type=positive,
        metavar="N",
        help="average the N with the best validation metric, which each file records",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=new_file,
        required=True,
        metavar="FILE",
        help="the checkpoint to write",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Average what the command line names, and say what was averaged."""
    from macaron_fairseq.model import averaging  # with PyTorch, which --help does not wait for

    paths = averaging.select(args.inputs, args.last, args.best)
    files.refuse_output(paths, args.output)
    if args.output.name == averaging.LAST and args.output.exists():
        raise UserError(f"{args.output} is what training would go on from: choose another name")
    averaging.save(averaging.average(paths), args.output)
    said = f"wrote {args.output}, the mean of {' '.join(str(path) for path in paths)}"
    if files.is_stdout(args.output):  # it does not belong into the checkpoint
        print(said, file=sys.stderr)
    else:
        show(said)
