"""Communities of residual coordinates: a signed graph of correlations, cut by modularity.

The d coordinates of the residual stream are nodes. An edge is the correlation of two coordinates
over the tokens of a corpus, with its sign. "Dynamics of the Transformer Residual Stream" (arXiv
2605.14258) draws such a graph. Its abstract does not say which correlation, how many edges, which
resolution, or how the sign enters. What stands here is this project's choice, each a field of
`GraphChoices`; `coupling.sensitivity` measures what they change.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from macaron_fairseq.analysis.measures import Floats
from macaron_fairseq.common.errors import UserError

Labels = NDArray[np.int64]

Correlation = Literal["pearson", "spearman"]
Signs = Literal["signed", "absolute", "positive"]
Method = Literal["louvain", "leiden"]

NO_COMMUNITY = -1

# Below this share of the largest deviation, a coordinate's own is rounding of fp32 states.
CONSTANT = 1e-6


@dataclass(frozen=True)
class GraphChoices:
    """What the communities depend on."""

    correlation: Correlation = "pearson"  # "spearman": of ranks, which no outlier rules
    edges: int = 8  # each node keeps those of the largest |r|; an edge stays if one end keeps it
    threshold: float = 0.0  # edges of a smaller |r| are left out
    signs: Signs = "signed"  # "absolute": |r|; "positive": without the negative edges
    resolution: float = 3.0  # of the modularity; at 1 there are three or four communities, too few
    method: Method = "louvain"
    starts: int = 3  # orders of the nodes that are tried; the best modularity stays
    seed: int = 1  # of these orders


@dataclass(frozen=True)
class Communities:
    """The graph of one state, and its communities."""

    weights: Floats  # (d, d), zero for coordinates that are constant
    labels: Labels  # (d,), from 0, the largest community first; `NO_COMMUNITY` for others
    modularity: float
    constant: int  # coordinates that do not vary over the corpus
    isolated: int  # coordinates that vary, and have no edge

    @property
    def count(self) -> int:
        """How many communities there are."""
        return int(self.labels.max(initial=NO_COMMUNITY)) + 1

    @property
    def sizes(self) -> list[int]:
        """How many coordinates each community has."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.count).tolist()


def find(activations: ArrayLike, choices: GraphChoices) -> Communities:
    """The communities of the coordinates of a state.

    Args:
        activations: the state of all tokens of a corpus, (tokens, d).
        choices: see there.

    Raises:
        ValueError: if there are fewer than three tokens, a number is not finite, no coordinate
            varies, or a choice is none.
        UserError: if Leiden is wanted and not installed.
    """
    x = checked(activations)
    varies = ~constant(x)
    if not varies.any():
        raise ValueError("no coordinate varies over the tokens: there is nothing to correlate")
    weights = np.zeros((x.shape[1], x.shape[1]))
    correlation = correlations(x[:, varies], choices.correlation)
    weights[np.ix_(varies, varies)] = signed_graph(correlation, choices)
    labels = partition(weights, choices)
    return Communities(
        weights,
        labels,
        signed_modularity(weights, labels, choices.resolution),
        int((~varies).sum()),
        int((varies & (labels == NO_COMMUNITY)).sum()),
    )


# --- the graph -----------------------------------------------------------------------------------


