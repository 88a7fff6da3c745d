"""A model's layers as formulas, with parameters and operations (`macaron-fairseq describe`).

`empty_models` finds the model.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from macaron_fairseq.analysis import anatomy, empty_models, flops
from macaron_fairseq.analysis.anatomy import DECODER
from macaron_fairseq.common.wording import counted
from macaron_fairseq.model import arguments
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.formulas import formulas, title
from macaron_fairseq.schemes.splitting import FFN, Steps


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


def describe(args: Namespace, task: Any, tokens: int) -> Description:
    """Describe a model; `str` of what it returns is the text.

    Args:
        args: the model's arguments, filled in.
        task: its dictionaries, see `empty_models.task`.
        tokens: the length of source and target at which operations are counted.
    """
    # Building fills the arguments in, which the baseline is not to see.
    stock = None
    if empty_models.is_macaron(args):
        stock = empty_models.build(empty_models.baseline(args), task)
    model = empty_models.build(args, task)
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


def integration(args: Namespace) -> str:
    """How a model's layers are integrated."""
    if not empty_models.is_macaron(args):
        return "fairseq's own layers"
    sides = empty_models.sides_of(args)
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
    named = empty_models.counterpart(args)
    if named is None:
        return None
    parameters = sum(p.numel() for p in empty_models.build(named, task).parameters())
    width = getattr(named, f"{empty_models.sides_of(args)[0]}_ffn_embed_dim")
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
