"""`macaron-fairseq distill`: a training set of a teacher's translations."""

import argparse
import sys
from pathlib import Path

from macaron_fairseq.commands.arguments import LARGEST, folder, number, positive
from macaron_fairseq.commands.searching import (
    WHEN_INTERRUPTED,
    add_device,
    add_search,
    add_shards,
    batching_of,
    search_of,
)
from macaron_fairseq.common.files import show
from macaron_fairseq.text import data_folder

DESCRIPTION = """\
Translate the training set of a prepared data folder with a large model, the teacher, and write a
data folder of the translations. A small model, the student, is trained on that as on any other:
sequence-level distillation (Kim & Rush 2016). Dictionaries, merges, validation and test sets stay
the same. Killed, it goes on where it was: give the same command again.
"""

EXAMPLES = """\
FOLDER is a data folder as recipes make it. It also holds the training text in three forms:
raw/train.*, tokenized/train.* and bpe/train.*. Its preprocessing.json has the teacher's hash, those
of the source, the settings, and how many translations were dropped for which reason.

examples:
  macaron-fairseq distill --teacher averaged.pt --data DATA -o DATA.distilled \\
    --max-len-a 1.5 --max-len-b 10
  macaron-fairseq distill --teacher one.pt:two.pt --data DATA -o DATA.distilled \\
    --max-len-a 1.5 --max-len-b 10 --best-of 5 --mix
  fairseq-train DATA.distilled/data-bin --user-dir "$(macaron-fairseq user-dir)" \\
    --arch macaron_transformer_student ...

by eight jobs; when all are done, join:
  macaron-fairseq distill --teacher averaged.pt --data DATA -o DATA.distilled --shard 1/8
  macaron-fairseq distill --teacher averaged.pt --data DATA -o DATA.distilled --join
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add(
        "--teacher",
        required=True,
        metavar="FILE[:FILE...]",
        help="a checkpoint; or several, which are searched as an ensemble",
    )
    add("--data", required=True, type=Path, metavar="DATA", help="the teacher's data folder")
    add("-o", "--output", required=True, type=folder, metavar="FOLDER", help="the folder to write")
    add(
        "--best-of",
        type=positive,
        default=1,
        metavar="N",
        help="keep of N hypotheses the one with the highest sentence BLEU against the reference; 1 "
        "is the teacher's own choice (default: 1)",
    )
    add(
        "--mix",
        action="store_true",
        help="put all original pairs before the translations; this, the two filters and "
        "--keep-parts are for the command that writes FOLDER, which is --join after shards",
    )
    add(
        "--max-ratio",
        type=number(1, LARGEST, "a number of 1 or more"),
        default=4,
        metavar="X",
        help="drop a translation if one side has more than X times the other's tokens (default: 4)",
    )
    add(
        "--max-copied",
        type=number(0, 1, "a share from 0 to 1"),
        default=0.5,
        metavar="X",
        help="drop a translation if more than this share of its words is in the source; 1 drops "
        "none (default: 0.5)",
    )
    add(
        "--keep-parts",
        action="store_true",
        help="keep FOLDER.parts: once FOLDER is removed, the same command with other filters joins "
        "them again",
    )
    add_search(parser)
    add_shards(parser, "FOLDER.parts")
    add_device(parser)
    parser.set_defaults(run=run, precision="fp32", when_interrupted=WHEN_INTERRUPTED)


def run(args: argparse.Namespace) -> None:
    """Distill, and say what was kept."""
    # Here, since these imports take seconds.
    from macaron_fairseq import plugin as plugin  # registers the models with fairseq
    from macaron_fairseq.distillation.sequence_level import distilling
    from macaron_fairseq.distillation.sequence_level.translated_pairs import Choice
    from macaron_fairseq.translation import fairseq_engine

    data = data_folder.read(args.data)
    search = search_of(args)
    choice = Choice(args.best_of, args.mix, args.max_ratio, args.max_copied)
    if args.shard and (choice != Choice(args.best_of) or args.keep_parts):
        print(
            "note: filters, --mix and --keep-parts have no effect with --shard: give them to "
            "--join, too",
            file=sys.stderr,
        )
    result = distilling.distill(
        args.teacher,
        data,
        args.output,
        search,
        batching_of(args),
        choice,
        lambda: fairseq_engine.load(
            args.teacher, data, search, use_gpu=not args.cpu, precision=args.precision
        ),
        shard=args.shard,
        join=args.join,
        keep_parts=args.keep_parts,
        precision=args.precision,
    )
    show(str(result) if args.shard else f"wrote {args.output}: {result}")
