"""The text of a description."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torch import nn

from macaron_fairseq.analysis import anatomy, flops
from macaron_fairseq.analysis.anatomy import DECODER, ENCODER
from macaron_fairseq.analysis.describing.models import baseline, build, counterpart, is_macaron
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.splitting import CROSS_ATTENTION, FFN, SELF_ATTENTION, Operator, Steps
from macaron_fairseq.schemes.substeps import SubStep

NAMES = {FFN: "FFN", SELF_ATTENTION: "Self", CROSS_ATTENTION: "Cross"}


@dataclass(frozen=True)
class Size:
    """Parameters, and operations for a token of the source and one of the target."""

    parameters: int
    operations: float


def describe(args: Namespace, task: Any, tokens: int) -> str:
    """The text for a model.

    Args:
        args: the model's arguments, filled in.
        task: its dictionaries, see `models.task`.
        tokens: the length of source and target at which operations are counted.
    """
    # Building fills the arguments in, which the baseline is not to see.
    stock = build(baseline(args), task) if is_macaron(args) else None
    model = build(args, task)
    stock = stock or model
    lines = [heading(args), ""]
    for side in anatomy.stacks(model):
        lines += [*side_lines(model, stock, side, tokens), ""]
    types = " and ".join(
        dict.fromkeys(f"{len(x):,}" for x in (task.source_dictionary, task.target_dictionary))
    )
    lines.append(f"whole model, with embeddings of {types} types")
    if DECODER in anatomy.stacks(model):
        whole = size(model, "", tokens)
        lines += size_lines(whole, size(stock, "", tokens))
        lines += counterpart_lines(args, task, whole.parameters)
        counted = "pair of a source and a target token"
    else:  # its output has operations for masked tokens only, of which nobody knows how many
        lines.append(f"  {sum(p.numel() for p in model.parameters()):,} parameters")
        counted = "token"
    lines += [
        "",
        f"Operations of matrix products forward, for each {counted} in sentences of {tokens}.",
    ]
    if stock is not model:
        lines.append(
            "The baseline is fairseq's transformer of the same width; its one FFN in a layer is as "
            "wide as all of a layer here."
        )
    return "\n".join(lines) + "\n"


def heading(args: Namespace) -> str:
    """The architecture, and how its layers are integrated."""
    if not is_macaron(args):
        return f"{args.arch}: fairseq's own layers"
    sides = ENCODER, DECODER
    names = [splitting.name_of_side(args, side) for side in sides]
    if names[0] != names[1]:
        names = [f"{side} {name}" for side, name in zip(sides, names, strict=True)]
    return f"{args.arch}: {', '.join(dict.fromkeys(names))}; sub-step {args.macaron_substep}"


def side_lines(model: Any, stock: Any, side: str, tokens: int) -> Iterator[str]:
    """The lines on the layers of a side, which are all alike."""
    stack = anatomy.stacks(model)[side]
    layers: Any = model.get_submodule(stack)
    if not len(layers):
        yield f"{side}: no layers"
        return
    layer = layers[0]
    pre_norm = anatomy.is_pre_norm(layer)
    steps, substep = anatomy.steps_of(layer)
    norm = "pre-norm" if pre_norm else "post-norm"
    width = len(layer.final_layer_norm.weight)
    yield f"{side}, {len(layers)} layers of width {width}, {norm}"
    yield from ("  " + line for line in formulas(steps, substep, pre_norm))
    yield "  " + "; ".join(networks(layer, steps))
    prefix = f"{stack}.0."
    yield from size_lines(size(model, prefix, tokens), size(stock, prefix, tokens))


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
    of_kind = {x.number for x in splitting.operators(steps) if x.kind == operator.kind}
    number = str(operator.number) if len(of_kind) > 1 else ""
    return f"{NAMES[operator.kind]}{number}"


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
