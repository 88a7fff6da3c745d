"""The command `macaron-fairseq`: what fairseq's own commands do not offer."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from macaron_fairseq import averaging
from macaron_fairseq.errors import UserError
from macaron_fairseq.version import __version__

AVERAGE_EXAMPLES = """\
examples:
  macaron-fairseq average checkpoints --last 10 -o checkpoints/averaged.pt
  macaron-fairseq average checkpoints --best 5 -o checkpoints/averaged.pt
  macaron-fairseq average checkpoints/checkpoint7.pt checkpoints/checkpoint9.pt -o averaged.pt
then
  fairseq-generate DATA --user-dir macaron_fairseq --path checkpoints/averaged.pt ...
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; a user's mistake ends it with one sentence and a status that is not 0."""
    parser = argparse.ArgumentParser(
        prog="macaron-fairseq", description="Tools for Macaron Net in fairseq."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "average",
        help="average checkpoints",
        description="Write a checkpoint that holds the mean of several checkpoints' parameters. "
        "Tied parameters stay tied; sums are taken in fp64; the result is written whole or not.",
        epilog=AVERAGE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "inputs", nargs="+", type=Path, metavar="PATH", help="checkpoints, or one save folder"
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--last", type=positive, metavar="N", help="of a folder, the N with the most updates"
    )
    which.add_argument(
        "--best",
        type=positive,
        metavar="N",
        help="of a folder, the N with the best validation metric, as recorded in each",
    )
    command.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the checkpoint to write"
    )
    command.set_defaults(run=average)

    command = commands.add_parser(
        "user-dir",
        help="print the folder to give to --user-dir",
        description="Print where the package is installed: "
        'fairseq-train --user-dir "$(macaron-fairseq user-dir)" ...',
    )
    command.set_defaults(run=lambda args: print(Path(__file__).parent))

    args = parser.parse_args(argv)
    args.run(args)


def average(args: argparse.Namespace) -> None:
    """Average what the command line names, and say what was averaged."""
    paths = args.inputs
    if args.last or args.best:
        if len(paths) > 1:
            raise UserError("--last and --best choose from one folder: name that folder alone")
        choose = averaging.last if args.last else averaging.best
        paths = choose(paths[0], args.last or args.best)
    elif any(path.is_dir() for path in paths):
        raise UserError("to average a folder's checkpoints, say which: --last N or --best N")
    if args.output.resolve() in [path.resolve() for path in paths]:
        raise UserError(f"{args.output} is one of the checkpoints to average: choose another name")
    averaging.save(averaging.average(paths), args.output)
    print(f"wrote {args.output}, the mean of {' '.join(str(path) for path in paths)}")


def positive(text: str) -> int:
    """An integer above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


if __name__ == "__main__":
    main()
