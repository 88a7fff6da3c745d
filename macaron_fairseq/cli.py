"""The command `macaron-fairseq`: what fairseq's own commands do not offer."""

import argparse
import errno
import logging
import os
import signal
import sys
import textwrap
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import chain, groupby, takewhile
from pathlib import Path
from typing import Any, NoReturn

from macaron_fairseq.common import names, signals
from macaron_fairseq.common.command_words import empty_word, unknown_option
from macaron_fairseq.common.errors import UserError, explain_path
from macaron_fairseq.common.files import close_stdout
from macaron_fairseq.version import __version__

WIDTH = 100  # of the lines of a help text, at most

# In the order of a day's work. Each is a module of `commands`, imported only when it is asked for:
# some need PyTorch or fairseq, whose imports take seconds.
COMMANDS = {
    "demo": "translate phrases with the trained pair that comes with the package",
    "tokenize": "normalise, tokenise and segment text",
    "manifest": "record what a training run is made from",
    "suggest-batch": "find the --max-tokens that trains fastest on this machine",
    "average": "average checkpoints",
    "score": "score what fairseq decoded",
    "translate": "translate raw text",
    "distill": "translate a training set with a large model, for a small one to learn from",
    "phrases": "find the phrases of a training text, for students that follow a teacher's layers",
    "export": "write a model for CTranslate2",
    "report": "compare trained and scored models in one page",
    "describe": "print a model's layers as formulas, with parameters and operations",
    "order": "measure the local error order of schemes and sub-steps",
    "dynamics": "show what trained models do to the tokens of real sentences",
    "particles": "simulate the ideal systems: self-attention as particles on a sphere",
    "user-dir": "print the folder to give to --user-dir",
    "completion": "print a script that lets a shell complete all this",
}

DESCRIPTION = """\
Tools for Macaron Net, a Transformer whose layers apply half an FFN before attention and half after
it. fairseq-train trains the models; these commands do what comes before, during and after training.
"""

EPILOG = """\
Each command explains itself, as in: macaron-fairseq translate --help

examples:
  macaron-fairseq demo
  macaron-fairseq describe --arch macaron_transformer_iwslt_de_en
  fairseq-train data-bin --user-dir "$(macaron-fairseq user-dir)" --arch macaron_transformer ...
"""


# System errors that come from writing. They do not name the file.
OF_OUTPUT = errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EINVAL


# A machine that serves exports may lack these.
LARGE = "torch", "fairseq"
INSTALL = "install this package with what it depends on, as its README says"


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, and cuts no option at a hyphen. Indented lines, such as examples, stay."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # The name is private, and argparse's subclasses override it too.
        blocks = groupby(text.strip("\n").split("\n"), lambda line: not line or line[0] == " ")
        filled = [
            [*lines] if as_they_are else self._split_lines(" ".join(lines), width)
            for as_they_are, lines in blocks
        ]
        return "\n".join(indent + line for line in chain.from_iterable(filled))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), min(width, WIDTH), break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Names the word that is empty or an unknown option, before argparse says what is missing."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What argparse does, once all words can be read and all options are known."""
        words = [*(sys.argv[1:] if args is None else args)]
        if self._subparsers:  # whose options follow the command
            words = [*takewhile(lambda word: word.startswith("-"), words)]
        if sentence := empty_word(words, self._option_string_actions):
            self.error(sentence)
        if sentence := unknown_option(words, self._option_string_actions, may_be_cut=True):
            takes_flags = "--" not in words and any(x.dest == "flags" for x in self._actions)
            if takes_flags and not sentence.endswith("?"):
                sentence += "; flags of fairseq-train follow a word --"
            self.error(sentence)
        found, others = super().parse_known_args(args, namespace)
        if others and not self._subparsers:  # or the usage shown would be that of all commands
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return found, others


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; a user's mistake ends it with one sentence and a status that is not 0."""
    quieten()
    for name, mode in (("stdin", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as some daemons start programs
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    interruption = signals.Interruption() if argv is None else None  # a program's caller sees 130
    words = sys.argv[1:] if argv is None else argv
    args = None
    try:
        with signals.as_exits():
            args = parse(words)
            args.run(args)
            flush_stdout()
    except SystemExit as end:
        if end.code in signals.STATUSES:
            with suppress(OSError):  # the terminal may have gone
                print(f"ended by a signal{getattr(args, 'when_interrupted', '')}", file=sys.stderr)
        raise
    except KeyboardInterrupt:
        print(f"interrupted{getattr(args, 'when_interrupted', '')}", file=sys.stderr)
        if interruption:
            interruption.has_come = True
        sys.exit(128 + signal.SIGINT)  # as a shell says it
    except BrokenPipeError:  # as in `macaron-fairseq tokenize ... | head`
        close_stdout()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        explain(error)
    except ModuleNotFoundError as error:
        if error.name not in LARGE:
            raise
        raise UserError(f"{error.name} is missing: {INSTALL}") from error


def quieten() -> None:
    """Leave out what libraries report for developers."""
    # fairseq logs each file that it loads, and its `logging.basicConfig` makes others log, too.
    for library in ("fairseq", "matplotlib", "PIL", "sacrebleu"):
        logging.getLogger(library).setLevel(logging.WARNING)
    # PyTorch 2.14 warns every user of functions that fairseq calls.
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")
    # Where Python may not keep what it compiles, it warns of fairseq's escapes at each start.
    warnings.filterwarnings("ignore", category=SyntaxWarning, module=".*/fairseq/")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """What the command line says; --help and mistakes in it end the program."""
    if words[:1] == ["--"]:  # before a command it says nothing
        words = words[1:]
    parser = make_parser(words[:1])  # which may import PyTorch, for seconds
    if not words:
        parser.print_help(sys.stderr)
        sys.exit(2)
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        unknown = f"there is no command {words[0]}{names.question(words[0], COMMANDS)}"
        parser.error(empty_word(words[:1], {}) or unknown)
    try:
        return parser.parse_args(words)
    except SystemExit:  # as after --help
        flush_stdout()
        raise


def explain(error: OSError) -> NoReturn:
    """Raise a `UserError` for a system error that a user can mend; else the error itself."""
    explain_path(error)
    if error.errno is None or error.filename is not None:  # the first of libraries
        raise error
    if error.errno in OF_OUTPUT:
        close_stdout()
        raise UserError(f"cannot write the output: {error.strerror}") from error
    raise UserError(f"the operating system reports: {error.strerror}") from error


def flush_stdout() -> None:
    """Write what was printed, or learn now that it cannot be written."""
    if sys.stdout:
        sys.stdout.flush()


def make_parser(asked: Collection[str]) -> argparse.ArgumentParser:
    """The parser of the whole command line; only the commands asked for know their arguments."""
    parser = Parser(prog="macaron-fairseq", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name in asked:
            module = import_module(f"macaron_fairseq.commands.{name.replace('-', '_')}")
            module.add_arguments(command)
    return parser


if __name__ == "__main__":
    main()
