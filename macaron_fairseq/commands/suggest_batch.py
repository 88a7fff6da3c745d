"""`macaron-fairseq suggest-batch`: which --max-tokens trains fastest on this machine."""

import argparse
import sys
import warnings
from contextlib import suppress

from macaron_fairseq.commands.arguments import positive
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError

DESCRIPTION = """\
Try updates of more and more tokens, and suggest the --max-tokens that trains fastest on this
machine. Sizes are doubled until a GPU's memory or the training set runs out. It suggests the
smallest size whose speed is within 3 % of the best. All flags of fairseq-train follow "--". Nothing
is saved.
"""

EXAMPLES = """\
The suggested size changes how many tokens an update has. To keep a recipe's, choose --update-freq
such that processes x --update-freq x --max-tokens stays as it was.

examples:
  macaron-fairseq suggest-batch --most 8192 -- data-bin --arch macaron_transformer_tiny \\
    --optimizer adam --cpu
  macaron-fairseq suggest-batch -- data-bin --arch macaron_transformer --optimizer adam --fp16
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add(
        "--least",
        type=positive,
        default=1024,
        metavar="N",
        help="tokens of the smallest batches (default: %(default)s)",
    )
    add(
        "--most",
        type=positive,
        default=65536,
        metavar="N",
        help="tokens of the largest (default: %(default)s; on a CPU choose less, since its memory "
        "may run out)",
    )
    add(
        "--updates",
        type=positive,
        default=5,
        metavar="N",
        help="updates that are timed for each size (default: %(default)s)",
    )
    add("flags", nargs="+", metavar="FLAG", help="all flags of fairseq-train, after --")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure sizes, a line each, and print the suggestion."""
    if args.most < args.least:
        raise UserError(f"--most {args.most} is below --least {args.least}")
    from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq
    from macaron_fairseq.analysis import batch_sizes, trainers
    from macaron_fairseq.preflight import checks, command_line

    # fairseq's and PyTorch's, of their own use of each other.
    warnings.filterwarnings("ignore", category=FutureWarning, module="fairseq")
    warnings.filterwarnings("ignore", ".*pin_memory")
    with suppress(argparse.ArgumentError):  # fairseq will say it
        flags, _ = command_line.parse(args.flags)
        if flags.max_tokens is not None:
            raise UserError("--max-tokens is what is looked for: leave it out of the flags")
        flags.distributed_world_size = 1  # as the trainer has it, whatever it will be in training
        checks.check_devices(flags, "train")
        checks.check_optimizer(flags)
    trainer = trainers.build([*args.flags, "--max-tokens", str(args.least)])

    def measure(size: int) -> batch_sizes.Measured:
        found = batch_sizes.measure(trainer, size, args.updates)
        speed = (
            f"{found.tokens_per_second:,.0f} tokens/s, {found.memory / 2**20:,.0f} MiB, a batch "
            f"loaded in {found.loading * 1000:.1f} ms"
        )
        said = speed if found.fits else "does not fit"
        print(f"--max-tokens {size}: {said}", file=sys.stderr, flush=True)
        return found

    sizes = batch_sizes.doubled(args.least, args.most)
    found = batch_sizes.suggested(batch_sizes.search(sizes, measure))
    files.show(f"--max-tokens {found.max_tokens}")
