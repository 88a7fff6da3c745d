"""`macaron-fairseq describe`: a model's layers as formulas."""

import argparse
from pathlib import Path
from typing import Any

from macaron_fairseq.commands.arguments import positive

EXAMPLES = """\
In the formulas Self and Cross are attention, the paper's F, and FFN is its G. LN is the LayerNorm
of each operator; FFN1 and FFN2 have their own weights.

examples:
  macaron-fairseq describe --arch macaron_transformer_iwslt_de_en
  macaron-fairseq describe --arch macaron_transformer --macaron-scheme yoshida4 \\
    --macaron-substep midpoint --share-all-embeddings --types 32768
  macaron-fairseq describe --path checkpoints/checkpoint_best.pt
"""

OWN = ("run", "arch", "path", "types", "tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command; with all flags of the model, so that fairseq is imported here."""
    from macaron_fairseq import plugin
    from macaron_fairseq.analysis import empty_models
    from macaron_fairseq.model import architectures

    parser.description = (
        "Print what each layer of a model computes, step by step, with its parameters and "
        "operations. It also prints those of a Transformer whose one FFN is as wide as all FFNs of "
        "the layer together. The parameters of the architecture's named baseline follow. No data "
        "is needed. Works for this package's translation and language models, their baselines, and "
        "fairseq's transformer, roberta and masked_lm."
    )
    parser.epilog = EXAMPLES
    # A mistake is answered with it, and not with all flags of all models.
    parser.usage = (
        f"{parser.prog} [-h] (--arch NAME | --path FILE) [--types N] [--tokens N] [MODEL'S FLAGS]"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--arch", metavar="NAME", help="an architecture, with any of its flags below"
    )
    which.add_argument("--path", type=Path, metavar="FILE", help="a checkpoint")
    parser.add_argument(
        "--types",
        type=positive,
        metavar="N",
        help=f"with --arch: the size of both dictionaries (default: {empty_models.TYPES})",
    )
    parser.add_argument(
        "--tokens",
        type=positive,
        default=30,
        metavar="N",
        help="the length of sentences at which operations are counted (default: %(default)s)",
    )
    group: Any = parser.add_argument_group(
        "flags of the model, as for fairseq-train", conflict_handler="resolve"
    )
    for name in (architectures.ROBERTA, architectures.LM, architectures.MODEL):
        plugin.MODELS[name].add_args(group)  # of those that several have, the last one's help
    for action in group._group_actions:
        action.default = argparse.SUPPRESS  # what the user has not set, the architecture sets
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print it."""
    from macaron_fairseq.analysis import description, empty_models
    from macaron_fairseq.common import files
    from macaron_fairseq.common.errors import UserError

    flags = argparse.Namespace(**{k: v for k, v in vars(args).items() if k not in OWN})
    if args.path:
        if vars(flags) or args.types:
            raise UserError(
                "a checkpoint says itself what it is: give no flags of the model, and no --types, "
                "with --path"
            )
        model = empty_models.of_checkpoint(args.path)
    else:
        model = empty_models.of_architecture(args.arch, flags, args.types or empty_models.TYPES)
    files.write(Path("-"), str(description.describe(*model, args.tokens)))
