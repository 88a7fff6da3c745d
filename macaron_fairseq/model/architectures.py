"""The named architectures: Macaron models and the pre-norm baselines of equal size.

A size is given as the baseline's; a Macaron architecture divides the inner width of the FFN among
the FFNs of its scheme. fairseq calls an architecture after parsing the command line, so it only
fills in what is not set: a flag beats it.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, register_model_architecture, transformer_lm
from fairseq.models.roberta import model as roberta
from fairseq.models.transformer import base_architecture

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat import tpu
from macaron_fairseq.model import arguments, initialization
from macaron_fairseq.model.arguments import FUSED, SIDES
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

ROBERTA = "macaron_roberta"
ROBERTA_BASELINE = "roberta_pre_norm"

LM = "macaron_transformer_lm"
LM_BASELINE = "transformer_lm_pre_norm"

# BERT's sizes (Devlin et al. 2019, Turc et al. 2019), and one for a CPU.
ROBERTA_SIZES = {
    "base": Size(768, 3072, heads=12, layers=12, dropout=0.1, activation_dropout=0.0),
    "small": Size(512, 2048, heads=8, layers=6, dropout=0.1, activation_dropout=0.0),
    "tiny": Size(256, 1024, heads=4, layers=4, dropout=0.1, activation_dropout=0.0),
}
# The first is that of GPT (Radford et al. 2018).
LM_SIZES = {
    "": ROBERTA_SIZES["base"],
    "_small": ROBERTA_SIZES["small"],
    "_tiny": ROBERTA_SIZES["tiny"],
}

# The BERT of the authors' code: sizes of its models and, fine-tuned, of its classifiers.
BERT = "released_bert"
BERT_SIZES = {
    "transformer_bert_base": ROBERTA_SIZES["base"],
    "transformer_bert_L6_A12": replace(ROBERTA_SIZES["base"], layers=6),
    "transformer_classifier_base": ROBERTA_SIZES["base"],
    "transformer_classifier_L6_A12": replace(ROBERTA_SIZES["base"], layers=6),
}

# What `plugin` registers a class for.
MODELS = MODEL, BASELINE, ROBERTA, ROBERTA_BASELINE, LM, LM_BASELINE, BERT

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
    A function that `register_model_architecture` decorates calls this for a size of a user's own.
    """
    configure_layers(args, size, SIDES, pre_norm, decoder_follows)
    configure_transformer(args, size, pre_norm)


