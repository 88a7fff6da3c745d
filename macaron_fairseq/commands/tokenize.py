"""`macaron-fairseq tokenize`: raw text to tokens, on all cores."""

import argparse
from pathlib import Path

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.text import corpus

EXAMPLES = """\
steps:
  normalize         straight quotes, plain dashes (Moses normalize-punctuation.perl)
  printable         a space for each unprintable character (remove-non-printing-char.perl)
  visible           nothing for each invisible one, such as a soft hyphen or a zero-width space
  nfc               one character for a letter and its accent (Unicode's NFC)
  lowercase         lower case
  tokenize          Moses tokens, escaped (tokenizer.perl)
  tokenize-hyphens  the same, and well-known becomes well @-@ known (tokenizer.perl -a)
  bpe               the merges of --codes (subword-nmt apply-bpe)

examples:
  macaron-fairseq tokenize --steps normalize,printable,tokenize-hyphens \\
    --file en raw/train.en tok/train.en --file de raw/train.de tok/train.de \\
    --file en raw/valid.en tok/valid.en --file de raw/valid.de tok/valid.de
  macaron-fairseq tokenize --steps bpe --codes data/code --file de tok/test.de bpe/test.de
  macaron-fairseq tokenize --steps lowercase,tokenize --file fr - tok.fr < raw.fr
  echo "It's a dog." | macaron-fairseq tokenize --steps normalize,tokenize --language en
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Apply the named steps to each line of UTF-8 text, in the order given. The output has as "
        "many lines as the input. Files are written whole or not at all."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--steps", required=True, metavar="NAME[,NAME...]", help="steps to apply, see below"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--language",
        metavar="LANG",
        help="the language of a text that goes from standard input to standard output",
    )
    which.add_argument(
        "--file",
        nargs=3,
        action="append",
        dest="files",
        metavar=("LANG", "INPUT", "OUTPUT"),
        help="a language, a file to read and one to write; may be given several times; - is "
        "standard input or output",
    )
    parser.add_argument(
        "--codes", type=Path, metavar="FILE", help="the BPE merges, for the step bpe"
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="the number of processes (default: one for each core)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Tokenise what the command line names."""
    steps = args.steps.split(",")
    if args.codes and "bpe" not in steps:
        raise UserError("--codes is for the step bpe: add it to --steps, or drop --codes")
    texts = args.files or [(args.language, "-", "-")]
    corpus.tokenize(
        [(language, Path(source), Path(output)) for language, source, output in texts],
        steps,
        args.codes,
        args.workers,
    )
