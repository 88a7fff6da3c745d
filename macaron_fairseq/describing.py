"""A model's layers as formulas, with parameters and operations (`macaron-fairseq describe`)."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.models.transformer import TransformerModel
from torch import nn

from macaron_fairseq import averaging, checkpoints, flops, schemes, substeps
from macaron_fairseq.architectures import complete
from macaron_fairseq.errors import UserError
from macaron_fairseq.model import MacaronTransformerModel
from macaron_fairseq.names import look_up
from macaron_fairseq.released import upgrade_args
from macaron_fairseq.schemes import CROSS_ATTENTION, FFN, SELF_ATTENTION, Operator, Steps
from macaron_fairseq.substeps import SubStep

SIDES = ("encoder", "decoder")
NAMES = {FFN: "FFN", SELF_ATTENTION: "Self", CROSS_ATTENTION: "Cross"}


# --- models without data or memory ---------------------------------------------------------------


def named(arch: str, flags: Namespace, types: int) -> tuple[Namespace, Any]:
    """The arguments and the dictionaries of an architecture.

    Args:
        arch: its name.
        flags: arguments that the user set.
        types: how many each dictionary has.

    Raises:
        UserError: if there is none of that name, it is no Transformer for translation, or it has
            not these arguments.
    """
    known = {name: model for name, model in ARCH_MODEL_REGISTRY.items() if is_known(model)}
    look_up(known, arch, "architecture", "--arch")
    if known[arch] is TransformerModel:
        refuse_macaron(arch, flags)
    args = copy(flags)
    args.arch = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    dictionary = numbered(types)
    return args, SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def refuse_macaron(arch: str, flags: Namespace) -> None:
    """Raise a `UserError` for an argument that fairseq's own transformer has not."""
    parser = ArgumentParser()
    TransformerModel.add_args(parser)
    known = vars(parser.parse_args([]))
    for name in vars(flags):
        if name not in known:
            raise UserError(
                f"--{name.replace('_', '-')} is of Macaron models, and {arch} is fairseq's own "
                "transformer: drop it, or choose another --arch"
            )


def saved(path: Path) -> tuple[Namespace, Any]:
    """The arguments and the sizes of the dictionaries of a checkpoint.

    Raises:
        UserError: if the file is bad or holds no Transformer for translation.
    """
    state = checkpoints.load(path)
    args = Namespace(**averaging.model_arguments(state))
    if not is_known(ARCH_MODEL_REGISTRY.get(args.arch)):
        raise UserError(
            f"{path} holds a model of the architecture {args.arch}, which is not supported: "
            "supported are macaron_transformer and fairseq's transformer"
        )
    names = [f"{side}.embed_tokens.weight" for side in SIDES]
    for name in names:
        if name not in state["model"]:
            raise UserError(f"{path} has no '{name}': use a checkpoint of fairseq-train")
    sizes = [len(state["model"][name]) for name in names]
    source = numbered(sizes[0])
    target = source if sizes[0] == sizes[1] else numbered(sizes[1])
    return args, SimpleNamespace(source_dictionary=source, target_dictionary=target)


def is_known(model: Any) -> bool:
    """Whether a model class of fairseq is one that can be described."""
    return model is TransformerModel or model is MacaronTransformerModel


def numbered(types: int) -> Dictionary:
    """A dictionary of that size, fairseq's own symbols included."""
    dictionary = Dictionary()
    while len(dictionary) < types:
        dictionary.add_symbol(str(len(dictionary)))
    return dictionary


def build(args: Namespace, task: Any) -> Any:
    """A model whose parameters take no memory."""
    with torch.device("meta"):
        return build_model(args, task)


def baseline(args: Namespace) -> Namespace:
    """The arguments of the Transformer of equal size: each layer's FFNs are one."""
    args = copy(args)
    if ARCH_MODEL_REGISTRY[args.arch] is TransformerModel:
        return args
    upgrade_args(args)
    complete(args)
    for side in SIDES:
        ffns = schemes.count_ffns(schemes.of_side(args, side))
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
    for other in ("_name", *(f"{side}_ffn_embed_dim" for side in SIDES)):
        vars(args).pop(other, None)
    args.arch = name
    ARCH_CONFIG_REGISTRY[name](args)
    return args


# --- in words and formulas -----------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """Parameters, and operations for a token of the source and one of the target."""

    parameters: int
    operations: float


def describe(args: Namespace, task: Any, tokens: int) -> str:
    """The text for a model.

    Args:
        args: the model's arguments, filled in.
        task: its dictionaries.
        tokens: the length of source and target at which operations are counted.
    """
    stock = build(baseline(args), task)
    model = build(args, task)
    lines = [heading(args), ""]
    for side in SIDES:
        lines += [*side_lines(model, stock, side, tokens), ""]
    types = " and ".join(
        dict.fromkeys(f"{len(x):,}" for x in (task.source_dictionary, task.target_dictionary))
    )
    lines += [
        f"whole model, with embeddings of {types} types",
        *size_lines(size(model, "", tokens), size(stock, "", tokens)),
        *counterpart_lines(args, task, size(model, "", tokens).parameters),
        "",
        f"Operations of matrix products forward, for each pair of a source and a target token in "
        f"sentences of {tokens}.",
        "The baseline is fairseq's transformer of the same width; its one FFN in a layer is as "
        "wide as all of a layer here.",
    ]
    return "\n".join(lines) + "\n"


