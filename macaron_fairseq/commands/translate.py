"""`macaron-fairseq translate`: raw text in, raw text out."""

import argparse
import os
import sys
from pathlib import Path

from macaron_fairseq import api
from macaron_fairseq.commands.arguments import new_file
from macaron_fairseq.commands.searching import (
    WHEN_INTERRUPTED,
    add_device,
    add_search,
    add_shards,
    batching_of,
    search_of,
)
from macaron_fairseq.common import files, text_lines
from macaron_fairseq.common.errors import UserError, check_all
from macaron_fairseq.common.files import show
from macaron_fairseq.common.wording import counted
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import DataFolder
from macaron_fairseq.translation import file_parts, terminal, translator
from macaron_fairseq.translation.ctranslate2_engine import COMPUTE_TYPES, require_export
from macaron_fairseq.translation.file_parts import TextFile
from macaron_fairseq.translation.translator import Engine

DESCRIPTION = """\
Translate UTF-8 text line by line: preprocess it as for training, search as fairseq-generate does,
join subwords and detokenise. Line N of the output belongs to line N of the input; an empty line
stays empty. A file of any length takes the same memory. On a terminal it asks for lines and answers
each at once.
"""

EXAMPLES = f"""\
DATA holds what the model was trained with:
  preprocessing.json  like {data_folder.EXAMPLE};
                      steps as in macaron-fairseq tokenize; "target_steps" where they differ
  code                the BPE merges
  data-bin/           dict.SOURCE.txt and dict.TARGET.txt

examples:
  macaron-fairseq translate --path averaged.pt --data DATA news.en -o news.de
  zcat news.en.gz | macaron-fairseq translate --path one.pt:two.pt --data DATA | gzip > news.de.gz
  macaron-fairseq translate --path averaged.pt --data DATA   (on a terminal: asks and answers)
  tail -f talk.en | macaron-fairseq translate --path averaged.pt --data DATA --batch-lines 1
  macaron-fairseq export --path averaged.pt --data DATA --quantization int8 -o averaged.int8
  macaron-fairseq translate --path averaged.int8 --data DATA news.en -o news.de

a long file by eight jobs, which may be killed and started again; when all are done, join,
with the flags that the jobs had:
  macaron-fairseq translate --path averaged.pt --data DATA news.en -o news.de --shard 1/8
  macaron-fairseq translate --path averaged.pt --data DATA news.en -o news.de --join
"""

