"""The command `macaron-fairseq`: what fairseq's own commands do not offer."""

import argparse
from collections.abc import Sequence

from macaron_fairseq.commands import average, user_dir
from macaron_fairseq.version import __version__


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; a user's mistake ends it with one sentence and a status that is not 0."""
    parser = argparse.ArgumentParser(
        prog="macaron-fairseq", description="Tools for Macaron Net in fairseq."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (average, user_dir):
        command.add_parser(commands)
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
