"""Communities of residual coordinates and their coupling, against planted truth and formulas."""

import itertools
import sys

import networkx as nx
import numpy as np
import pytest
from scipy.stats import kstest, pearsonr, spearmanr
from sklearn.metrics import adjusted_rand_score

from macaron_fairseq.analysis.residual import communities, coupling
from macaron_fairseq.analysis.residual.communities import GraphChoices
from macaron_fairseq.analysis.residual.coupling import Choices
from macaron_fairseq.common.errors import UserError

PLAIN = GraphChoices(resolution=1)


def planted(groups=4, size=8, tokens=400, noise=0.7, seed=0):
    """States whose coordinates follow one hidden signal for each group; and the groups.

    Half of the signals are the others with the sign changed, which only the sign tells apart.
    """
    random = np.random.default_rng(seed)
    signals = random.standard_normal((tokens, groups))
    signals[:, 1::2] = -0.6 * signals[:, ::2] + 0.8 * signals[:, 1::2]
    labels = random.permutation(np.repeat(np.arange(groups), size))
    return signals[:, labels] + noise * random.standard_normal((tokens, len(labels))), labels


def planted_graph(groups=3, size=6, seed=0):
    """A signed graph: most edges inside are positive, most edges between are negative."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(groups), size))
    inside = labels[:, None] == labels
    sign = np.where(inside, 1, -1) * np.where(random.random(inside.shape) < 0.1, -1, 1)
    there = random.random(inside.shape) < 0.8
    upper = np.triu(sign * there * random.uniform(0.5, 1, inside.shape), 1)
    return upper + upper.T, labels


# --- the graph -----------------------------------------------------------------------------------


def test_correlations_are_those_of_scipy():
    x, _ = planted(groups=2, size=2)
    for kind, function in (("pearson", pearsonr), ("spearman", spearmanr)):
        found = communities.correlations(x, kind)
        expected = [[function(a, b).statistic for b in x.T] for a in x.T]
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_node_keeps_its_largest_edges_and_their_sign():
    r = np.array(
        [[1, 0.9, -0.8, 0.1], [0.9, 1, 0.2, 0.3], [-0.8, 0.2, 1, 0.05], [0.1, 0.3, 0.05, 1]]
    )
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = 0.9
    expected[0, 2] = expected[2, 0] = -0.8  # kept by 2
    expected[1, 3] = expected[3, 1] = 0.3  # kept by 3
    np.testing.assert_array_equal(communities.signed_graph(r, GraphChoices(edges=1)), expected)
    for signs, of_signs in (("absolute", np.abs(expected)), ("positive", np.maximum(expected, 0))):
        found = communities.signed_graph(r, GraphChoices(edges=1, signs=signs))
        np.testing.assert_array_equal(found, of_signs)
    found = communities.signed_graph(r, GraphChoices(edges=3, threshold=0.25))
    assert np.array_equal(found, expected)


def test_constant_coordinates_are_counted_and_belong_to_nobody():
    x, labels = planted()
    wide = np.insert(x, [0, 5], 3.0, axis=1)
    found = communities.find(wide, PLAIN)
    assert found.constant == 2
    out = np.flatnonzero(found.labels == communities.NO_COMMUNITY)
    assert out.tolist() == [0, 6]
    assert adjusted_rand_score(np.delete(found.labels, out), labels) == 1
    with pytest.raises(ValueError, match="2 of 34 coordinates do not vary"):
        communities.correlations(wide, "pearson")


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (np.ones((2, 3)), "three or more tokens"),
        (np.ones(5), "three or more tokens"),
        (np.full((5, 3), np.nan), "not finite"),
        (np.ones((5, 3)), "no coordinate varies"),
    ],
)
def test_states_without_a_graph_are_refused(states, message):
    with pytest.raises(ValueError, match=message):
        communities.find(states, PLAIN)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"edges": 0}, "keeps 0 edges"),
        ({"threshold": 1.0}, "threshold is 1"),
        ({"resolution": 0.0}, "resolution is 0"),
        ({"signs": "both"}, "'both' is none of signed, absolute, positive"),
    ],
)
def test_choices_that_are_none_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        communities.find(planted()[0], GraphChoices(**choices))


# --- the communities -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_planted_signals_are_found(seed):
    x, labels = planted(seed=seed)
    found = communities.find(x, PLAIN)
    assert adjusted_rand_score(found.labels, labels) == 1
    assert found.sizes == [8, 8, 8, 8]


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_signed_graph_is_found(seed):
    weights, labels = planted_graph(seed=seed)
    assert adjusted_rand_score(communities.partition(weights, PLAIN), labels) == 1


def test_without_the_sign_opposite_groups_are_one():
    x, labels = planted()
    found = communities.find(x, GraphChoices(signs="absolute", edges=16, resolution=1))
    assert found.count == 2
    assert adjusted_rand_score(found.labels, labels // 2) == 1


def test_modularity_without_signs_is_newmans():
    graph = nx.karate_club_graph()
    weights = nx.to_numpy_array(graph)
    labels = np.array([graph.nodes[i]["club"] == "Officer" for i in graph]).astype(int)
    groups = [set(np.flatnonzero(labels == i)) for i in (0, 1)]
    for resolution in (0.5, 1, 2):
        expected = nx.community.modularity(graph, groups, resolution=resolution)
        found = communities.signed_modularity(weights, labels, resolution)
        assert found == pytest.approx(expected, abs=1e-12)


def test_signed_modularity_is_that_of_each_sign_weighted_by_its_edges():
    weights, labels = planted_graph()
    groups = [set(np.flatnonzero(labels == i)) for i in range(3)]
    q, total = {}, {}
    for sign, resolution in ((1, 1.5), (-1, 1)):
        graph = nx.from_numpy_array(np.maximum(sign * weights, 0))
        q[sign] = nx.community.modularity(graph, groups, resolution=resolution)
        total[sign] = graph.size("weight")
    expected = (total[1] * q[1] - total[-1] * q[-1]) / (total[1] + total[-1])
    assert communities.signed_modularity(weights, labels, 1.5) == pytest.approx(expected)


def all_partitions(n):
    """Each partition of n nodes once, as labels that begin with 0 and skip none."""
    for labels in itertools.product(range(n), repeat=n):
        if all(x <= max(labels[:i], default=-1) + 1 for i, x in enumerate(labels)):
            yield np.array(labels)


@pytest.mark.parametrize("resolution", [0.6, 1.0, 1.7])
def test_no_partition_of_a_small_graph_is_better(resolution):
    weights = np.triu(np.random.default_rng(3).uniform(-1, 1, (6, 6)), 1)
    weights += weights.T
    labels = communities.partition(weights, GraphChoices(resolution=resolution, starts=10))
    found = communities.signed_modularity(weights, labels, resolution)
    best = max(
        communities.signed_modularity(weights, labels, resolution) for labels in all_partitions(6)
    )
    assert found == pytest.approx(best, abs=1e-12)


def test_larger_resolutions_give_smaller_communities():
    x, _ = planted()
    choices = [GraphChoices(edges=31, signs="absolute", resolution=r) for r in (0.02, 1, 1.9)]
    assert [communities.find(x, choice).count for choice in choices] == [1, 2, 4]


def test_without_leiden_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "igraph", None)
    with pytest.raises(UserError, match=r"GPL: pip install leidenalg igraph, or take Louvain"):
        communities.find(planted()[0], GraphChoices(method="leiden"))


def test_leiden_finds_planted_communities():
    pytest.importorskip("leidenalg")
    weights, labels = planted_graph()
    found = communities.partition(weights, GraphChoices(resolution=1, method="leiden"))
    assert adjusted_rand_score(found, labels) == 1


# --- centrality and amplification ----------------------------------------------------------------


def test_amplification_of_a_diagonal_layer():
    labels = np.array([0, 1, 0, 1, 1, -1])
    j = np.diag(np.where(labels == 0, 2.0, 0.5))
    for kind in ("column", "row", "diagonal"):
        np.testing.assert_allclose(coupling.amplifications(j, labels, kind), [2, 0.5])
    both = np.stack([j, np.eye(6)])  # geometric mean over two tokens
    np.testing.assert_allclose(coupling.amplifications(both, labels, "column"), [2**0.5, 0.5**0.5])


def test_kinds_of_amplification_by_hand():
    """Each coordinate by itself, of [[1, 2], [3, 4]]."""
    for kind, squares in (("column", [10, 20]), ("row", [5, 25]), ("diagonal", [1, 16])):
        found = coupling.amplifications([[1, 2], [3, 4]], [0, 1], kind)
        np.testing.assert_allclose(found, np.sqrt(squares))


def test_amplification_is_the_growth_of_random_directions():
    random = np.random.default_rng(1)
    j, labels = random.standard_normal((6, 6)), np.array([0, 0, 0, 1, 1, 1])
    inside = np.zeros((6, 20_000))
    inside[:3] = random.standard_normal((3, 20_000))
    inside /= np.linalg.norm(inside, axis=0)
    growth = np.sqrt((np.linalg.norm(j @ inside, axis=0) ** 2).mean())
    found = coupling.amplifications(j, labels, "column")[0]
    assert found == pytest.approx(growth, rel=0.02)
    assert found == pytest.approx(np.linalg.norm(j[:, :3]) / 3**0.5)
    rows = coupling.amplifications(j, labels, "row")[1]
    assert rows == pytest.approx(np.linalg.norm(j[3:]) / 3**0.5)


def test_centralities_are_those_of_networkx():
    weights, labels = planted_graph()
    graph = nx.from_numpy_array(np.abs(weights))
    for *_, edge in graph.edges(data=True):
        edge["length"] = 1 / edge["weight"]
    expected = {
        "strength": dict(graph.degree(weight="weight")),
        "eigenvector": nx.eigenvector_centrality_numpy(graph, "weight"),
        "betweenness": nx.betweenness_centrality(graph, weight="length"),
    }
    for kind, values in expected.items():
        of_groups = [np.mean([values[i] for i in np.flatnonzero(labels == c)]) for c in range(3)]
        np.testing.assert_allclose(
            coupling.centralities(weights, labels, kind), of_groups, atol=1e-8
        )
    between = [np.abs(weights[labels == c][:, labels != c]).sum() / 6 for c in range(3)]
    np.testing.assert_allclose(coupling.centralities(weights, labels, "between"), between)


def test_the_order_of_coordinates_does_not_matter():
    x, _ = planted(noise=0.5)
    j = np.random.default_rng(2).standard_normal((3, 32, 32))
    order = np.random.default_rng(3).permutation(32)
    a = coupling.place(x, j, Choices())
    b = coupling.place(x[:, order], j[:, order][:, :, order], Choices())
    assert adjusted_rand_score(a.communities.labels[order], b.communities.labels) == 1
    assert a.communities.modularity == pytest.approx(b.communities.modularity)
    for found in ("centralities", "amplifications"):
        np.testing.assert_allclose(np.sort(getattr(a, found)), np.sort(getattr(b, found)))


def test_a_jacobian_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"4 coordinates have no Jacobian of \(3, 3\)"):
        coupling.amplifications(np.eye(3), np.zeros(4, dtype=int), "column")


# --- the coupling --------------------------------------------------------------------------------


def test_coefficients_are_those_of_scipy():
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 9))
    assert coupling.couple([(x, y)], Choices()).value == pytest.approx(spearmanr(x, y).statistic)
    found = coupling.couple([(x, y)], Choices(statistic="pearson", permutations=20_000))
    assert found.value == pytest.approx(pearsonr(x, y).statistic)
    assert found.p == pytest.approx(pearsonr(x, y).pvalue, abs=0.03)
    both = coupling.couple([(x, y), (x[:5], y[:5])], Choices()).value
    parts = [coupling.couple([(x[:n], y[:n])], Choices()).value for n in (9, 5)]
    assert both == pytest.approx((8 * parts[0] + 4 * parts[1]) / 12)


def test_p_values_are_exact_where_all_orders_are_known():
    x = np.arange(4.0)
    value, p, points, groups = coupling.couple([(x, x)], Choices(permutations=50_000))
    assert (value, points, groups) == (pytest.approx(1), 4, 1)
    assert p == pytest.approx(2 / 24, abs=0.005)  # in order, or in reverse


def test_p_values_are_uniform_under_independence():
    random = np.random.default_rng(4)
    draw = random.standard_normal
    choices = [Choices(statistic="pearson", permutations=199, seed=seed) for seed in range(300)]
    found = [
        coupling.couple([(draw(8), draw(8)), (draw(6), draw(6))], choice).p for choice in choices
    ]
    assert kstest(found, "uniform").pvalue > 0.01


def test_a_planted_coupling_is_found_and_its_sign():
    random = np.random.default_rng(5)
    groups = [(x, -x + 0.3 * random.standard_normal(8)) for x in random.standard_normal((3, 8))]
    found = coupling.couple(groups, Choices())
    assert found.value < -0.8
    assert found.p < 0.001
    assert found == coupling.couple(groups, Choices())  # the seed is given


def test_groups_that_say_nothing_are_left_out():
    x = np.arange(5.0)
    assert coupling.couple([(x[:2], x[:2]), (x, np.ones(5))], Choices()) == (None, None, 0, 0)
    assert coupling.couple([(x, x), (x, np.ones(5))], Choices())[2:] == (5, 1)
    with pytest.raises(ValueError, match="not finite"):
        coupling.couple([(x, np.full(5, np.inf))], Choices())


def coupled_layer(seed=0):
    """A state and a layer that amplifies the communities with the more ties to others."""
    x, labels = planted(groups=6, size=4, tokens=100, noise=0.5, seed=seed)
    found = communities.find(x, GraphChoices())
    central = coupling.centralities(found.weights, found.labels, "between")
    of_node = central[found.labels]
    return x, np.diag(1 + of_node), labels


def test_choices_are_varied_one_at_a_time():
    layers = {str(seed): [coupled_layer(seed)[:2]] for seed in range(2)}
    choices = Choices(permutations=199)
    rows = coupling.sensitivity(layers, choices)
    assert rows[0]["choice"] == "default"
    assert min(rows[0]["coupling"].values()) > 0.95
    assert rows[0]["agreement"] == 1
    assert max(rows[0]["p"].values()) < 0.02
    assert rows[0]["least_p"] == 2 * min(rows[0]["p"].values())
    names = {"correlation", "edges", "threshold", "signs", "resolution", "seed"}
    names |= {"centrality", "gain", "statistic"}
    assert {row["choice"] for row in rows[1:]} == names
    assert len(rows) == 1 + len([*coupling.variations(choices)])
    for wanted, changed in (
        ("spearman", Choices(GraphChoices("spearman"), permutations=199)),
        ("eigenvector", Choices(centrality="eigenvector", permutations=199)),
    ):
        (row,) = (row for row in rows if row["value"] == wanted)
        placed = {name: [coupling.place(*x, changed)] for name, (x,) in layers.items()}
        expected = {name: coupling.of_placed(x, changed).value for name, x in placed.items()}
        assert row["coupling"] == expected


def test_no_choice_is_varied_twice():
    graph = GraphChoices(resolution=2.0)
    found = [x for x in coupling.variations(Choices(graph)) if x[0] == "resolution"]
    assert [value for _, value, _ in found] == [1.0, 4.0]
