"""`macaron-fairseq tokenize`: raw text to tokens, on all cores."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common import environment
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.files import read_blocks, write_blocks
from macaron_fairseq.text.pipeline import LINES, Pipeline, process

EXAMPLES = """\
steps:
  normalize         straight quotes, plain dashes (Moses normalize-punctuation.perl)
  printable         a space for each unprintable character (remove-non-printing-char.perl)
  lowercase         lower case
  tokenize          Moses tokens, escaped (tokenizer.perl)
  tokenize-hyphens  the same, and well-known becomes well @-@ known (tokenizer.perl -a)
  bpe               the merges of --codes (subword-nmt apply-bpe)

examples:
  macaron-fairseq tokenize --steps normalize,tokenize --language de < raw.de > tok.de
  macaron-fairseq tokenize --steps normalize,printable,tokenize-hyphens \\
    --file en raw/train.en tok/train.en --file de raw/train.de tok/train.de \\
    --file en raw/valid.en tok/valid.en --file de raw/valid.de tok/valid.de
  macaron-fairseq tokenize --steps bpe --codes data/code --file de tok/test.de bpe/test.de
  macaron-fairseq tokenize --steps lowercase,tokenize --file fr - tok.fr < raw.fr
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = (
        "Apply the named steps, in the order given, to each line of UTF-8 text. Output has exactly "
        "as many lines as input; files are written whole or not at all."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--steps", required=True, metavar="NAME[,NAME...]", help="what to do, see below"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--language", metavar="CODE", help="of the text on standard input, to standard output"
    )
    which.add_argument(
        "--file",
        nargs=3,
        action="append",
        dest="files",
        metavar=("CODE", "INPUT", "OUTPUT"),
        help="a language, a file and where to write it; may be given again; - is standard "
        "input or output",
    )
    parser.add_argument("--codes", type=Path, metavar="FILE", help="the merges for the step bpe")
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="processes (default: one for each core)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Process what the command line names."""
    files = [
        (language, Path(source), Path(output))
        for language, source, output in args.files or [(args.language, "-", "-")]
    ]
    refuse_mistakes(files)
    steps = args.steps.split(",")
    pipelines = {language: Pipeline(steps, language, args.codes) for language, _, _ in files}
    workers = args.workers or environment.available_cores()
    for language, source, output in files:
        with tqdm(
            desc=f"tokenising {source}",
            total=count_lines(source),
            unit=" lines",
            disable=None,
        ) as progress:
            processed = process(read_blocks(source, LINES), pipelines[language], workers)
            write_blocks(output, counted(processed, progress))


def counted(blocks: Iterator[bytes], progress: tqdm) -> Iterator[bytes]:
    """The blocks, whose lines the bar counts."""
    for block in blocks:
        progress.update(block.count(b"\n"))
        yield block


def refuse_mistakes(files: list[tuple[str, Path, Path]]) -> None:
    """Raise a `UserError` now, not after hours, for a missing input or a repeated output."""
    outputs = [output.resolve() for _, _, output in files]
    if [str(source) for _, source, _ in files].count("-") > 1:
        raise UserError("standard input, -, can be one file's input only")
    for _, source, output in files:
        if str(source) != "-" and not source.exists():
            raise UserError(f"{source}: no such file")
        if outputs.count(output.resolve()) > 1:
            raise UserError(f"{output} is named as the output of several files")


def count_lines(path: Path) -> int | None:
    """How many lines a file has; a stream does not tell."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
