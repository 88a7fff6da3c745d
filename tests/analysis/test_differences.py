"""The largest differences between models, in words: figures made up, effects by hand."""

import math

import numpy as np
import pytest
from scipy.stats import t, ttest_ind

from macaron_fairseq.analysis.dynamics import differences

HEDGES = 1 - 3 / (4 * 78 - 1)  # of 40 values each


def figure(mean, sd, n=40):
    return {"mean": mean, "sd": sd, "n": n}


def layer(number, **figures):
    return {
        **{"name": f"layer {number}", "layer": number, "time": float(number)},
        **{"operator": "layer", "occurrence": 1, "figures": figures},
    }


def model(label, layers, states=()):
    side = {"side": "encoder", "norm": "pre", "states": [*states], "layers": [*layers]}
    return {"label": label, "sides": [side]}


def test_effects_are_hedges_and_the_largest_comes_first():
    baseline = model(
        "stock",
        [
            layer(1, turn=figure(20, 3), step=figure(0.5, 0.1)),
            layer(2, turn=figure(10, 4), step=figure(0.4, 0.1)),
        ],
        [layer(0, cosine=figure(0.9, 0.1)), layer(1, cosine=figure(0.2, 0.1))],
    )
    other = model(
        "ours",
        [
            layer(1, turn=figure(26, 4), step=figure(0.4, 0.1)),
            layer(2, turn=figure(9, 4), step=figure(0.35, 0.1)),
        ],
        [layer(0, cosine=figure(0.1, 0.1)), layer(1, cosine=figure(-0.1, 0.2))],
    )
    found = differences.largest(baseline, other)
    assert [(x.measure.name, x.layer) for x in found] == [("cosine", 1), ("turn", 1), ("step", 1)]
    assert found[0].effect == pytest.approx(-0.3 * HEDGES / math.sqrt((0.01 + 0.04) / 2))
    assert found[1].effects == pytest.approx([6 * HEDGES / math.sqrt((9 + 16) / 2), -0.25 * HEDGES])
    assert [*differences.sentences([baseline, other])] == [
        "Mean cosine after encoder layer 1: -0.1 in ours, 0.2 in stock (1.9 standard deviations).",
        "Angle turned of encoder layer 1: 26 in ours, 20 in stock (+30%, 1.7 standard deviations). "
        "It is larger in 1 of 2 layers.",
        "Relative step of encoder layer 1: 0.4 in ours, 0.5 in stock (-20%, 1.0 standard "
        "deviations). It is smaller in all 2 layers.",
    ]


def test_the_largest_of_several_layers_is_tested_as_such():
    """Of 16 values: 5 % of 4 layers together leave 1.25 % for each, 0.625 % on either side."""
    alone = (
        model("a", [layer(1, turn=figure(20, 3, 16))]),
        model("b", [layer(1, turn=figure(21, 3, 16))]),
    )
    deep = [
        model(name, [layer(i, turn=figure(mean, 3, 16)) for i in range(1, 5)])
        for name, mean in (("a", 20), ("b", 21))
    ]
    for pair, quantile in ((alone, 0.975), (deep, 1 - 0.00625)):
        (found,) = differences.largest(*pair)
        assert found.noise == pytest.approx(t.ppf(quantile, 30) * math.sqrt(2 / 16))


def test_what_rounding_would_hide_is_said():
    """0.9996 is not 1, and 0 % no difference."""
    baseline = model("stock", [], [layer(1, cosine=figure(0.9991, 0.0002))])
    other = model("ours", [], [layer(1, cosine=figure(0.9996, 0.0002))])
    assert [*differences.sentences([baseline, other])] == [
        "Mean cosine after encoder layer 1: 0.9996 in ours, 0.9991 in stock (2.5 standard "
        "deviations)."
    ]


def test_what_has_no_spread_or_is_small_is_not_said():
    baseline = model(
        "stock", [layer(1, turn=figure(20, 0), step=figure(0.5, 0.1), norm=figure(1, 1, 9))]
    )
    other = model(
        "ours", [layer(1, turn=figure(21, 0), step=figure(0.52, 0.1), norm=figure(9, 1, 9))]
    )
    assert [x.measure.name for x in differences.largest(baseline, other)] == ["step"]
    assert [*differences.sentences([baseline, other])] == [
        "No mean of a layer of ours is 0.5 standard deviations or more from that of stock, and "
        "farther than chance alone takes it."
    ]
    assert [*differences.sentences([baseline])] == []


@pytest.mark.parametrize(("n", "is_said"), [(16, False), (40, True)])
def test_a_difference_that_chance_may_make_is_not_said(n, is_said):
    """0.65 standard deviations: p is 0.08 by Welch's test of 16 values each, 0.005 of 40."""
    values = np.random.default_rng(1).normal(size=n)
    values = (values - values.mean()) / values.std(ddof=1)
    assert (ttest_ind(values, values + 0.65, equal_var=False).pvalue < 0.05) == is_said
    baseline = model("stock", [layer(1, step=figure(5, 1, n))])
    other = model("ours", [layer(1, step=figure(5.65, 1, n))])
    (sentence,) = differences.sentences([baseline, other])
    assert sentence.startswith("Relative step of encoder layer 1: 5.65 in ours") == is_said
