"""Models from a name or a checkpoint's arguments alone, without data; and their baselines."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.models.masked_lm import MaskedLMModel
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel

from macaron_fairseq.analysis import anatomy
from macaron_fairseq.analysis.anatomy import DECODER, ENCODER
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model.architectures import complete
from macaron_fairseq.model.released import upgrade_args
from macaron_fairseq.model.transformer import MacaronTransformerModel
from macaron_fairseq.schemes import splitting

# Of a masked language model that does not say it.
POSITIONS = 512


def named(arch: str, flags: Namespace, types: int) -> tuple[Namespace, Any]:
    """The arguments and the dictionaries of an architecture.

    Args:
        arch: its name.
        flags: arguments that the user set.
        types: how many each dictionary has.

    Raises:
        UserError: if there is none of that name, it is not supported, or it has not these
            arguments.
    """
    known = {name: model for name, model in ARCH_MODEL_REGISTRY.items() if is_known(model)}
    look_up(known, arch, "architecture", "--arch")
    if known[arch] is not MacaronTransformerModel:
        refuse_unknown(arch, known[arch], flags)
    args = copy(flags)
    args.arch = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    return args, task(types, types)


def refuse_unknown(arch: str, model: Any, flags: Namespace) -> None:
    """Raise a `UserError` for an argument that a model of fairseq's own has not."""
    parser = ArgumentParser()
    model.add_args(parser)
    known = vars(parser.parse_args([]))
    for name in vars(flags):
        if name not in known:
            raise UserError(
                f"{arch}, which is fairseq's own, has no --{name.replace('_', '-')}: drop it, or "
                "choose another --arch"
            )


def saved(path: Path) -> tuple[Namespace, Any]:
    """The arguments and the sizes of the dictionaries of a checkpoint.

    Raises:
        UserError: if the file is bad or its model is not supported.
    """
    state = checkpoints.load(path)
    args = Namespace(**checkpoints.model_arguments(state))
    if not is_known(ARCH_MODEL_REGISTRY.get(args.arch)):
        raise UserError(
            f"{path} holds a model of the architecture {args.arch}, which is not supported: "
            "supported are macaron_transformer, fairseq's transformer, roberta and masked_lm"
        )
    names = [f"{side}.embed_tokens.weight" for side in (ENCODER, DECODER)]
    if anatomy.is_masked_lm(ARCH_MODEL_REGISTRY[args.arch]):
        names = ["sentence_encoder.embed_tokens.weight"]
        positions = rows(state["model"], "sentence_encoder.embed_positions.weight")
        if positions:
            args.max_positions = positions - Dictionary().pad() - 1
    sizes = []
    for name in names:
        sizes.append(rows(state["model"], name))
        if not sizes[-1]:
            raise UserError(f"{path} has no '{name}': use a checkpoint of fairseq-train")
    return args, task(sizes[0], sizes[-1])


def rows(weights: Mapping[str, Any], name: str) -> int:
    """How many rows a weight has whose name ends so (it began otherwise of old); 0 without one."""
    return next((len(x) for full_name, x in weights.items() if full_name.endswith(name)), 0)


def is_known(model: Any) -> bool:
    """Whether a model class can be described: a subclass may have other layers."""
    return model in (MacaronTransformerModel, TransformerModel, RobertaModel, MaskedLMModel)


def task(source_types: int, target_types: int) -> Any:
    """What building a model needs of a task: dictionaries of these sizes."""
    source = numbered(source_types)
    target = source if source_types == target_types else numbered(target_types)
    return SimpleNamespace(
        source_dictionary=source,
        target_dictionary=target,
        dictionary=source,
    )


def numbered(types: int) -> Dictionary:
    """A dictionary of that size, fairseq's own symbols included."""
    dictionary = Dictionary()
    while len(dictionary) < types:
        dictionary.add_symbol(str(len(dictionary)))
    return dictionary


def build(args: Namespace, task: Any) -> Any:
    """A model of a `task`; the parameters of a translation model take no memory."""
    if not anatomy.is_masked_lm(ARCH_MODEL_REGISTRY[args.arch]):
        with torch.device("meta"):
            return build_model(args, task)
    if getattr(args, "max_positions", None) is None:
        args.max_positions = getattr(args, "tokens_per_sample", None) or POSITIONS
    return build_model(args, task)  # whose first values must be real


def is_macaron(args: Namespace) -> bool:
    """Whether a model is of this package, not fairseq's own."""
    return ARCH_MODEL_REGISTRY[args.arch] is MacaronTransformerModel


def baseline(args: Namespace) -> Namespace:
    """The arguments of the Transformer as large as a Macaron model: each layer's FFNs are one."""
    args = copy(args)
    upgrade_args(args)
    complete(args)
    for side in (ENCODER, DECODER):
        ffns = splitting.count_ffns(splitting.of_side(args, side))
        width = getattr(args, f"{side}_ffn_embed_dim")
        first = (ffns > 1 and getattr(args, f"{side}_first_ffn_embed_dim", None)) or width
        setattr(args, f"{side}_ffn_embed_dim", first + (ffns - 1) * width)
        setattr(args, f"{side}_first_ffn_embed_dim", None)
        setattr(args, f"macaron_{side}_scheme", None)
    args.macaron_scheme, args.macaron_substep = "lie-trotter", "euler"
    return args


def counterpart(args: Namespace) -> Namespace | None:
    """The arguments of the architecture that Macaron's is to be as large as; None without one.

    Its FFNs are as wide as its name says, whatever this model's are; all else is this model's.
    """
    name = f"{args.arch.removeprefix('macaron_')}_pre_norm"
    if not args.arch.startswith("macaron_") or name not in ARCH_MODEL_REGISTRY:
        return None
    args = Namespace(**vars(args))
    for other in ("_name", *(f"{side}_ffn_embed_dim" for side in (ENCODER, DECODER))):
        vars(args).pop(other, None)
    args.arch = name
    ARCH_CONFIG_REGISTRY[name](args)
    return args
