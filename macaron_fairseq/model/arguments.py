"""The model's own arguments: what they are, and which do not go together."""

import logging
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq.tasks import FairseqTask

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import flag, question
from macaron_fairseq.model import initialization
from macaron_fairseq.schemes import splitting, substeps

logger = logging.getLogger(__name__)

# Who computes attention, dropout and linear maps: `fast/`, or fairseq and PyTorch.
FUSED, FAIRSEQ = KERNELS = "fused", "fairseq"

PRECISIONS = "fp32", "bf16"  # of matrix products
CHOICES = {
    "macaron_kernels": KERNELS,
    "macaron_matmul": PRECISIONS,
    "macaron_init": initialization.CHOICES,
}

SIDES = "encoder", "decoder"


def add(parser: ArgumentParser, sides: Sequence[str] = SIDES) -> None:
    """Add what fairseq's models do not have, for a model of these sides."""
    parser.add_argument(
        "--macaron-scheme",
        metavar="NAME",
        default=SUPPRESS,
        help="splitting scheme of each layer: "
        f"{', '.join(splitting.SCHEMES)} (default: {splitting.DEFAULT})",
    )
    for side in sides:
        parser.add_argument(
            f"--macaron-{side}-scheme",
            metavar="NAME",
            default=SUPPRESS,
            help=f"splitting scheme of the {side}, if it differs from --macaron-scheme",
        )
    parser.add_argument(
        "--macaron-substep",
        metavar="NAME",
        default=SUPPRESS,
        help="how each step x + h k along an operator f is computed: "
        f"{', '.join(substeps.SUBSTEPS)} (default: {substeps.DEFAULT}, k = f(x); the others "
        "evaluate f several times with the same weights)",
    )
    parser.add_argument(
        "--macaron-post-norm",
        action="store_true",
        default=SUPPRESS,
        help="LayerNorm after each residual connection instead of before each operator",
    )
    parser.add_argument(
        "--macaron-kernels",
        choices=KERNELS,
        default=SUPPRESS,
        help="whose attention, dropout and linear maps to compute with: this package's (fused), or "
        f"fairseq's (default: {FUSED}). The results are the same, except for rounding and the "
        "numbers that dropout draws on a GPU",
    )
    parser.add_argument(
        "--macaron-matmul",
        choices=PRECISIONS,
        default=SUPPRESS,
        help="precision of matrix products in training on a CPU (default: fp32). bf16 is faster "
        "and less exact; parameters and sums stay fp32. On x86 it needs AVX-512. On a GPU use "
        "--bf16",
    )
    initialization.add_argument(parser)
    for side in sides:
        parser.add_argument(
            f"--{side}-first-ffn-embed-dim",
            type=int,
            metavar="N",
            default=SUPPRESS,
            help=f"inner width of the first FFN of each {side} layer, if it differs from "
            f"--{side}-ffn-embed-dim",
        )


def warn_of_unknown_names(values: Mapping[str, Any]) -> None:
    """Warn of a `macaron_...` that is no argument: fairseq-hydra-train takes any."""
    parser = ArgumentParser(add_help=False)
    add(parser)
    known = {action.dest for action in parser._actions}
    for name in {x for x in values if x.startswith("macaron_")} - known:
        logger.warning("model.%s is no argument, and has no effect%s", name, question(name, known))


def scheme_of(cfg: Any, side: str) -> str:
    """The name of the scheme of "encoder" or "decoder" in a model's arguments."""
    return getattr(cfg, f"macaron_{side}_scheme", None) or cfg.macaron_scheme


def steps_of(cfg: Any, side: str) -> splitting.Steps:
    """The steps of a layer of "encoder" or "decoder" by a model's arguments.

    Raises:
        UserError: if there is no scheme of that name.
    """
    own = f"macaron_{side}_scheme"
    named = flag(own if getattr(cfg, own, None) else "macaron_scheme")
    return getattr(splitting.get(scheme_of(cfg, side), named), side)


def refuse_scales(args: Namespace) -> None:
    """Raise a `UserError` at fairseq's further norms and factors (NormFormer)."""
    for name in ("scale_attn", "scale_fc", "scale_heads", "scale_resids"):
        if getattr(args, name, False):
            raise UserError(
                f"{flag(name)} is for fairseq's own layers: leave it out, or take fairseq's "
                "architecture"
            )


