"""The named architectures: Macaron models and the pre-norm baselines of equal size.

A size is given as the baseline's; a Macaron architecture divides the inner width of the FFN among
the FFNs of its scheme. fairseq calls an architecture after parsing the command line, so it only
fills in what is not set: a flag beats it.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, register_model_architecture
from fairseq.models.transformer import base_architecture

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model import initialization
from macaron_fairseq.model.arguments import FUSED
from macaron_fairseq.schemes import splitting, substeps

MODEL = "macaron_transformer"
BASELINE = "transformer_pre_norm"


@dataclass(frozen=True)
class Size:
    """A Transformer's size and dropouts, the same on the encoder's and the decoder's side."""

    embed_dim: int
    ffn_embed_dim: int  # of the baseline
    heads: int
    layers: int
    dropout: float
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1


def only_outer_dropout(size: Size) -> Size:
    """That size without dropout inside attention and FFN."""
    return replace(size, attention_dropout=0.0, activation_dropout=0.0)


# The paper's settings; "tiny" is the width and depth of fairseq runs on Multi30k.
SIZES = {
    "": Size(512, 2048, heads=8, layers=6, dropout=0.1),
    "_iwslt_de_en": Size(512, 1024, heads=4, layers=6, dropout=0.3),
    "_wmt_en_de": Size(512, 2048, heads=8, layers=6, dropout=0.1),
    "_wmt_en_de_big": Size(1024, 4096, heads=16, layers=6, dropout=0.3),
    "_tiny": Size(128, 256, heads=4, layers=4, dropout=0.3),
}

# A deep encoder with a shallow decoder translates about as well and much faster, since the decoder
# runs for one token after the other (Kasai et al. 2020): sizes for what learns from a larger model.
STUDENTS = {
    "_student": (Size(256, 1024, heads=8, layers=6, dropout=0.1), 2),
    "_student_tiny": (Size(128, 512, heads=4, layers=6, dropout=0.1), 1),
}

# What the authors' released code calls its architectures: size, with its default dropouts, which
# its scripts override, and whether it is pre-norm.
IWSLT = replace(SIZES["_iwslt_de_en"], dropout=0.1)
WMT, WMT_BIG = SIZES["_wmt_en_de"], SIZES["_wmt_en_de_big"]
RELEASED = {
    "transformer_iwslt_de_en_macaron": (only_outer_dropout(IWSLT), False),
    "transformer_iwslt_de_en_macaron_v2": (IWSLT, True),
    "transformer_wmt_en_de_macaron": (only_outer_dropout(WMT), False),
    "transformer_wmt_en_de_macaron_v2": (WMT, True),
    "transformer_wmt_en_de_big_t2t_macaron": (WMT_BIG, True),
}