def configure_layers(
    args: Namespace,
    size: Size,
    sides: Sequence[str],
    pre_norm: bool = True,
    decoder_follows: bool = True,
) -> None:
    """Fill in what Macaron layers have that fairseq's do not, and divide the width of the FFN."""
    tpu.take_back(args)  # for architectures that are registered after the plugin
    set_default(args, "macaron_scheme", splitting.DEFAULT)
    set_default(args, "macaron_post_norm", False)
    set_macaron_defaults(args)
    arguments.refuse_lacking_operators(args, sides)
    width = size.ffn_embed_dim
    for side in sides:
        steps = arguments.steps_of(args, side)
        ffns = splitting.count_ffns(steps)
        set_default(args, f"{side}_ffn_embed_dim", width // ffns)
        if decoder_follows:
            width = getattr(args, f"{side}_ffn_embed_dim") * ffns
        set_default(args, f"{side}_normalize_before", pre_norm and not args.macaron_post_norm)
        if args.macaron_post_norm and getattr(args, f"{side}_normalize_before"):
            raise UserError(
                f"--macaron-post-norm and --{side}-normalize-before contradict each other: drop one"
            )
        is_own = splitting.has_own_first_ffn(steps)
        if not is_own and getattr(args, f"{side}_first_ffn_embed_dim"):
            raise UserError(
                f"--{side}-first-ffn-embed-dim has no effect with "
                f"'{arguments.scheme_of(args, side)}', whose {side} layer begins and ends with the "
                f"same FFN: set --{side}-ffn-embed-dim"
            )


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
    if is_open and splitting.count_ffns(arguments.steps_of(args, "decoder")) > 1:
        args.decoder_first_ffn_embed_dim = args.encoder_ffn_embed_dim


def set_macaron_defaults(args: Namespace) -> None:
    """Fill in what changes no result, and what checkpoints of earlier versions do not say."""
    for side in SIDES:
        set_default(args, f"macaron_{side}_scheme", None)
        set_default(args, f"{side}_first_ffn_embed_dim", None)
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
    set_depth(args, size, SIDES, pre_norm)
    base_architecture(args)


def set_depth(args: Namespace, size: Size, sides: Sequence[str], pre_norm: bool = True) -> None:
    """Fill in layers, heads, norms and dropouts of that size."""
    for side in sides:
        set_default(args, f"{side}_attention_heads", size.heads)
        set_default(args, f"{side}_layers", size.layers)
        set_default(args, f"{side}_normalize_before", pre_norm)
    if getattr(args, "relu_dropout", None):  # fairseq's other name, which its layers take last
        set_default(args, "activation_dropout", args.relu_dropout)
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        set_default(args, name, getattr(size, name))


def configure_macaron_roberta(args: Namespace, size: Size) -> None:
    """Fill in what the user left open with a Macaron masked language model of that size."""
    configure_layers(args, size, ("encoder",))
    configure_roberta(args, size)


def configure_roberta(args: Namespace, size: Size) -> None:
    """Fill in what the user left open with fairseq's RoBERTa of that size, pre-norm."""
    set_default(args, "macaron_init", initialization.FAIRSEQ)
    set_default(args, "encoder_embed_dim", size.embed_dim)
    set_default(args, "encoder_ffn_embed_dim", size.ffn_embed_dim)
    set_depth(args, size, ("encoder",))
    # fairseq's post-norm models normalise the embeddings, its pre-norm ones do not.
    set_default(args, "layernorm_embedding", not args.encoder_normalize_before)
    roberta.base_architecture(args)


def configure_released_bert(
    args: Namespace, size: Size, scheme: str, only_classifies: bool
) -> None:
    """Fill in what the user left open as the authors' BERT does."""
    args.only_classifies = only_classifies
    set_default(args, "activation_fn", "gelu")
    set_default(args, "macaron_scheme", scheme)
    set_default(args, "no_normalize_affine", True)
    set_default(args, "untie_weights_roberta", not getattr(args, "share_all_embeddings", True))
    set_default(args, "encoder_learned_pos", False)
    set_default(args, "no_scale_embedding", False)
    configure_macaron_roberta(args, size)


def configure_macaron_lm(args: Namespace, size: Size) -> None:
    """Fill in what the user left open with a Macaron causal language model of that size."""
    configure_layers(args, size, ("decoder",))
    configure_lm(args, size)
    args.decoder_normalize_before = not args.macaron_post_norm  # fairseq knows pre-norm only


def configure_lm(args: Namespace, size: Size) -> None:
    """Fill in what the user left open with fairseq's causal language model of that size.

    As in GPT, the activation is GELU, and the output has the embeddings' weights. A width that is
    given for one of them unties them, and so does a smaller dictionary of the output.
    """
    set_default(args, "macaron_init", initialization.FAIRSEQ)
    set_default(args, "decoder_embed_dim", size.embed_dim)
    set_default(args, "decoder_ffn_embed_dim", size.ffn_embed_dim)
    set_depth(args, size, ("decoder",))
    set_default(args, "activation_fn", "gelu")
    others = "character_embeddings", "adaptive_input", "decoder_input_dim", "decoder_output_dim"
    is_shared = not any(getattr(args, name, None) for name in others)
    is_shared &= getattr(args, "output_dictionary_size", -1) < 0
    set_default(args, "share_decoder_input_output_embed", is_shared)
    fairseqs = transformer_lm.TransformerLanguageModelConfig()
    for name in ("character_filters", "character_embedding_dim", "char_embedder_highway_layers"):
        set_default(args, name, getattr(fairseqs, name))  # which fairseq's architectures leave out
    transformer_lm.base_lm_architecture(args)


def set_default(args: Namespace, name: str, value: Any) -> None:
    """Set what is not set, or is hydra's null."""
    if getattr(args, name, None) is None:
        setattr(args, name, value)


def register(model: str, name: str, configure: Callable[..., None], *settings: Any) -> None:
    """Register one architecture with fairseq, unless another copy of the plugin has done so."""
    if name not in ARCH_MODEL_REGISTRY:
        register_model_architecture(model, name)(lambda args: configure(args, *settings))


def register_all() -> None:
    """Register every architecture; the models must be registered already."""
    for suffix, size in SIZES.items():
        register(MODEL, f"{MODEL}{suffix}", configure_macaron, size)
        register(BASELINE, f"transformer{suffix}_pre_norm", configure_baseline, size)
    for name, size in ROBERTA_SIZES.items():
        register(ROBERTA, f"{ROBERTA}_{name}", configure_macaron_roberta, size)
        register(ROBERTA_BASELINE, f"roberta_{name}_pre_norm", configure_roberta, size)
    for name, size in BERT_SIZES.items():
        for suffix, scheme in (("", "lie-trotter"), ("_macaron", splitting.DEFAULT)):
            is_classifier = "classifier" in name
            register(BERT, name + suffix, configure_released_bert, size, scheme, is_classifier)
    for name, size in LM_SIZES.items():
        register(LM, f"{LM}{name}", configure_macaron_lm, size)
        register(LM_BASELINE, f"transformer_lm{name}_pre_norm", configure_lm, size)
    for suffix, settings in STUDENTS.items():
        register(MODEL, f"{MODEL}{suffix}", configure_student, configure_macaron, *settings)
        name = f"transformer{suffix}_pre_norm"
        register(BASELINE, name, configure_student, configure_baseline, *settings)
    for name, (size, pre_norm) in RELEASED.items():
        register(MODEL, name, configure_released, size, pre_norm)
