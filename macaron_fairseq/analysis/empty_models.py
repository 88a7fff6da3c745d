"""Models without data or weights: from an architecture's name, or from a checkpoint's arguments.

Architectures must be registered: import `macaron_fairseq.plugin`.
"""

from argparse import SUPPRESS, ArgumentError, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
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
from fairseq.models.transformer_lm import TransformerLanguageModel

from macaron_fairseq.analysis import anatomy
from macaron_fairseq.analysis.anatomy import DECODER, ENCODER
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import flag, look_up, question
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import arguments
from macaron_fairseq.model.architectures import set_macaron_defaults
from macaron_fairseq.model.base import MacaronModel
from macaron_fairseq.model.language_model import BaselineLanguageModel
from macaron_fairseq.model.masked_language_model import BaselineRobertaModel
from macaron_fairseq.model.released_bert import CLS, MASK
from macaron_fairseq.model.transformer import BaselineTransformerModel
from macaron_fairseq.schemes import splitting

TYPES = 10_000  # of each dictionary, where nobody says it
POSITIONS = 512  # of a masked language model that does not say it


def of_architecture(arch: str, flags: Namespace, types: int) -> tuple[Namespace, Any]:
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
    refuse_unknown(arch, known[arch], flags)
    args = copy(flags)
    args.arch = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    return args, task(types, types)


def refuse_unknown(arch: str, model: Any, flags: Namespace) -> None:
    """Raise a `UserError` for an argument that a model does not have."""
    parser = ArgumentParser()
    of_fairseq = "" if issubclass(model, MacaronModel) else ", which is fairseq's own,"
    model.add_args(parser)
    known = {action.dest for action in parser._actions}
    for name in vars(flags):
        if name not in known:
            raise UserError(
                f"{arch}{of_fairseq} has no {flag(name)}: drop it, or choose another --arch"
            )


def flags_of(arch: str, given: Mapping[str, Any]) -> Namespace:
    """Arguments of a call as the architecture's own parser reads them.

    Args:
        arch: its name; one that is not known has none, and `of_architecture` refuses it.
        given: values by the flags' names, with "_" for "-"; True for a switch.

    Raises:
        UserError: if the model has no such flag, or the value is of another type.
    """
    if arch not in ARCH_MODEL_REGISTRY:
        return Namespace()
    parser = ArgumentParser(
        argument_default=SUPPRESS,
        conflict_handler="resolve",
        allow_abbrev=False,
        add_help=False,
        exit_on_error=False,
    )
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    arguments.add(parser)  # of a baseline, too, which then says that it has none
    words = [
        flag(name) + ("" if value is True else f"={value}")
        for name, value in given.items()
        if value is not False
    ]
    try:
        flags, unknown = parser.parse_known_args(words)
    except ArgumentError as error:
        raise UserError(str(error)) from error
    if unknown:
        name = unknown[0].removeprefix("--").partition("=")[0].replace("-", "_")
        known = ["scheme", "substep", "types", "tokens", *(x.dest for x in parser._actions)]
        asked = question(name, known)
        raise UserError(f"there is no flag {name} of {arch}{asked or ': see fairseq-train --help'}")
    return flags


def of_checkpoint(path: Path) -> tuple[Namespace, Any]:
    """The arguments and the sizes of the dictionaries of a checkpoint.

    Raises:
        UserError: if the file is bad or its model is not supported.
    """
    state = checkpoints.load(path)
    args = Namespace(**checkpoints.model_arguments(state))
    args.encoder_embed_path = args.decoder_embed_path = None  # its embeddings are in the file
    model = ARCH_MODEL_REGISTRY.get(args.arch)
    # Of fairseq's language model the arguments are known, but not its flags.
    if not (is_known(model) or model is TransformerLanguageModel):
        raise UserError(anatomy.not_supported(path, args.arch))
    names = [f"{side}.embed_tokens.weight" for side in (ENCODER, DECODER)]
    if anatomy.is_causal_lm(ARCH_MODEL_REGISTRY[args.arch]):
        names = [f"{DECODER}.embed_tokens.weight"]
    if anatomy.is_masked_lm(ARCH_MODEL_REGISTRY[args.arch]):
        names = ["encoder.embed_tokens.weight"]
        positions = rows(state["model"], "encoder.embed_positions.weight")
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
    """Whether a model class can be described; a subclass of fairseq's may have other layers."""
    baselines = BaselineTransformerModel, BaselineLanguageModel, BaselineRobertaModel
    is_ours = isinstance(model, type) and issubclass(model, (MacaronModel, *baselines))
    return is_ours or model in (TransformerModel, RobertaModel, MaskedLMModel)


def task(source_types: int, target_types: int) -> Any:
    """What building a model needs of a task: dictionaries of these sizes."""
    source = dictionary_of(source_types)
    target = source if source_types == target_types else dictionary_of(target_types)
    return SimpleNamespace(
        source_dictionary=source,
        target_dictionary=target,
        dictionary=source,
        max_positions=lambda: None,  # not known without data
    )


def dictionary_of(types: int) -> Dictionary:
    """A dictionary of that size, fairseq's own symbols included.

    Raises:
        UserError: if there are more of these.
    """
    dictionary = Dictionary()
    if types < len(dictionary):
        raise UserError(f"fairseq's own symbols are {len(dictionary)} types: give as many or more")
    for symbol in (MASK, CLS):  # without which masked language models are not built
        if len(dictionary) < types:
            dictionary.add_symbol(symbol)
    while len(dictionary) < types:
        dictionary.add_symbol(str(len(dictionary)))
    return dictionary


def build(args: Namespace, task: Any) -> Any:
    """A model of a `task`; but for masked language models, its parameters take no memory.

    Raises:
        UserError: if its arguments do not go together.
    """
    is_masked = anatomy.is_masked_lm(ARCH_MODEL_REGISTRY[args.arch])  # whose values must be real
    if is_masked and getattr(args, "max_positions", None) is None:
        args.max_positions = getattr(args, "tokens_per_sample", None) or POSITIONS
    try:
        with torch.device("cpu" if is_masked else "meta"):
            return build_model(args, task)
    except UserError:
        raise
    except (AssertionError, ArithmeticError, ValueError, RuntimeError, OSError) as error:
        raise UserError(f"fairseq cannot build {args.arch}: {error}") from error


def is_macaron(args: Namespace) -> bool:
    """Whether a model is of this package, not fairseq's own."""
    return issubclass(ARCH_MODEL_REGISTRY[args.arch], MacaronModel)


def sides_of(args: Namespace) -> Sequence[str]:
    """The sides of a model of this package."""
    return ARCH_MODEL_REGISTRY[args.arch].sides


def baseline(args: Namespace) -> Namespace:
    """The arguments of the Transformer as large as a Macaron model: each layer's FFNs are one."""
    args = copy(args)
    ARCH_CONFIG_REGISTRY[args.arch](args)  # the authors' checkpoints say less
    set_macaron_defaults(args)
    for side in sides_of(args):
        ffns = splitting.count_ffns(arguments.steps_of(args, side))
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
    for other in ("_name", *(f"{side}_ffn_embed_dim" for side in sides_of(args))):
        vars(args).pop(other, None)
    args.arch = name
    ARCH_CONFIG_REGISTRY[name](args)
    return args