def configure_macaron(
    args: Namespace, size: Size, pre_norm: bool = True, decoder_follows: bool = True
) -> None:
    """Fill in what the user left open with a Macaron Transformer of that size.

    The decoder is as wide as the encoder, as in fairseq, or with `decoder_follows` False as `size`.
    """
    set_default(args, "macaron_scheme", splitting.DEFAULT)
    set_default(args, "macaron_post_norm", False)
    set_macaron_defaults(args)
    set_default(args, "encoder_first_ffn_embed_dim", None)
    set_default(args, "decoder_first_ffn_embed_dim", None)
    width = size.ffn_embed_dim
    for side in ("encoder", "decoder"):
        ffns = splitting.count_ffns(splitting.of_side(args, side))
        set_default(args, f"{side}_ffn_embed_dim", width // ffns)
        if decoder_follows:
            width = args.encoder_ffn_embed_dim * ffns
        set_default(args, f"{side}_normalize_before", pre_norm and not args.macaron_post_norm)
        if args.macaron_post_norm and getattr(args, f"{side}_normalize_before"):
            raise UserError(
                f"--macaron-post-norm and --{side}-normalize-before contradict each other: drop one"
            )
        if ffns < 2 and getattr(args, f"{side}_first_ffn_embed_dim"):
            raise UserError(
                f"--{side}-first-ffn-embed-dim has no effect with "
                f"'{splitting.name_of_side(args, side)}', whose {side} layer has one FFN: set "
                f"--{side}-ffn-embed-dim"
            )
    configure_transformer(args, size, pre_norm)


def configure_student(
    args: Namespace, configure: Callable[..., None], size: Size, decoder_layers: int
) -> None:
    """Fill in what the user left open with a model of that size and so many decoder layers."""
    set_default(args, "decoder_layers", decoder_layers)
    configure(args, size)


def configure_released(args: Namespace, size: Size, pre_norm: bool) -> None:
    """Fill in what the user left open as the authors' code does.

    There the decoder's width does not follow the encoder's, but that of its first FFN does.
    """
    is_open = not hasattr(args, "decoder_first_ffn_embed_dim")
    configure_macaron(args, size, pre_norm, decoder_follows=False)
    if is_open and splitting.count_ffns(splitting.of_side(args, "decoder")) > 1:
        args.decoder_first_ffn_embed_dim = args.encoder_ffn_embed_dim


def set_macaron_defaults(args: Namespace) -> None:
    """Fill in what changes no result, and what checkpoints of earlier versions do not say."""
    set_default(args, "macaron_encoder_scheme", None)
    set_default(args, "macaron_decoder_scheme", None)
    set_default(args, "macaron_substep", substeps.DEFAULT)
    set_default(args, "macaron_kernels", FUSED)
    set_default(args, "macaron_matmul", "fp32")
    set_default(args, "macaron_init", initialization.FAIRSEQ)


def configure_baseline(args: Namespace, size: Size) -> None:
    """Fill in what the user left open with a pre-norm baseline of that size."""
    set_default(args, "macaron_init", initialization.FAIRSEQ)
    configure_transformer(args, size)


def configure_transformer(args: Namespace, size: Size, pre_norm: bool = True) -> None:
    """Fill in what the user left open with fairseq's Transformer of that size."""
    set_default(args, "encoder_embed_dim", size.embed_dim)
    set_default(args, "decoder_embed_dim", args.encoder_embed_dim)
    set_default(args, "encoder_ffn_embed_dim", size.ffn_embed_dim)
    set_default(args, "decoder_ffn_embed_dim", args.encoder_ffn_embed_dim)
    for side in ("encoder", "decoder"):
        set_default(args, f"{side}_attention_heads", size.heads)
        set_default(args, f"{side}_layers", size.layers)
        set_default(args, f"{side}_normalize_before", pre_norm)
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        set_default(args, name, getattr(size, name))
    base_architecture(args)


def set_default(args: Namespace, name: str, value: Any) -> None:
    """Set what is not set."""
    setattr(args, name, getattr(args, name, value))


def register(model: str, name: str, configure: Callable[..., None], *settings: Any) -> None:
    """Register one architecture with fairseq, unless another copy of the plugin has done so."""
    if name not in ARCH_MODEL_REGISTRY:
        register_model_architecture(model, name)(lambda args: configure(args, *settings))


def register_all() -> None:
    """Register every architecture; the models must be registered already."""
    for suffix, size in SIZES.items():
        register(MODEL, f"{MODEL}{suffix}", configure_macaron, size)
        register(BASELINE, f"transformer{suffix}_pre_norm", configure_baseline, size)
    for suffix, settings in STUDENTS.items():
        models = (MODEL, "", configure_macaron), (BASELINE, "_pre_norm", configure_baseline)
        for model, ending, configure in models:
            name = f"{model.removesuffix(ending)}{suffix}{ending}"
            register(model, name, configure_student, configure, *settings)
    for name, (size, pre_norm) in RELEASED.items():
        register(MODEL, name, configure_released, size, pre_norm)