def checked(activations: ArrayLike) -> Floats:
    """The activations in fp64, (tokens, d).

    Raises:
        ValueError: if they are no matrix of finite numbers with three or more rows.
    """
    x = np.asarray(activations, dtype=np.float64)
    if x.ndim != 2 or len(x) < 3:
        raise ValueError(f"expected three or more tokens, an array (tokens, d), not {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("an activation is not finite")
    return x


def constant(activations: Floats) -> NDArray[np.bool_]:
    """Which coordinates do not vary over the tokens, see `CONSTANT`: (d,)."""
    deviations = np.std(activations, axis=0)
    return deviations <= CONSTANT * deviations.max(initial=0)


def correlations(activations: ArrayLike, kind: Correlation) -> Floats:
    """The correlation of each two coordinates over the tokens: (d, d), within [-1, 1].

    Args:
        activations: (tokens, d).
        kind: "pearson", or "spearman" for Pearson's of the ranks.

    Raises:
        ValueError: if a coordinate is constant, which has no correlation; see also `checked`.
    """
    known(kind, Correlation, "correlation")
    x = checked(activations)
    if constant(x).any():
        raise ValueError(f"{constant(x).sum()} of {x.shape[1]} coordinates do not vary")
    if kind == "spearman":
        x = rankdata(x, axis=0)
    x = x - x.mean(axis=0)
    x /= np.linalg.norm(x, axis=0)
    return np.clip(x.T @ x, -1, 1)


def signed_graph(correlation: ArrayLike, choices: GraphChoices) -> Floats:
    """The weights of the graph's edges: (d, d), symmetric, zero where there is none.

    Args:
        correlation: see `correlations`.
        choices: its edges, threshold and signs count. Negative edges are left out after each node
            has chosen its own.

    Raises:
        ValueError: if no edges are wanted, or the threshold is not within [0, 1).
    """
    known(choices.signs, Signs, "signs")
    if choices.edges < 1:
        raise ValueError(f"a node keeps {choices.edges} edges: it must be one or more")
    if not 0 <= choices.threshold < 1:
        raise ValueError(f"the threshold is {choices.threshold}: it must be from 0 to below 1")
    r = np.array(correlation, dtype=np.float64)
    np.fill_diagonal(r, 0)
    size = np.abs(r)
    nearest = np.argsort(-size, axis=1, kind="stable")[:, : choices.edges]
    kept = np.zeros(r.shape, dtype=bool)
    np.put_along_axis(kept, nearest, True, axis=1)
    r[~(kept | kept.T) | (size < choices.threshold)] = 0
    if choices.signs == "absolute":
        return np.abs(r)
    return np.maximum(r, 0) if choices.signs == "positive" else r


# --- the communities -----------------------------------------------------------------------------


def modularity_matrix(weights: ArrayLike, resolution: float) -> Floats:
    """B in the modularity sum_ij B_ij [i and j in one community] of a signed graph: (d, d).

    Positive edges count for it and negative ones against it, each against chance within its sign:

        B = (W+ - g k+ k+^T / 2w+  -  W- + k- k-^T / 2w-) / (2w+ + 2w-)

    with W+ and W- the sizes of positive and negative edges, k their row sums, 2w the sums of these
    and g the resolution. Without negative edges it is Newman's. The resolution is of positive edges
    alone: on both, it would cancel where a node has as many of each sign.

    Sources: Gomez, Jensen and Arenas, "Analysis of community structure in networks of correlated
    data", Phys. Rev. E 80, 016114 (2009), for g = 1; Traag and Bruggeman, "Community detection in
    networks with positive and negative links", Phys. Rev. E 80, 036115 (2009), for a resolution of
    each sign.
    """
    w = np.asarray(weights, dtype=np.float64)
    total = np.abs(w).sum()
    b = w.copy()
    for sign, by_chance in ((1, resolution), (-1, 1.0)):
        degrees = np.maximum(sign * w, 0).sum(axis=1)
        if degrees.any():
            b -= sign * by_chance * np.outer(degrees, degrees) / degrees.sum()
    return b / total if total else b


def signed_modularity(weights: ArrayLike, labels: ArrayLike, resolution: float) -> float:
    """The modularity of communities in a signed graph, see `modularity_matrix`.

    Args:
        weights: (d, d), symmetric.
        labels: the community of each node; nodes of `NO_COMMUNITY` have no edges and count nothing.
        resolution: see there.
    """
    label = np.asarray(labels)
    same = (label[:, None] == label) & (label != NO_COMMUNITY)
    return float(modularity_matrix(weights, resolution)[same].sum())


def partition(weights: ArrayLike, choices: GraphChoices) -> Labels:
    """The communities of a signed graph: those of the largest `signed_modularity` that was found.

    Args:
        weights: (d, d), symmetric.
        choices: its resolution, method, starts and seed count. Each start has the next seed.

    Returns:
        For each node its community's number, (d,), from 0, the largest first; `NO_COMMUNITY` for a
        node without edges.

    Raises:
        ValueError: if the weights are not symmetric, or the resolution is not above 0.
        UserError: if Leiden is wanted and not installed.
    """
    known(choices.method, Method, "method")
    resolution, seed = choices.resolution, choices.seed
    w = np.asarray(weights, dtype=np.float64)
    if w.ndim != 2 or w.shape != w.T.shape or not np.allclose(w, w.T):
        raise ValueError("the weights are not a symmetric matrix")
    if not 0 < resolution < np.inf:
        raise ValueError(f"the resolution is {resolution}: it must be above 0")
    linked = np.flatnonzero(w.any(axis=1))
    labels = np.full(len(w), NO_COMMUNITY)
    if linked.size:
        inner = w[np.ix_(linked, linked)]
        run = leiden if choices.method == "leiden" else louvain
        tried = run(inner, resolution, range(seed, seed + choices.starts))
        best = max(tried, key=lambda found: signed_modularity(inner, found, resolution))
        labels[linked] = by_size(best)
    return labels


def louvain(weights: Floats, resolution: float, seeds: Iterable[int]) -> list[Labels]:
    """Communities of a signed graph by networkx's Louvain, with each seed: (d,) each.

    networkx takes the modularity of a graph without signs, A - k k^T / 2m. Here A is B + c with a
    diagonal that makes all k the same, which turns it into B, but for the diagonal. A node's own
    diagonal is the same in each community, so that Louvain climbs the signed modularity.
    """
    n = len(weights)
    shifted = modularity_matrix(weights, resolution) + 1 / n**2
    np.fill_diagonal(shifted, 0)
    np.fill_diagonal(shifted, 1 / n - shifted.sum(axis=1))
    np.fill_diagonal(shifted, np.diagonal(shifted) / 2)  # networkx counts a loop twice
    graph = nx.from_numpy_array(shifted)
    return [as_labels(nx.community.louvain_communities(graph, seed=x), n) for x in seeds]


def refuse_missing(method: Method) -> None:
    """Raise a `UserError` if the package of a method is not installed."""
    if method == "leiden" and not (find_spec("leidenalg") and find_spec("igraph")):
        raise UserError(
            "Leiden needs packages that are under the GPL: pip install leidenalg igraph, or take "
            "Louvain"
        )


def leiden(weights: Floats, resolution: float, seeds: Iterable[int]) -> list[Labels]:
    """Communities of a signed graph by Leiden, of the same modularity as `louvain`: (d,) each.

    Source: Traag, Waltman and van Eck, Sci. Rep. 9, 5233 (2019), their package leidenalg.

    Raises:
        UserError: if leidenalg is not installed.
    """
    refuse_missing("leiden")
    import igraph
    import leidenalg

    by_chance = {sign: g for sign, g in ((1, resolution), (-1, 1.0)) if (sign * weights > 0).any()}
    graphs = {
        sign: igraph.Graph.Weighted_Adjacency(np.maximum(sign * weights, 0), mode="undirected")
        for sign in by_chance
    }
    found = []
    for seed in seeds:
        layers = [
            leidenalg.RBConfigurationVertexPartition(
                graphs[sign], weights="weight", resolution_parameter=by_chance[sign]
            )
            for sign in by_chance
        ]
        optimiser = leidenalg.Optimiser()
        optimiser.set_rng_seed(seed)
        optimiser.optimise_partition_multiplex(layers, layer_weights=[*by_chance], n_iterations=-1)
        found.append(np.array(layers[0].membership))
    return found


def as_labels(groups: list[set[int]], nodes: int) -> Labels:
    """For each node the number of its group."""
    labels = np.full(nodes, NO_COMMUNITY)
    for i, group in enumerate(groups):
        labels[list(group)] = i
    return labels


def by_size(labels: Labels) -> Labels:
    """The same communities, numbered from the largest; where two are as large, the first node's."""
    _, first, number, sizes = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    return np.argsort(np.lexsort((first, -sizes)))[number]


def known(value: str, choices: object, what: str) -> None:
    """Raise a ValueError if the value is none of a `Literal` type's."""
    if value not in get_args(choices):
        raise ValueError(f"{what}: {value!r} is none of {', '.join(get_args(choices))}")
