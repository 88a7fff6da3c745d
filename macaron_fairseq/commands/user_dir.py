"""`macaron-fairseq user-dir`: where the plugin is."""

import argparse
import os
from pathlib import Path

from macaron_fairseq.common import files

EXAMPLES = """\
example:
  fairseq-train data-bin --user-dir "$(macaron-fairseq user-dir)" --arch macaron_transformer_tiny
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Print the folder where the package is installed. fairseq's commands find the models in "
        "it, as --user-dir."
    )
    parser.epilog = EXAMPLES
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print it."""
    files.write(Path("-"), os.fsencode(Path(__file__).parent.parent) + b"\n")  # in any locale
