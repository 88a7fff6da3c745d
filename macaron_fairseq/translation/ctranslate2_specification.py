"""A model of fairseq or of this package as one of CTranslate2.

CTranslate2's Transformer layer applies self-attention, cross-attention and an FFN, each once and
with a step of 1. A pre-norm Macaron layer is two such layers: the first half FFN without attention,
then the attentions and the second half FFN. An attention is left out by weights of zero, x + 0. The
step of 1/2 is folded into the second linear map of an FFN.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model import arguments
from macaron_fairseq.model.transformer import MacaronTransformerModel
from macaron_fairseq.translation.ctranslate2_engine import import_ctranslate2

# By their names in the model; what is set is taken out, so that nothing is left behind unseen.
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Part:
    """What one of CTranslate2's layers is of a layer of ours."""

    attends: bool
    ffn: str  # names of weights
    layer_norm: str
    step: float


PARTS = {
    "lie-trotter": [Part(True, "", "final_layer_norm", 1)],
    "strang-marchuk": [
        Part(False, "earlier.0.network.", "earlier.0.layer_norm", 1 / 2),
        Part(True, "", "final_layer_norm", 1 / 2),
    ],
}

# fairseq's names and CTranslate2's.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_accurate": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "tanh": "Tanh",
}


# --- what cannot be expressed --------------------------------------------------------------------


def refuse_inexpressible(model: Any, source: Dictionary, target: Dictionary) -> None:
    """Raise a `UserError` with the reason, if CTranslate2 cannot compute what the model does."""
    if not isinstance(model, MacaronTransformerModel) and type(model) is not TransformerModel:
        refuse(f"it is a {type(model).__name__}, neither fairseq's transformer nor Macaron's")
    cfg = model.cfg
    for side in arguments.SIDES:
        name = scheme(model, side)
        if name not in PARTS:
            refuse(f"the {side}'s splitting scheme is '{name}', not {' or '.join(PARTS)}")
        if len(PARTS[name]) > 1 and not getattr(cfg, side).normalize_before:
            refuse(
                f"the {side} is post-norm, and {name} needs layers without attention, whose "
                "LayerNorm would stay behind"
            )
    substep = getattr(cfg, "macaron_substep", "euler")
    if substep != "euler":
        refuse(f"its sub-step is '{substep}', and a layer there can only add what it computes")
    if cfg.activation_fn not in ACTIVATIONS:
        refuse(f"its activation function is '{cfg.activation_fn}', not {', '.join(ACTIVATIONS)}")
    for flag, is_set in {
        "--adaptive-softmax-cutoff": cfg.adaptive_softmax_cutoff is not None,
        "--base-layers": cfg.base_layers,
        "--cross-self-attention": cfg.cross_self_attention,
        "--decoder-output-dim": model.decoder.project_out_dim is not None,
        "--merge-src-tgt-embed": getattr(cfg, "merge_src_tgt_embed", False),
        "--no-cross-attention": cfg.no_cross_attention,
        "--quant-noise-pq": cfg.quant_noise.pq,
        "--quant-noise-scalar": cfg.quant_noise.scalar,
        "--encoder-xformers-att-config": cfg.encoder.xformers_att_config,
        "--decoder-xformers-att-config": cfg.decoder.xformers_att_config,
    }.items():
        if is_set:
            refuse(f"it was trained with {flag}")
    for dictionary in (source, target):
        if len(set(dictionary.symbols)) < len(dictionary):
            refuse("a dictionary of it has the same word twice")


def refuse(reason: str) -> None:
    """Raise a `UserError`."""
    raise UserError(f"CTranslate2 cannot express this model: {reason}")


def scheme(model: Any, side: str) -> str:
    """The splitting scheme of a side; fairseq's own Transformer is Lie-Trotter splitting."""
    if type(model) is TransformerModel:
        return "lie-trotter"
    return arguments.scheme_of(model.cfg, side)


# --- what can ------------------------------------------------------------------------------------


