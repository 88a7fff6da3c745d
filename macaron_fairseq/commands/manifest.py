"""`macaron-fairseq manifest`: record what a training run is made from."""

import argparse
from pathlib import Path

from macaron_fairseq.common.files import show
from macaron_fairseq.evaluation.training import manifest

EXAMPLES = """\
RUN/manifest.json is what `macaron-fairseq report` reads. It holds the architecture, the seed, the
flags and hashes of the data. For each start it has the date, git revision, versions and machine.

example, each time before training starts or resumes:
  FLAGS=(data/data-bin --user-dir "$(macaron-fairseq user-dir)" --save-dir runs/seed1
    --arch macaron_transformer_tiny --seed 1 --max-update 2000 --max-tokens 4096
    --optimizer adam --lr 0.001 --log-format json)
  macaron-fairseq manifest runs/seed1 --data data -- "${FLAGS[@]}"
  fairseq-train "${FLAGS[@]}" 2>&1 | tee -a runs/seed1/train.log
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Write RUN/manifest.json; or, if it is there, add to it that training starts again. Other "
        "flags or other data than RUN's are then refused. Folders may have moved."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of the training run")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DATA",
        help="the data folder, with preprocessing.json and data-bin",
    )
    parser.add_argument(
        "flags", nargs="+", metavar="FLAG", help="all flags of fairseq-train, after --"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Write it, and say where."""
    path = manifest.write(args.folder, args.data, args.flags)
    show(f"wrote {path}")
