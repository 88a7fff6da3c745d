"""`macaron-fairseq phrases`: which words of each sentence are phrases."""

import argparse
import sys
from pathlib import Path

from macaron_fairseq.commands.arguments import new_file
from macaron_fairseq.common.wording import counted

DESCRIPTION = """\
Find the noun chunks and verb phrases of each sentence with a pipeline of spaCy, for students that
follow their teacher's layers on phrases: fairseq-train --trajectory-spans phrases. Training itself
needs no spaCy.
"""

EXAMPLES = """\
INPUT is the training text of one side as fairseq-preprocess read it: tokens with spaces between, a
sentence a line. BPE may be in it or not. Line N of the output has the phrases of line N, such as
"0-1 3-5": the words from 0 to 1, and from 3 to 5.

A pipeline is installed by spaCy, or is a folder. It has to tag and to parse:
  pip install spacy
  python -m spacy download en_core_web_sm

examples:
  macaron-fairseq phrases bpe/train.en --spacy en_core_web_sm -o train.phrases.en
  fairseq-train ... --trajectory-weight 2 --trajectory-spans words,phrases \\
    --trajectory-source-phrases train.phrases.en --trajectory-decoder-layers none
  macaron-fairseq phrases bpe/train.de --spacy de_core_news_sm -o train.phrases.de
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("input", type=Path, metavar="INPUT", help="a file; -: standard input")
    add("--spacy", required=True, metavar="MODEL", help="the name or the folder of a pipeline")
    add(
        "-o",
        "--output",
        type=new_file,
        default=Path("-"),
        metavar="OUTPUT",
        help="a file; default and -: standard output",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Write the phrases, and say how many lines they have."""
    # With fairseq, which --help does not wait for.
    from macaron_fairseq.distillation.trajectory import spacy_phrases

    count = spacy_phrases.write(args.input, args.output, args.spacy)
    print(counted(count, "line"), file=sys.stderr)