def specification(model: Any, source: Dictionary, target: Dictionary) -> Any:
    """The model as CTranslate2's `TransformerSpec`, weights and vocabularies included.

    Raises:
        UserError: if CTranslate2 is not installed or cannot express the model.
    """
    specs = import_ctranslate2().specs
    refuse_inexpressible(model, source, target)
    # Copies, since quantisation changes them in place.
    weights = {name: w.float().numpy().copy() for name, w in model.state_dict().items()}
    sides = []
    for side, kind in (
        ("encoder", specs.TransformerEncoderSpec),
        ("decoder", specs.TransformerDecoderSpec),
    ):
        module, cfg = getattr(model, side), getattr(model.cfg, side)
        parts = PARTS[scheme(model, side)]
        spec = kind(
            len(module.layers) * len(parts),
            cfg.attention_heads,
            pre_norm=cfg.normalize_before,
            no_final_norm=module.layer_norm is None,
            activation=specs.Activation[ACTIVATIONS[model.cfg.activation_fn]],
            layernorm_embedding=module.layernorm_embedding is not None,
        )
        set_embedding(spec, weights, module, side)
        for number, layer in enumerate(spec.layer):
            part = parts[number % len(parts)]
            name = f"{side}.layers.{number // len(parts)}."
            if part.attends:
                set_attentions(layer, weights, name)
            else:
                set_no_attentions(layer, model, side)
            set_layer_norm(layer.ffn.layer_norm, weights, name + part.layer_norm)
            set_linear(layer.ffn.linear_0, weights, f"{name}{part.ffn}fc1")
            set_linear(layer.ffn.linear_1, weights, f"{name}{part.ffn}fc2", part.step)
        if module.layer_norm is not None:
            set_layer_norm(spec.layer_norm, weights, f"{side}.layer_norm")
        sides.append(spec)
    set_linear(sides[1].projection, weights, "decoder.output_projection")
    if rest := weights.keys() - {"encoder.version", "decoder.version"}:
        refuse(f"there is no place for its parameters {', '.join(sorted(rest))}")

    spec = specs.TransformerSpec(*sides)
    spec.register_source_vocabulary(source.symbols)
    spec.register_target_vocabulary(target.symbols)
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = spec.config.eos_token
    spec.validate()
    return spec


def set_embedding(spec: Any, weights: Weights, module: Any, side: str) -> None:
    """Set what comes before the first layer."""
    words = spec.embeddings[0] if side == "encoder" else spec.embeddings
    words.weight = weights.pop(f"{side}.embed_tokens.weight")
    spec.scale_embeddings = float(module.embed_scale)
    spec.position_encodings.encodings = position_encodings(weights, module, side)
    if module.layernorm_embedding is not None:
        set_layer_norm(spec.layernorm_embedding, weights, f"{side}.layernorm_embedding")


def position_encodings(weights: Weights, module: Any, side: str) -> np.ndarray:
    """What is added to the word at each position, (positions, channels)."""
    positions, table = module.max_positions(), module.embed_positions
    if table is None:  # --no-token-positional-embeddings; without any, CTranslate2 adds its own
        return np.zeros((positions, module.embed_tokens.embedding_dim), np.float32)
    learned = weights.pop(f"{side}.embed_positions.weight", None)
    rows = table.weights.float().numpy() if learned is None else learned
    first = table.padding_idx + 1
    return rows[first : first + positions].copy()


def set_attentions(layer: Any, weights: Weights, name: str) -> None:
    """Set a layer's self-attention and, in the decoder, its cross-attention."""
    set_attention(layer.self_attention, weights, f"{name}self_attn", "qkv")
    if hasattr(layer, "attention"):
        set_attention(layer.attention, weights, f"{name}encoder_attn", "q", "kv")


def set_attention(spec: Any, weights: Weights, name: str, *projections: str) -> None:
    """Set an attention, of whose projections some are one linear map."""
    for linear, letters in zip(spec.linear, projections, strict=False):
        for kind in ("weight", "bias"):
            blocks = [weights.pop(f"{name}.{letter}_proj.{kind}") for letter in letters]
            setattr(linear, kind, np.concatenate(blocks))
    set_linear(spec.linear[-1], weights, f"{name}.out_proj")
    set_layer_norm(spec.layer_norm, weights, f"{name}_layer_norm")


def set_no_attentions(layer: Any, model: Any, side: str) -> None:
    """Make a layer's attentions give 0, with one channel a head, the least that there can be.

    Of the decoder's too: CTranslate2 would keep no state for the cross-attention of a layer that
    has none, and fail where a search reorders the states of all layers.
    """
    specs = import_ctranslate2().specs
    cfg = getattr(model.cfg, side)
    heads, width = cfg.attention_heads, cfg.embed_dim

    def attention(is_self: bool, *shapes: tuple[int, int]) -> Any:
        spec = specs.attention_spec.MultiHeadAttentionSpec(self_attention=is_self, head_dim=1)
        for linear, shape in zip(spec.linear, shapes, strict=True):
            linear.weight = np.zeros(shape, np.float32)
        spec.layer_norm.gamma = spec.layer_norm.beta = np.zeros(width, np.float32)
        return spec

    layer.self_attention = attention(True, (3 * heads, width), (width, heads))
    if hasattr(layer, "attention"):
        memory = model.cfg.encoder.embed_dim
        layer.attention = attention(False, (heads, width), (2 * heads, memory), (width, heads))


def set_layer_norm(spec: Any, weights: Weights, name: str) -> None:
    """Set gain and bias of a LayerNorm."""
    spec.gamma, spec.beta = weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias")


def set_linear(spec: Any, weights: Weights, name: str, step: float = 1) -> None:
    """Set a linear map, multiplied by `step`; only the last one has no bias."""
    spec.weight = weights.pop(f"{name}.weight") * np.float32(step)
    if f"{name}.bias" in weights:
        spec.bias = weights.pop(f"{name}.bias") * np.float32(step)
