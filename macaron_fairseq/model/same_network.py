"""Whether two models with the same parameters compute the same."""

from collections.abc import Iterable, Mapping
from typing import Any

from macaron_fairseq.common.names import flag
from macaron_fairseq.schemes import substeps

# Arguments that change what a model computes while its parameters keep names and shapes.
IN_NO_SHAPE = (
    "macaron_scheme",
    "macaron_encoder_scheme",
    "macaron_decoder_scheme",
    "macaron_substep",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_normalize_before",
    "decoder_normalize_before",
    "activation_fn",
    "pooler_activation_fn",
    "no_scale_embedding",
    "no_token_positional_embeddings",
    "encoder_learned_pos",
    "decoder_learned_pos",
    "cross_self_attention",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
    "quant_noise_scalar",  # with it weights are rounded in evaluation, too
)
# What checkpoints of earlier versions do not say.
UNSAID = {"macaron_substep": substeps.DEFAULT, "quant_noise_scalar": 0}


def difference(
    one: Mapping[str, Any], other: Mapping[str, Any], names: Iterable[str] = IN_NO_SHAPE
) -> tuple[str, Any, Any] | None:
    """The first argument in which two networks differ, and its values; None if they are the same.

    None, False, 0 and what is not said are the same.

    Args:
        one: the arguments of a checkpoint's model, see `checkpoints.model_arguments`.
        other: those of another model.
        names: of the arguments that are compared.
    """
    sides = with_unsaid(one), with_unsaid(other)
    for name in names:
        value, other_value = (side.get(name) for side in sides)
        if (value or None) != (other_value or None):
            return name, value, other_value
    return None


def with_unsaid(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with what earlier versions, or models of fairseq's, do not say."""
    is_macaron = "macaron" in str(arguments.get("arch"))
    found = {**UNSAID, **({} if is_macaron else {"macaron_scheme": "lie-trotter"}), **arguments}
    if scheme := found.get("macaron_scheme"):
        for name in ("macaron_encoder_scheme", "macaron_decoder_scheme"):
            found[name] = found.get(name) or scheme
    return found


def other_network(trained: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """In what the flags differ from a checkpoint's network, as a clause; "" where they do not.

    What an old checkpoint does not say is not compared.

    Args:
        trained: the arguments of the checkpoint's model, see `checkpoints.model_arguments`.
        given: the flags.
    """
    said = with_unsaid(trained).keys() & with_unsaid(given).keys()
    found = difference(trained, given, [name for name in IN_NO_SHAPE if name in said])
    if not found:
        return ""
    name, before, now = found
    return f"was trained with {flag(name)} {before}, and the model would have {now}"
