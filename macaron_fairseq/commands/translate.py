"""`macaron-fairseq translate`: raw text in, raw text out."""

import argparse
import logging
import sys
from pathlib import Path

import torch
from fairseq.dataclass.configs import GenerationConfig
from tqdm import tqdm

from macaron_fairseq import files, preflight, translation
from macaron_fairseq import plugin as plugin  # registers the models with fairseq
from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.errors import UserError

DESCRIPTION = """\
Translate UTF-8 text line by line: preprocess it as for training, search as fairseq-generate does,
join subwords and detokenise. Line N of the output belongs to line N of the input; an empty line
stays empty. A file of any length takes the same memory.
"""

EXAMPLES = f"""\
DATA holds what the model was trained with:
  preprocessing.json  like {translation.EXAMPLE};
                      steps as in macaron-fairseq tokenize; "target_steps" where they differ
  code                the BPE merges
  data-bin/           dict.SOURCE.txt and dict.TARGET.txt

examples:
  macaron-fairseq translate --path averaged.pt --data DATA news.en -o news.de
  zcat news.en.gz | macaron-fairseq translate --path one.pt:two.pt --data DATA | gzip > news.de.gz
  macaron-fairseq translate --path averaged.pt --data DATA --batch-lines 1   (answers each line)
"""

PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}


def describe(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add(
        "input",
        nargs="?",
        type=Path,
        default=Path("-"),
        metavar="INPUT",
        help="a file; default and -: standard input",
    )
    add(
        "-o",
        "--output",
        type=Path,
        default=Path("-"),
        metavar="OUTPUT",
        help="a file, named OUTPUT.part until all of it is there; default and -: standard output",
    )
    add(
        "--path",
        required=True,
        metavar="FILE[:FILE...]",
        help="a checkpoint; or several, which are searched as an ensemble",
    )
    add("--data", required=True, type=Path, metavar="DATA", help="the data folder, see below")
    add("--beam", type=positive, default=5, metavar="N", help="hypotheses kept (default: 5)")
    add(
        "--lenpen",
        type=float,
        default=1.0,
        metavar="X",
        help="length penalty: above 1 favours longer translations (default: 1)",
    )
    add(
        "--max-len-a",
        type=float,
        default=0.0,
        metavar="A",
        help="a translation ends at A * (tokens of its batch's longest source) + B (default: 0)",
    )
    add("--max-len-b", type=positive, default=200, metavar="B", help="see there (default: 200)")
    add(
        "--max-tokens",
        type=positive,
        default=4096,
        metavar="N",
        help="source tokens of a batch, padding included (default: 4096)",
    )
    add(
        "--batch-size",
        type=positive,
        default=128,
        metavar="N",
        help="sentences of a batch (default: 128)",
    )
    add(
        "--batch-lines",
        type=positive,
        default=2000,
        metavar="N",
        help="lines read, sorted by length, translated and written at once (default: 2000)",
    )
    add("--cpu", action="store_true", help="use no GPU")
    precision = parser.add_mutually_exclusive_group()
    for name in PRECISIONS:
        precision.add_argument(
            f"--{name}",
            dest="precision",
            action="store_const",
            const=name,
            help=f"compute in {name}, on a GPU",
        )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Translate INPUT to OUTPUT."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # or it reports all that it loads
    flags = ["--cpu"] * args.cpu + [f"--{args.precision}"] * bool(args.precision)
    preflight.check(["fairseq-interactive", *flags])  # what that would be refused
    if str(args.input) != "-" and not args.input.exists():
        raise UserError(f"{args.input}: no such file")
    preprocessing = translation.read_preprocessing(args.data)
    encode = translation.encoder(args.data, preprocessing)
    engine = translation.FairseqEngine(
        args.path,
        translation.load_dictionary(args.data, preprocessing.source),
        translation.load_dictionary(args.data, preprocessing.target),
        GenerationConfig(
            beam=args.beam,
            lenpen=args.lenpen,
            max_len_a=args.max_len_a,
            max_len_b=args.max_len_b,
        ),
        torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu"),
        PRECISIONS.get(args.precision, torch.float32),
    )
    # Where the text goes to a terminal, a bar would stand between its lines.
    on_terminal = str(args.output) == "-" and sys.stdout.isatty()
    with tqdm(unit=" lines", disable=on_terminal or None) as bar:
        blocks = translation.translate(
            files.read_lines(args.input),
            engine,
            encode,
            translation.decoder(preprocessing),
            block_lines=args.batch_lines,
            max_tokens=args.max_tokens,
            batch_size=args.batch_size,
            progress=bar.update,
        )
        with files.written(args.output, keep_partial=True) as file:
            for block in blocks:
                file.writelines(line.encode() + b"\n" for line in block)
                file.flush()