# Where there are no shards.
WHEN_INTERRUPTED_HERE = (
    ": what is translated is in {}, and the same command begins anew; with --shard 1/1, and --join "
    "at the end, it would go on"
)
# What else parts depend on: other batches can round otherwise.
OF_PARTS = ("precision", "compute_type", "batch_lines", "max_tokens", "batch_size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
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
        type=new_file,
        default=Path("-"),
        metavar="OUTPUT",
        help="a file, named OUTPUT.part until all of it is there; default and -: standard output",
    )
    add(
        "--path",
        required=True,
        metavar="FILE[:FILE...]",
        help="a checkpoint; or several, which are searched as an ensemble; or the folder that "
        "macaron-fairseq export wrote, which CTranslate2 searches with",
    )
    add("--data", required=True, type=Path, metavar="DATA", help="the data folder, see below")
    add(
        "--engine",
        choices=("fairseq", "ctranslate2"),
        help="what searches (default: ctranslate2 with an export, fairseq with checkpoints)",
    )
    add_search(parser)
    add_shards(parser, "OUTPUT.parts")
    precision = add_device(parser)
    precision.add_argument(
        "--compute-type",
        choices=COMPUTE_TYPES,
        metavar="TYPE",
        help=f"type to compute in, of an export: {', '.join(COMPUTE_TYPES)} (default: its own)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Translate INPUT to OUTPUT."""
    data, *_ = check_all(
        lambda: data_folder.read(args.data),
        lambda: translator.refuse_missing(args.path, "checkpoint or export"),
        lambda: translator.refuse_unreadable(args.input, args.output),
        lambda: refuse_checkpoint(args),
        lambda: refuse_other_engine(args),
        lambda: refuse_other_precision(args),
    )
    if args.shard or args.join:
        args.when_interrupted = WHEN_INTERRUPTED
        run_parts(args, data)
        return
    check_all(
        lambda: text_lines.refuse_other_encodings(args.input),
        lambda: data.encoder(data.source),  # whose merges may be bad
    )
    if terminal.is_typed(args.input) or files.is_terminal(sys.stderr):
        print(f"loading {args.path}: some seconds", file=sys.stderr, flush=True)
    engine = load(args, data)
    if args.input.is_file() and files.is_replaced(args.output):
        partial = files.partial_of(args.output.resolve())
        args.when_interrupted = WHEN_INTERRUPTED_HERE.format(partial)
    translator.translate_file(args.input, args.output, engine, data, batching_of(args))


def run_parts(args: argparse.Namespace, data: DataFolder) -> None:
    """Translate a shard of INPUT, or join what the shards left."""
    if not args.input.is_file() or str(args.output) == "-":
        raise UserError("--shard and --join need files: give INPUT and -o OUTPUT")
    file_parts.refuse_output(args.output)
    text = TextFile(args.input, args.batch_lines)
    settings = {"engine": engine_of(args.path), **{x: getattr(args, x) for x in OF_PARTS}}
    found = file_parts.of_file(text, args.output, args.path, data, search_of(args), **settings)
    if args.join:
        file_parts.join(found, args.output)
        show(f"wrote {args.output}: {counted(text.lines, 'line')}")
    elif found.left(args.shard):
        engine = load(args, data)
        file_parts.translate_shard(found, text, engine, data, args.shard, batching_of(args))
    if args.shard:
        show(found.said(args.shard))


def engine_of(path: str) -> str:
    """Which one a model is for."""
    return "ctranslate2" if api.is_export(path) else "fairseq"


def refuse_other_engine(args: argparse.Namespace) -> None:
    """Raise a `UserError` if the model is not for the engine, or a folder that is no export."""
    is_export, names = api.is_export(args.path), args.path.split(os.pathsep)
    is_mixed = not is_export and any(map(api.is_export, names))
    if is_mixed or (args.engine == "ctranslate2" and not is_export and len(names) > 1):
        raise UserError(api.ONE_EXPORT)
    if args.engine == "ctranslate2" or is_export:
        require_export(Path(args.path))
    if args.engine == "fairseq" and is_export:
        raise UserError(
            f"{args.path} is an export: leave out --engine fairseq, or name checkpoints"
        )


def refuse_other_precision(args: argparse.Namespace) -> None:
    """Raise a `UserError` if a precision is named that the kind of model does not have."""
    is_export = api.is_export(args.path)
    is_there = any(map(files.is_there, args.path.split(os.pathsep)))
    if args.compute_type and not is_export and is_there:
        raise UserError("--compute-type is for an export: a checkpoint takes --fp16 or --bf16")
    if args.precision and is_export:
        raise UserError(f"--{args.precision} is for a checkpoint: an export takes --compute-type")


def refuse_checkpoint(args: argparse.Namespace) -> None:
    """Raise a `UserError` if INPUT is a checkpoint, as after --path with a space between two."""
    if args.input.is_file() and files.is_stored(args.input):  # a pipe would lose what is read
        raise UserError(
            f"{args.input} is a checkpoint and no text: several that translate together are "
            f"--path {args.path}:{args.input}"
        )


def load(args: argparse.Namespace, data: DataFolder) -> Engine:
    """What searches with the models that the command line names."""
    precision = args.compute_type or args.precision
    return api.load_engine(
        args.path, data, search_of(args), batching_of(args), cpu=args.cpu, precision=precision
    )
