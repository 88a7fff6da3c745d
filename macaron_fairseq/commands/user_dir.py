"""`macaron-fairseq user-dir`: where the plugin is."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Print where the package is installed: "
        'fairseq-train --user-dir "$(macaron-fairseq user-dir)" ...'
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print it."""
    print(Path(__file__).parent.parent)
