"""`macaron-fairseq user-dir`: where the plugin is."""

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "user-dir",
        help="print the folder to give to --user-dir",
        description="Print where the package is installed: "
        'fairseq-train --user-dir "$(macaron-fairseq user-dir)" ...',
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print it."""
    print(Path(__file__).parent.parent)