def refuse_unlike_embeddings(args: Namespace, task: FairseqTask) -> None:
    """Refuse dictionaries and widths of two languages that do not fit the flags.

    fairseq would reject them later, or compute wrongly.
    """
    if getattr(args, "tie_adaptive_weights", False):
        raise UserError(
            "--tie-adaptive-weights needs adaptive input, which translation has not: leave it out"
        )
    source, target = task.source_dictionary, task.target_dictionary
    if args.share_all_embeddings and source != target:
        raise UserError(
            f"--share-all-embeddings needs one dictionary for both languages, but the source has "
            f"{len(source)} types and the target {len(target)}, not the same: run "
            "fairseq-preprocess with --joined-dictionary, or drop the flag"
        )
    if args.share_all_embeddings and args.encoder_embed_dim != args.decoder_embed_dim:
        raise UserError(
            f"--share-all-embeddings needs one width, but --encoder-embed-dim is "
            f"{args.encoder_embed_dim} and --decoder-embed-dim {args.decoder_embed_dim}: set both"
        )
    if args.cross_self_attention and args.encoder_embed_dim != args.decoder_embed_dim:
        raise UserError(
            f"--cross-self-attention attends to both sides at once, but --encoder-embed-dim is "
            f"{args.encoder_embed_dim} and --decoder-embed-dim {args.decoder_embed_dim}: set both"
        )
    refuse_other_output(args, args.decoder_embed_dim)


def refuse_other_output(args: Namespace, width: int) -> None:
    """Refuse an output width that differs from the embeddings', where these are the projection."""
    output = getattr(args, "decoder_output_dim", None) or width
    names = "share_all_embeddings", "share_decoder_input_output_embed"
    shared = [name for name in names if getattr(args, name, False)]
    if shared and not args.adaptive_softmax_cutoff and output != width:
        raise UserError(
            f"{flag(shared[0])} projects by embeddings of width {width}, but "
            f"--decoder-output-dim is {output}: give it {width}, or drop one of the two"
        )


def refuse_senseless_values(args: Namespace, sides: Sequence[str]) -> None:
    """Refuse values that no model of these sides can have.

    Choices that do not exist are among them: fairseq-hydra-train has no parser for a model.
    Dropouts may be no probabilities, such as NaN. Sizes may be below 1, and widths no multiple of
    their heads.
    """
    for name, choices in CHOICES.items():
        if (value := getattr(args, name, None)) not in (None, *choices):
            raise UserError(f"{flag(name)} is {value}: give one of {', '.join(choices)}")
    dropped = [f"{side}_layerdrop" for side in sides]
    further = "adaptive_softmax_dropout", "pooler_dropout"
    for name in ("dropout", "attention_dropout", "activation_dropout", *further, *dropped):
        if not 0 <= (getattr(args, name, 0) or 0) <= 1:
            value = getattr(args, name)
            raise UserError(f"{flag(name)} {value} is not a probability: give 0 to 1")
    for side in sides:
        for name in ("embed_dim", "attention_heads", "ffn_embed_dim", "first_ffn_embed_dim"):
            size = getattr(args, f"{side}_{name}", None)
            if size is not None and size < 1:
                named = flag(f"{side}_{name}")
                raise UserError(f"{named} {size} is not above 0: give a number that is")
        if (layers := getattr(args, f"{side}_layers", 0)) < 0:
            raise UserError(f"--{side}-layers is {layers}: give a number, 0 or more")
        width, heads = (
            getattr(args, f"{side}_{name}") for name in ("embed_dim", "attention_heads")
        )
        if width % heads:
            raise UserError(
                f"--{side}-embed-dim {width} cannot be divided among --{side}-attention-heads "
                f"{heads}: choose a multiple"
            )


def refuse_lacking_operators(args: Namespace, sides: Sequence[str]) -> None:
    """Refuse a user's scheme that never applies a network that fairseq's layers have."""
    has_cross = len(sides) > 1 and not getattr(args, "no_cross_attention", False)
    for side in sides:
        wanted = [splitting.SELF_ATTENTION, splitting.FFN]
        if side == "decoder" and has_cross:
            wanted.insert(1, splitting.CROSS_ATTENTION)
        applied = {x.kind for x in splitting.operators(steps_of(args, side))}
        if missing := [kind for kind in wanted if kind not in applied]:
            raise UserError(
                f"the scheme '{scheme_of(args, side)}' has no {' and no '.join(missing)} in the "
                f"{side}, which its layers have: add a step"
            )


def refuse_senseless_steps(args: Namespace, sides: Sequence[str]) -> None:
    """Refuse schemes and sub-steps that do not go with the layers' norms."""
    substep = substeps.get(args.macaron_substep)
    for side in sides:
        name, steps = scheme_of(args, side), steps_of(args, side)
        if getattr(args, f"{side}_normalize_before"):
            continue
        reason = None
        if substep.evaluations > 1:
            reason = (
                f"the sub-step '{args.macaron_substep}'",
                "it follows the flow x' = f(x), and a post-norm layer normalises the state",
            )
        elif any(len(x.operators) > 1 for x in steps):
            reason = (
                f"the scheme '{name}'",
                "its operators add to one state, but in post-norm each has another LayerNorm",
            )
        elif any(x.size < 0 for x in steps):
            reason = (
                f"the scheme '{name}'",
                "some of its steps go back, but a post-norm layer has normalised the state since",
            )
        if reason:
            raise UserError(f"{reason[0]} needs pre-norm in the {side}, since {reason[1]}")
