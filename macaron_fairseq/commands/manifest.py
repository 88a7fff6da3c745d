"""`macaron-fairseq manifest`: record what a training is made from."""

import argparse
from pathlib import Path

from macaron_fairseq.common.files import show
from macaron_fairseq.evaluation import manifest

EXAMPLES = """\
example, each time before training starts or resumes:
  FLAGS=(data/data-bin --user-dir "$(macaron-fairseq user-dir)" --save-dir runs/seed1
    --arch macaron_transformer_tiny --seed 1 --max-update 2000)
  macaron-fairseq manifest runs/seed1 --data data -- "${FLAGS[@]}" && fairseq-train "${FLAGS[@]}"
It writes runs/seed1/manifest.json, which `macaron-fairseq report` reads: architecture, seed, flags,
hashes of the data, and for each start the date, git revision, versions and machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Write RUN/manifest.json, or add a start to it. A training with other flags or "
        "other data than RUN's is refused; where its folders lie may change."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("folder", type=Path, metavar="RUN", help="the training's folder")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DATA",
        help="the prepared data: preprocessing.json and data-bin",
    )
    parser.add_argument(
        "flags", nargs="+", metavar="FLAG", help="after --, all that fairseq-train gets"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Write it, and say where."""
    path = manifest.write(args.folder, args.data, args.flags)
    show(f"wrote {path}")
