"""Whether a community's place in the graph goes with how much a layer amplifies it.

A community c of residual coordinates is amplified by the layer's Jacobian A by

    |A P_c|_F / sqrt|c|

with P_c the projection to its coordinates: how much longer A makes a random direction of theirs, as
a root mean square. It is 1 where nothing changes, above 1 where the layer amplifies, below 1 where
it suppresses. Over several tokens it is the geometric mean.

The abstract of arXiv 2605.14258 says that such a coupling exists, and not which centrality, which
amplification or which coefficient. These are this project's choices, see `Choices`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata
from sklearn.metrics import adjusted_rand_score

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.analysis.residual import communities
from macaron_fairseq.analysis.residual.communities import (
    Communities,
    GraphChoices,
    known,
)

Centrality = Literal["between", "strength", "eigenvector", "betweenness"]
Gain = Literal["column", "row", "diagonal"]
Statistic = Literal["spearman", "pearson"]

# Two communities are always in perfect order.
FEWEST = 3

# Coefficients closer than this are one but for rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Choices:
    """What the coupling depends on."""

    graph: GraphChoices = field(default_factory=GraphChoices)
    centrality: Centrality = "between"  # see `centralities`
    gain: Gain = "column"  # see `amplifications`
    statistic: Statistic = "spearman"
    permutations: int = 9999
    seed: int = 1  # of the permutations


@dataclass(frozen=True)
class Placed:
    """Communities, how central each is, and how much the layer amplifies it: (communities,)."""

    communities: Communities
    centralities: Floats
    amplifications: Floats


class Coupling(NamedTuple):
    """How centrality and amplification go together, see `couple`."""

    value: float | None  # from -1 to 1; None where no group can say
    p: float | None
    points: int  # communities in all groups that count
    groups: int  # that count


def place(activations: ArrayLike, jacobians: ArrayLike, choices: Choices) -> Placed:
    """The communities of the state that a layer reads, and what the layer does to each.

    Args:
        activations: that state, of all tokens of a corpus, (tokens, d).
        jacobians: of the whole layer, identity included, (d, d) or at several tokens (n, d, d).
        choices: see there.

    Raises:
        ValueError: see `communities.find`, `centralities` and `amplifications`.
        UserError: if Leiden is wanted and not installed.
    """
    return around(communities.find(activations, choices.graph), jacobians, choices)


def around(found: Communities, jacobians: ArrayLike, choices: Choices) -> Placed:
    """The same for communities that are known: what of `place` depends on the layer."""
    return Placed(
        found,
        centralities(found.weights, found.labels, choices.centrality),
        amplifications(jacobians, found.labels, choices.gain),
    )


# --- of communities ------------------------------------------------------------------------------


def means(values: ArrayLike, labels: ArrayLike) -> Floats:
    """The mean of the values of each community's coordinates: (..., communities).

    Args:
        values: of the coordinates, (..., d).
        labels: (d,), see `communities.partition`.
    """
    label = np.asarray(labels)
    member = label == np.arange(label.max(initial=-1) + 1)[:, None]
    return np.asarray(values) @ (member / member.sum(axis=1, keepdims=True)).T


def centralities(weights: ArrayLike, labels: ArrayLike, kind: Centrality) -> Floats:
    """How central each community is, the mean over its coordinates: (communities,).

    All take edges by their size |w|: a community is as central by negative ties as by positive.

    Args:
        weights: of the signed graph, (d, d).
        labels: (d,), see `communities.partition`.
        kind: of a coordinate,
            "between": the sum of its edges to other communities;
            "strength": the sum of all its edges;
            "eigenvector": its entry in the eigenvector of |W| of the largest eigenvalue, whose
                length is 1;
            "betweenness": the share of shortest paths through it, an edge being 1/|w| long.

    Raises:
        ValueError: if there is no such kind.
    """
    known(kind, Centrality, "centrality")
    size, label = np.abs(np.asarray(weights, dtype=np.float64)), np.asarray(labels)
    if kind == "between":
        of_node = (size * (label[:, None] != label)).sum(axis=1)
    elif kind == "strength":
        of_node = size.sum(axis=1)
    elif kind == "eigenvector":
        of_node = np.abs(np.linalg.eigh(size)[1][:, -1])
    else:
        length = np.divide(1, size, out=np.zeros_like(size), where=size > 0)
        graph = nx.from_numpy_array(length)
        found = nx.betweenness_centrality(graph, weight="weight")
        of_node = np.array([found[i] for i in range(len(size))])
    return means(of_node, label)


def amplifications(jacobians: ArrayLike, labels: ArrayLike, kind: Gain) -> Floats:
    """How much a layer amplifies each community: (communities,).

    The root mean square over the community's coordinates, then the geometric mean over tokens.

    Args:
        jacobians: (d, d) or (tokens, d, d).
        labels: (d,), see `communities.partition`.
        kind: of a coordinate i,
            "column": |A e_i|, which gives |A P_c|_F / sqrt|c|;
            "row": |e_i^T A|, how much of all directions arrives at it;
            "diagonal": |A_ii|, how much of it stays.

    Raises:
        ValueError: if there is no such kind, or the sizes do not go together.
    """
    known(kind, Gain, "gain")
    j, label = np.asarray(jacobians, dtype=np.float64), np.asarray(labels)
    if j.ndim not in (2, 3) or j.shape[-2:] != (len(label), len(label)):
        raise ValueError(f"{len(label)} coordinates have no Jacobian of {j.shape}")
    if kind == "diagonal":
        squares = np.diagonal(j, axis1=-2, axis2=-1) ** 2
    else:
        squares = (j**2).sum(axis=-2 if kind == "column" else -1)
    of_token = np.atleast_2d(means(squares, label))
    with np.errstate(divide="ignore"):  # a Jacobian may be zero there
        return np.exp(np.log(of_token).mean(axis=0) / 2)


# --- of both -------------------------------------------------------------------------------------


def couple(groups: Sequence[tuple[ArrayLike, ArrayLike]], choices: Choices) -> Coupling:
    """The correlation of centrality and amplification over communities, with its p-value.

    Groups are communities that are compared with each other only: those of one layer of one model.
    The coefficient is the mean of the groups' own, each weighted by its communities less one. The
    p-value is two-sided: the share of permutations whose coefficient is at least as far from 0,
    where the observed order counts as one of them. They exchange amplifications within groups only.
    Groups must therefore be independent, as the same layer of models trained from several seeds is.
    Layers of one model are not: they share its coordinates.

    Args:
        groups: for each, centralities and amplifications, (communities,) both. A group of fewer
            than three, or in which either is the same for all, cannot say anything and is left out.
        choices: its statistic, permutations and seed count.

    Raises:
        ValueError: if a number is not finite, or the sizes of a group differ.
    """
    known(choices.statistic, Statistic, "statistic")
    random = np.random.default_rng(choices.seed)
    values, drawn, weights = [], [], []
    for x, y in groups:
        a, b = standardised(x, choices.statistic), standardised(y, choices.statistic)
        if a.shape != b.shape:
            raise ValueError(f"{len(a)} centralities and {len(b)} amplifications")
        if len(a) < FEWEST or not (a.any() and b.any()):
            continue
        values.append(float(a @ b))
        drawn.append(random.permuted(np.tile(b, (choices.permutations, 1)), axis=1) @ a)
        weights.append(len(a) - 1)
    if not values:
        return Coupling(None, None, 0, 0)
    share = np.array(weights) / sum(weights)
    value = float(share @ values)
    as_far = np.abs(share @ np.array(drawn)) >= abs(value) - ROUNDING
    p = float((1 + as_far.sum()) / (1 + choices.permutations))
    return Coupling(value, p, sum(weights) + len(weights), len(weights))


def standardised(values: ArrayLike, statistic: Statistic) -> Floats:
    """The values, or for Spearman's coefficient their ranks, with mean 0 and length 1: (n,).

    All are 0 where all are the same.

    Raises:
        ValueError: if one is not finite.
    """
    x = np.asarray(values, dtype=np.float64)
    if not np.isfinite(x).all():
        raise ValueError("a centrality or an amplification is not finite")
    if statistic == "spearman":
        x = rankdata(x)
    centred = x - x.mean() if x.size else x
    length = np.linalg.norm(centred)
    return centred / length if length > ROUNDING * np.abs(x).max(initial=0) else np.zeros_like(x)


def of_placed(placed: Sequence[Placed], choices: Choices) -> Coupling:
    """The coupling of communities in several groups, see `couple`."""
    return couple([(x.centralities, x.amplifications) for x in placed], choices)


# --- what the choices change ---------------------------------------------------------------------

# Activations and Jacobians, see `place`, of a layer in each run of a model.
StatesOfRuns = Sequence[tuple[ArrayLike, ArrayLike]]


def variations(choices: Choices) -> Iterator[tuple[str, Any, Choices]]:
    """The choices with one of them changed, each: which one, to what, and all of them.

    Numbers become half and twice as large, the resolution also 1, the threshold 0.1 and 0.2. Names
    become all others there are.
    Leiden is not among them, since it may not be installed.
    """
    graph = choices.graph
    of_graph: dict[str, Sequence[Any]] = {
        "correlation": get_args(communities.Correlation),
        "edges": (max(1, graph.edges // 2), 2 * graph.edges),
        "threshold": (0.0, 0.1, 0.2),
        "signs": get_args(communities.Signs),
        "resolution": (1.0, graph.resolution / 2, graph.resolution * 2),
        "seed": (graph.seed + 100, graph.seed + 200),
    }
    for name, values in of_graph.items():
        for value in dict.fromkeys(values):
            if value != getattr(graph, name):
                yield name, value, replace(choices, graph=replace(graph, **{name: value}))
    for name, kind in (("centrality", Centrality), ("gain", Gain), ("statistic", Statistic)):
        for value in get_args(kind):
            if value != getattr(choices, name):
                yield name, value, replace(choices, **{name: value})


def sensitivity(
    layers: Mapping[str, StatesOfRuns],
    choices: Choices,
    done: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """What each choice changes: the default first, then one choice changed at a time.

    Args:
        layers: for each layer, by name, the states of its runs, which count as independent groups.
        choices: the default.
        done: called after each row; there is one more than `variations`.

    Returns:
        For each, the choice and its value, and:
        communities, modularity: means over layers and runs.
        agreement: the mean adjusted Rand index with the communities of the default.
        coupling, p: of each layer, by name.
        least_p: the smallest p, times the number of layers, which Holm's method makes of it.
    """
    default: dict[str, list[Placed]] = {}
    rows = []
    for name, value, changed in [("default", None, choices), *variations(choices)]:
        placed = {
            layer: [
                around(x.communities, jacobians, changed)
                for x, (_, jacobians) in zip(default[layer], states, strict=True)
            ]
            if default and changed.graph == choices.graph
            else [place(*state, changed) for state in states]
            for layer, states in layers.items()
        }
        default = default or placed
        all_placed = [x for of_layer in placed.values() for x in of_layer]
        agreements = [
            adjusted_rand_score(x.communities.labels, y.communities.labels)
            for layer in layers
            for x, y in zip(default[layer], placed[layer], strict=True)
        ]
        found = {layer: of_placed(of_layer, changed) for layer, of_layer in placed.items()}
        tested = [x.p for x in found.values() if x.p is not None]
        rows.append(
            {
                "choice": name,
                "value": value,
                "communities": float(np.mean([x.communities.count for x in all_placed])),
                "modularity": float(np.mean([x.communities.modularity for x in all_placed])),
                "agreement": float(np.mean(agreements)),
                "coupling": {layer: x.value for layer, x in found.items()},
                "p": {layer: x.p for layer, x in found.items()},
                "least_p": min(1.0, len(tested) * min(tested)) if tested else None,
            }
        )
        done()
    return rows