def heading(args: Namespace) -> str:
    """The architecture, and how its layers are integrated."""
    if ARCH_MODEL_REGISTRY[args.arch] is TransformerModel:
        return f"{args.arch}: fairseq's own layers"
    names = [schemes.name_of_side(args, side) for side in SIDES]
    if names[0] != names[1]:
        names = [f"{side} {name}" for side, name in zip(SIDES, names, strict=True)]
    return f"{args.arch}: {', '.join(dict.fromkeys(names))}; sub-step {args.macaron_substep}"


def side_lines(model: Any, stock: Any, side: str, tokens: int) -> Iterator[str]:
    """The lines on the layers of a side, which are all alike."""
    layers = getattr(model, side).layers
    if not len(layers):
        yield f"{side}: no layers"
        return
    layer = layers[0]
    pre_norm = layer.normalize_before
    steps, substep = steps_of(layer)
    norm = "pre-norm" if pre_norm else "post-norm"
    yield f"{side}, {len(layers)} layers of width {layer.embed_dim}, {norm}"
    yield from ("  " + line for line in formulas(steps, substep, pre_norm))
    yield "  " + "; ".join(networks(layer, steps))
    prefix = f"{side}.layers.0."
    yield from size_lines(size(model, prefix, tokens), size(stock, prefix, tokens))


def steps_of(layer: Any) -> tuple[Steps, SubStep]:
    """The steps of a layer, fairseq's own or this package's, and how they are taken."""
    if hasattr(layer, "steps"):
        return layer.steps, layer.substep
    lie_trotter = schemes.SCHEMES["lie-trotter"]
    has_cross = getattr(layer, "encoder_attn", None) is not None
    return lie_trotter.decoder if has_cross else lie_trotter.encoder, substeps.get("euler")


def formulas(steps: Steps, substep: SubStep, pre_norm: bool) -> list[str]:
    """A line for each step; `LN` is each operator's own LayerNorm."""
    lines = []
    several = substep.evaluations > 1
    for step in steps:
        terms = [f"{title(x, steps)}({'LN x' if pre_norm else 'x'})" for x in step.operators]
        field = " + ".join(terms)
        factor = fraction(abs(step.size))
        change = "k" if several else f"({field})" if len(terms) > 1 and factor else field
        sign = "-" if step.size < 0 else "+"
        after = " ".join(x for x in ("x", sign, factor, change) if x)
        line = f"x <- {after}" if pre_norm else f"x <- LN({after})"
        lines.append(f"{line},  f(x) = {field}" if several else line)
    if several:
        lines.append(f"k = {substep.formula}, h the number before k")
    return lines


def fraction(size: float) -> str:
    """A step's size: 1/2, 1.35121, nothing for 1."""
    if size == 1:
        return ""
    exact = Fraction(size).limit_denominator(8)
    return str(exact) if exact == size else f"{size:.6g}"


def title(operator: Operator, steps: Steps) -> str:
    """The name of an operator, with a number where there are several of its kind."""
    of_kind = {x.number for x in schemes.operators(steps) if x.kind == operator.kind}
    number = str(operator.number) if len(of_kind) > 1 else ""
    return f"{NAMES[operator.kind]}{number}"


def networks(layer: Any, steps: Steps) -> Iterator[str]:
    """What each network of a layer is, in the order of their first application."""
    for operator in dict.fromkeys(schemes.operators(steps)):
        network, _ = weights_of(layer, operator)
        if operator.kind == FFN:
            inner, width = network.fc1.weight.shape
            yield f"{title(operator, steps)} {width} -> {inner} -> {width}"
        else:
            yield f"{title(operator, steps)} of {network.num_heads} heads"


def weights_of(layer: Any, operator: Operator) -> tuple[Any, Any]:
    """The network and the LayerNorm of an operator, in fairseq's layer or this package's."""
    if hasattr(layer, "steps"):
        return layer.weights(operator)
    held = {SELF_ATTENTION: "self_attn", CROSS_ATTENTION: "encoder_attn"}
    if operator.kind in held:
        name = held[operator.kind]
        return getattr(layer, name), getattr(layer, f"{name}_layer_norm")
    return layer, layer.final_layer_norm


def size(model: nn.Module, within: str, tokens: int) -> Size:
    """The size of what has names that begin so."""
    parameters = sum(p.numel() for name, p in model.named_parameters() if name.startswith(within))
    return Size(parameters, flops.of_model(model, within).forward([(tokens, tokens)]) / tokens)


def size_lines(found: Size, stock: Size) -> list[str]:
    """Parameters and operations, beside those of the baseline."""
    ratio = found.operations / stock.operations
    return [
        f"  {found.parameters:,} parameters; baseline {stock.parameters:,} "
        f"({difference(found.parameters, stock.parameters)})",
        f"  {found.operations / 1e6:.3f} million operations; baseline "
        f"{stock.operations / 1e6:.3f} ({ratio:.2f} times as many)",
    ]


def counterpart_lines(args: Namespace, task: Any, parameters: int) -> Iterator[str]:
    """A line on the named baseline, whose width shows whether this model's was chosen well."""
    named = counterpart(args)
    if named:
        stock = sum(p.numel() for p in build(named, task).parameters())
        yield (
            f"  {named.arch}, whose FFNs are {named.encoder_ffn_embed_dim} wide, has {stock:,} "
            f"({difference(parameters, stock)})"
        )


def difference(parameters: int, of_baseline: int) -> str:
    """By how much there are more."""
    more = parameters - of_baseline
    return f"{more:+,}, {more / of_baseline:+.2%}" if more else "the same"
