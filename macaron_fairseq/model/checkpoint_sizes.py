"""The sizes of a checkpoint's parameters, which have to be those of data and model.

fairseq drops a classification head for another number of classes, with a warning, and trains a new
one (`test_fairseq_drops_a_head_of_other_classes`). It answers another dictionary or number of
positions with a traceback. `preflight.restored_parameters` checks the rest of a checkpoint.
"""

from collections.abc import Mapping

from fairseq.data import Dictionary
from torch import Tensor

from macaron_fairseq.common.errors import UserError

HEADS = "classification_heads."  # how the names of their parameters begin
CLASSES_HEAD = "sentence_classification_head"  # fairseq's default for fine-tuning
# The parameters that have a row for each type of the dictionary, and for each position.
CAUSAL_TYPES = "decoder.embed_tokens.weight"
PREDICTED_TYPES = "decoder.output_projection.weight"
MASKED_TYPES = "encoder.sentence_encoder.embed_tokens.weight"
POSITIONS = "encoder.sentence_encoder.embed_positions.weight"


def refuse_other_sizes(
    name: str,
    weights: Mapping[str, Tensor],
    types: int | None = None,
    positions: int | None = None,
    classes: Mapping[str, int | None] | None = None,
) -> None:
    """Raise a `UserError` if parameters are of other sizes; None stands for any size.

    Args:
        name: what to call the checkpoint.
        weights: its parameters by name.
        types: how many the dictionary has, the special symbols included.
        positions: how many the model has.
        classes: how many each head has, by its name.
    """
    for embedding in (CAUSAL_TYPES, MASKED_TYPES):
        found = rows(weights, embedding)
        if None not in (found, types) and found != types:
            raise UserError(
                f"{name} embeds {found} types, but the dictionary has {types} with its special "
                "symbols: use the dict.txt that the model was trained with"
            )
    for head, wanted in (classes or {}).items():
        found = rows(weights, of_head(head))
        if None not in (found, wanted) and found != wanted:
            raise UserError(
                f"the head '{head}' of {name} has {found} classes and the task {wanted}: give "
                f"--num-classes {found}, or train a new head under another "
                "--classification-head-name"
            )
    found = positions_of(weights)
    if None not in (found, positions) and found != positions:
        raise UserError(
            f"{name} has {found} positions and the model {positions}: give --max-positions {found}"
        )


def refuse_other_dictionaries(
    name: str, parameters: Mapping[str, Tensor], source: int, target: int
) -> None:
    """Raise a `UserError` if a model was trained with dictionaries of other sizes.

    Args:
        name: what to call the checkpoint.
        parameters: its parameters by name.
        source: how many types the source dictionary has.
        target: how many the target dictionary has.
    """
    has_encoder = any(x.startswith("encoder.") for x in parameters)
    read_by_decoder = ("target", target) if has_encoder else ("source", source)
    for side, language, types in (("encoder", "source", source), ("decoder", *read_by_decoder)):
        found = rows(parameters, f"{side}.embed_tokens.weight")
        if found not in (None, types):
            raise UserError(
                f"{name} embeds {found} {language} types, but the {language} dictionary has "
                f"{types}: use the data folder, or the dict.*.txt, that the model was trained with"
            )


def refuse_other_output(name: str, parameters: Mapping[str, Tensor], target: int) -> None:
    """Raise a `UserError` if a language model predicts fewer types than are asked of it.

    With shared embeddings it has one parameter for both, with a row for each type that it reads.

    Args:
        name: what to call the checkpoint.
        parameters: its parameters by name.
        target: how many types the target dictionary has.
    """
    read, found = rows(parameters, CAUSAL_TYPES), rows(parameters, PREDICTED_TYPES)
    if found not in (None, read, target) and not any(x.startswith("encoder.") for x in parameters):
        raise UserError(
            f"{name} predicts {found} types, as with --output-dictionary-size {found}, and not "
            f"{target}: where there is that flag, give it"
        )


def rows(weights: Mapping[str, Tensor], name: str) -> int | None:
    """How many rows a parameter has; None if there is none of that name."""
    return len(weights[name]) if name in weights else None


def positions_of(weights: Mapping[str, Tensor]) -> int | None:
    """How many positions a masked language model has learnt; fairseq's first rows are unused."""
    found = rows(weights, POSITIONS)
    return None if found is None else found - Dictionary().pad() - 1


def of_head(name: str) -> str:
    """The parameter that has a row for each class."""
    return f"{HEADS}{name}.out_proj.weight"
