"""A model's layers as formulas, with parameters and operations (`macaron-fairseq describe`).

A model comes from its name, or from a checkpoint's arguments; no data is needed. Architectures must
be registered: import `macaron_fairseq.plugin`.
"""

from argparse import SUPPRESS, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
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
from torch import nn

from macaron_fairseq.analysis import anatomy, flops
from macaron_fairseq.analysis.anatomy import DECODER, ENCODER
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import look_up, question
from macaron_fairseq.common.wording import counted
from macaron_fairseq.compat import checkpoints
from macaron_fairseq.model import arguments
from macaron_fairseq.model.architectures import set_macaron_defaults
from macaron_fairseq.model.base import MacaronModel
from macaron_fairseq.model.language_model import BaselineLanguageModel
from macaron_fairseq.model.masked_language_model import BaselineRobertaModel
from macaron_fairseq.model.released import upgrade_args
from macaron_fairseq.model.released_bert import CLS, MASK
from macaron_fairseq.model.transformer import BaselineTransformerModel
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.formulas import formulas, title
from macaron_fairseq.schemes.splitting import FFN, Steps

TYPES = 10_000  # of each dictionary, where nobody says it
POSITIONS = 512  # of a masked language model that does not say it

# --- models without data -------------------------------------------------------------------------


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
                f"{arch}{of_fairseq} has no --{name.replace('_', '-')}: drop it, or "
                "choose another --arch"
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
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
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
    is_ours = isinstance(model, type) and issubclass(model, MacaronModel)
    fairseqs = TransformerModel, RobertaModel, MaskedLMModel
    baselines = BaselineTransformerModel, BaselineLanguageModel, BaselineRobertaModel
    return is_ours or model in fairseqs + baselines


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
    except (AssertionError, ArithmeticError, ValueError, OSError) as error:
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
    upgrade_args(args)
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


# --- the description -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """Parameters, and operations for a token of the source and one of the target."""

    parameters: int
    operations: float


@dataclass(frozen=True)
class Layers:
    """The layers of an encoder or a decoder, which are all the same."""

    side: str
    count: int
    width: int
    norm: str  # pre-norm or post-norm
    formulas: tuple[str, ...]  # one for each step
    networks: tuple[str, ...]  # such as "FFN1 512 -> 1024 -> 512"
    size: Size  # of one layer
    baseline: Size


@dataclass(frozen=True)
class Counterpart:
    """The architecture that a Macaron one is to be as large as."""

    architecture: str
    ffn_width: int
    parameters: int


@dataclass(frozen=True)
class Description:
    """What the layers of a model compute, and how large they are.

    `print` shows it as `macaron-fairseq describe` does.
    """

    architecture: str
    integration: str  # schemes and sub-step, such as "strang-marchuk; sub-step euler"
    layers: tuple[Layers, ...]  # the encoder's, then the decoder's if there is one
    types: tuple[int, ...]  # of the dictionaries: one size, or two that differ
    parameters: int  # of the whole model
    whole: Size | None  # of the same; None for masked language models
    baseline: Size | None
    counterpart: Counterpart | None
    tokens: int  # the length of sentences at which operations are counted
    has_baseline: bool  # other than the model itself

    def rows(self) -> list[dict[str, Any]]:
        """A row for the layers of each side, as `pandas.DataFrame` takes them."""
        return [
            {
                "architecture": self.architecture,
                "side": x.side,
                "layers": x.count,
                "width": x.width,
                "norm": x.norm,
                "formulas": "; ".join(x.formulas),
                "parameters": x.size.parameters,
                "baseline parameters": x.baseline.parameters,
                "operations": x.size.operations,
                "baseline operations": x.baseline.operations,
            }
            for x in self.layers
        ]

    def __str__(self) -> str:
        return "\n".join(lines(self)) + "\n"

    def _repr_markdown_(self) -> str:
        return f"```text\n{self}```"


def examine(args: Namespace, task: Any, tokens: int) -> Description:
    """Describe a model.

    Args:
        args: the model's arguments, filled in.
        task: its dictionaries, see `task`.
        tokens: the length of source and target at which operations are counted.
    """
    # Building fills the arguments in, which the baseline is not to see.
    stock = build(baseline(args), task) if is_macaron(args) else None
    model = build(args, task)
    has_baseline, stock = stock is not None, stock or model
    types = [len(x) for x in (task.source_dictionary, task.target_dictionary)]
    # The output of an encoder alone has operations for masked tokens only, nobody knows how many.
    is_whole = DECODER in anatomy.stacks(model)
    return Description(
        architecture=args.arch,
        integration=integration(args),
        layers=tuple(layers_of(model, stock, side, tokens) for side in anatomy.stacks(model)),
        types=tuple(dict.fromkeys(types)),
        parameters=sum(p.numel() for p in model.parameters()),
        whole=size(model, "", tokens) if is_whole else None,
        baseline=size(stock, "", tokens) if is_whole else None,
        counterpart=counterpart_of(args, task) if has_baseline else None,
        tokens=tokens,
        has_baseline=has_baseline,
    )


