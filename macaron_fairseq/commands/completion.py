"""`macaron-fairseq completion`: commands, flags and files, completed by the shell."""

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import explain_missing

EXAMPLES = """\
examples:
  # bash, once
  mkdir -p ~/.local/share/bash-completion/completions
  macaron-fairseq completion bash > ~/.local/share/bash-completion/completions/macaron-fairseq
  # this shell alone
  source <(macaron-fairseq completion bash)
  # zsh, into a folder of $fpath
  macaron-fairseq completion zsh > ~/.zfunc/_macaron-fairseq
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Print a script for a shell, which then completes commands, flags and their values. "
        "Needs shtab: the package's extra [completion]."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="the shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    try:
        import shtab
    except ImportError as error:
        explain_missing(error, "shtab", "completion")
    from macaron_fairseq import cli

    logging.getLogger("shtab").setLevel(logging.WARNING)  # fairseq has all others print all
    parser = cli.make_parser(cli.COMMANDS)
    for action in actions(parser):
        names_one = any(
            what in str(action.metavar) for what in ("FILE", "FOLDER", "DATA", "INPUT", "OUTPUT")
        )
        if action.type is Path or names_one:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    files.show(shtab.complete(parser, shell=args.shell))


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """What the command line of a parser may hold, and those of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from actions(command)
