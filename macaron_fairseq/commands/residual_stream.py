"""What `dynamics --jacobian` measures: the residual stream of trained models."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from macaron_fairseq.commands.arguments import number, positive, seed, whole

if TYPE_CHECKING:
    from macaron_fairseq.analysis.models import TrainedModel
    from macaron_fairseq.analysis.residual.coupling import Choices
    from macaron_fairseq.analysis.sentences import Sample

BELOW_ONE = math.nextafter(1, 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the residual stream, and of its graph of coordinates."""
    add = parser.add_argument
    add(
        "--jacobian",
        action="store_true",
        help="measure, instead of all else, the Jacobians of layers and sub-layers, the identity "
        "included, and their products from the first layer to each: spectra, departure from "
        "normality, rank, Lyapunov exponents, growth",
    )
    add(
        "--initial",
        nargs="+",
        action="extend",
        type=seed,
        default=[],
        metavar="SEED",
        help="with --jacobian: measure each model untrained, too, with the weights that "
        "fairseq-train --seed SEED starts from",
    )
    add(
        "--remove",
        nargs="+",
        action="extend",
        choices=("non-normal", "antisymmetric"),
        default=[],
        help="with --jacobian: subtract this part of a layer's mean Jacobian, and measure loss and "
        "spectra. Two controls have the loss alone: a random map, and the rest of the mean one",
    )
    add(
        "--layers",
        nargs="+",
        action="extend",
        default=[],
        metavar="LAYERS",
        help="with --remove: where to do so, as in encoder, decoder:2 or encoder:1,encoder:2, each "
        "by itself (default: each layer, then all of each side)",
    )
    add_graph_arguments(parser)


def add_graph_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the choices of the graph of coordinates, whose defaults are the dataclasses'."""
    add = parser.add_argument_group(
        "communities of coordinates, with --jacobian",
        "The coordinates of the state before a layer are nodes, their correlations over all "
        "tokens are edges. Communities, how central each is and how much the layer amplifies "
        "it follow.",
    ).add_argument
    add(
        "--graph-correlation",
        choices=("pearson", "spearman"),
        help="how to correlate two coordinates (default: pearson)",
    )
    add(
        "--graph-edges",
        type=positive,
        metavar="K",
        help="a node keeps its K strongest edges (default: 8)",
    )
    add(
        "--graph-threshold",
        type=number(0, BELOW_ONE, "a number from 0 to below 1"),
        metavar="R",
        help="leave out edges that are weaker (default: 0)",
    )
    add(
        "--graph-signs",
        choices=("signed", "absolute", "positive"),
        help="negative edges part communities, count as positive ones, or are left out (default: "
        "signed)",
    )
    add(
        "--graph-resolution",
        type=number(1e-6, 1e6, "a number from 1e-6 to 1e6"),
        metavar="G",
        help="the larger, the smaller are communities; modularity as it is defined has 1 (default: "
        "3)",
    )
    add(
        "--graph-method",
        choices=("louvain", "leiden"),
        help="how to find communities; leiden needs the extra [leiden] (default: louvain)",
    )
    add(
        "--graph-centrality",
        choices=("between", "strength", "eigenvector", "betweenness"),
        help="of a coordinate: its edges to other communities, all its edges, its entry in the "
        "first eigenvector, or the share of shortest paths through it (default: between)",
    )
    add(
        "--graph-gain",
        choices=("column", "row", "diagonal"),
        help="of a coordinate in the Jacobian: how much of it the layer spreads, how much arrives "
        "at it, or how much stays (default: column)",
    )
    add(
        "--graph-statistic",
        choices=("spearman", "pearson"),
        help="the coefficient of the coupling (default: spearman)",
    )
    add(
        "--graph-permutations",
        type=whole(1, 10**6, "from 1 to a million"),
        metavar="N",
        help="permutations for the coupling's p-value (default: 9999)",
    )
    add(
        "--graph-sensitivity",
        action="store_true",
        help="also measure what each of these choices changes in trained models, one at a time: "
        "minutes for a model",
    )


def graph_choices(args: argparse.Namespace) -> "Choices":
    """What the options of `add_graph_arguments` choose; the rest is the dataclasses' default."""
    from macaron_fairseq.analysis.residual.communities import GraphChoices
    from macaron_fairseq.analysis.residual.coupling import Choices

    def given(choices: Any) -> dict[str, Any]:
        options = {field.name: f"graph_{field.name}" for field in fields(choices)}
        values = {name: getattr(args, option, None) for name, option in options.items()}
        return {name: value for name, value in values.items() if value is not None}

    graph = GraphChoices(**given(GraphChoices), seed=args.seed)
    return Choices(graph, **given(Choices), seed=args.seed)


def measure(args: argparse.Namespace, models: "Sequence[TrainedModel]", sample: "Sample") -> None:
    """Write what --jacobian asks for."""
    from macaron_fairseq.analysis import output
    from macaron_fairseq.analysis.residual import measurement, report, tables

    wanted = measurement.Settings(
        tokens=args.jacobian_sentences,
        seed=args.seed,
        remove=tuple(args.remove),
        layers=tuple(args.layers),
        graph=graph_choices(args),
        has_sensitivity=args.graph_sensitivity,
    )
    found = measurement.compare(
        models, sample, wanted, args.initial, args.title or measurement.TITLE
    )
    written = output.write(args.output, report.contents(found))
    output.report(tables.as_text(found), written)