def describe(args: Namespace, task: Any, tokens: int) -> str:
    """The text for a model; see `examine`."""
    return str(examine(args, task, tokens))


def integration(args: Namespace) -> str:
    """How a model's layers are integrated."""
    if not is_macaron(args):
        return "fairseq's own layers"
    sides = sides_of(args)
    names = [arguments.scheme_of(args, side) for side in sides]
    if len(set(names)) > 1:
        names = [f"{side} {name}" for side, name in zip(sides, names, strict=True)]
    return f"{', '.join(dict.fromkeys(names))}; sub-step {args.macaron_substep}"


def layers_of(model: Any, stock: Any, side: str, tokens: int) -> Layers:
    """The layers of a side."""
    stack = anatomy.stacks(model)[side]
    found: Any = model.get_submodule(stack)
    if not len(found):
        return Layers(side, 0, 0, "", (), (), Size(0, 0), Size(0, 0))
    layer = found[0]
    pre_norm = anatomy.is_pre_norm(layer)
    steps, substep = anatomy.steps_of(layer)
    prefix = f"{stack}.0."
    return Layers(
        side,
        len(found),
        layer.final_layer_norm.normalized_shape[0],
        "pre-norm" if pre_norm else "post-norm",
        tuple(formulas(steps, substep, pre_norm)),
        tuple(networks(layer, steps)),
        size(model, prefix, tokens),
        size(stock, prefix, tokens),
    )


def networks(layer: Any, steps: Steps) -> Iterator[str]:
    """What each network of a layer is, in the order of their first application."""
    for operator in dict.fromkeys(splitting.operators(steps)):
        network, _ = anatomy.weights_of(layer, operator)
        if operator.kind == FFN:
            inner, width = network.fc1.weight.shape
            yield f"{title(operator, steps)} {width} -> {inner} -> {width}"
        else:
            yield f"{title(operator, steps)} of {network.num_heads} heads"


def size(model: nn.Module, within: str, tokens: int) -> Size:
    """The size of what has names that begin so."""
    parameters = sum(p.numel() for name, p in model.named_parameters() if name.startswith(within))
    return Size(parameters, flops.of_model(model, within).forward([(tokens, tokens)]) / tokens)


def counterpart_of(args: Namespace, task: Any) -> Counterpart | None:
    """The named baseline, whose width shows whether this model's was chosen well."""
    named = counterpart(args)
    if named is None:
        return None
    parameters = sum(p.numel() for p in build(named, task).parameters())
    width = getattr(named, f"{sides_of(args)[0]}_ffn_embed_dim")
    return Counterpart(named.arch, width, parameters)


# --- the text ------------------------------------------------------------------------------------


def lines(found: Description) -> Iterator[str]:
    """The text of a description, line by line."""
    yield f"{found.architecture}: {found.integration}"
    yield ""
    for layers in found.layers:
        yield from layers_lines(layers)
        yield ""
    types = " and ".join(f"{x:,}" for x in found.types)
    yield f"whole model, with embeddings of {types} types"
    if found.whole and found.baseline:
        yield from size_lines(found.whole, found.baseline)
        is_pair = len(found.layers) > 1
        counted = "pair of a source and a target token" if is_pair else "token"
    else:
        yield f"  {found.parameters:,} parameters"
        counted = "token"
    if named := found.counterpart:
        yield (
            f"  {named.architecture}, whose FFNs are {named.ffn_width} wide, has "
            f"{named.parameters:,} ({difference(found.parameters, named.parameters)})"
        )
    yield ""
    yield (
        f"Operations of matrix products forward, for each {counted} in sentences of {found.tokens}."
    )
    if found.has_baseline:
        yield (
            "The baseline is fairseq's transformer of the same width; its one FFN in a layer is as "
            "wide as all of a layer here."
        )


def layers_lines(layers: Layers) -> Iterator[str]:
    """The lines on the layers of a side."""
    if not layers.count:
        yield f"{layers.side}: no layers"
        return
    yield f"{layers.side}, {counted(layers.count, 'layer')} of width {layers.width}, {layers.norm}"
    yield from ("  " + line for line in layers.formulas)
    yield "  " + "; ".join(layers.networks)
    yield from size_lines(layers.size, layers.baseline)


def size_lines(found: Size, stock: Size) -> list[str]:
    """Parameters and operations, next to those of the baseline."""
    ratio = found.operations / stock.operations
    return [
        f"  {found.parameters:,} parameters; baseline {stock.parameters:,} "
        f"({difference(found.parameters, stock.parameters)})",
        f"  {found.operations / 1e6:.3f} million operations; baseline "
        f"{stock.operations / 1e6:.3f} ({ratio:.2f} times as many)",
    ]


def difference(parameters: int, of_baseline: int) -> str:
    """By how much there are more."""
    more = parameters - of_baseline
    return f"{more:+,}, {more / of_baseline:+.2%}" if more else "the same"
