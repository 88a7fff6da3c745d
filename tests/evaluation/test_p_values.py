"""p values of paired differences against closed forms, SciPy and sums by hand."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from macaron_fairseq.evaluation.scores import p_values


def test_differences_that_are_equal_but_for_rounding_are_ties():
    """Of six ranks: 0.1 + 0.2 is not 0.3 in floating point, and both differences are 0.3."""
    differences = [0.1 + 0.2, 0.3, -0.3, 1, 2, 3]
    exact = stats.wilcoxon([3, 3, -3, 10, 20, 30]).pvalue
    assert p_values.signed_rank(differences) == pytest.approx(exact)
    assert p_values.signed_rank([1e-15, -1e-15]) == 1
    assert p_values.signed_rank([1.5, 0.0, 0.0]) == 1


def test_wilcoxon_is_exact_with_ties_and_with_many_differences():
    """SciPy counts all signs of few, and has an exact table for those without ties."""
    drawn = np.random.default_rng(1)
    every = stats.PermutationMethod(n_resamples=np.inf)
    for n in (2, 5, 8):
        some = drawn.choice([-1.5, -1, -0.5, 0.5, 1, 1.5], n)
        expected = stats.wilcoxon(some, method=every).pvalue
        assert p_values.signed_rank(some) == pytest.approx(expected)
    many = drawn.normal(0.3, size=40)
    assert p_values.signed_rank(many) == pytest.approx(stats.wilcoxon(many, method="exact").pvalue)


def test_a_paired_t_test_of_three_seeds_has_a_closed_form():
    """Student's t with two degrees of freedom: p = 1 - t / sqrt(t^2 + 2)."""
    differences = [-0.05, -0.06, -0.09]
    t = abs(statistics.mean(differences)) / (statistics.stdev(differences) / math.sqrt(3))
    assert p_values.paired_t(differences) == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert p_values.paired_t([0.0, 0.0]) == 1 and p_values.paired_t([0.3]) is None
    assert p_values.paired_t([0.1, 0.1]) is None  # as two seeds may have by chance


def test_holms_correction_counts_what_is_to_come():
    assert p_values.holm({"a": 0.01, "b": None}, 7) == {"a": pytest.approx(0.07), "b": None}


def test_holms_correction_by_hand():
    found = p_values.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": None})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": None})
