"""p values of paired differences, and their correction for the number of tests.

SciPy and statsmodels, the extra `evidence`, compute them.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from macaron_fairseq.common.errors import explain_missing

SAME = 1e-12  # between differences that rounding alone makes unequal


def require_packages() -> None:
    """Raise a `UserError` if statsmodels is missing, which few commands need."""
    try:
        import statsmodels.api  # noqa: F401
    except ImportError as error:
        explain_missing(error, "scipy statsmodels", "evidence")


def signed_rank(differences: Sequence[float]) -> float | None:
    """The p value of Wilcoxon's signed-rank test, two-sided and exact, without differences of 0.

    SciPy's is exact without equal differences alone, or slow. None of a single difference; 1 where
    all are 0, or all but one.
    """
    from scipy import stats

    # Equal ones may differ by rounding, and would be ranked by it.
    unequal = [value for value in (round(x, 9) for x in differences) if value]
    if len(differences) < 2:
        return None
    doubled = (2 * stats.rankdata(np.abs(unequal))).astype(int)  # those of equal ones are halves
    chances = np.ones(1)  # of each sum of the ranks above 0, where each sign is as likely
    for rank in doubled:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    found = doubled[np.array(unequal) > 0].sum()
    return min(1.0, 2 * float(min(chances[: found + 1].sum(), chances[found:].sum())))


def paired_t(differences: Sequence[float]) -> float | None:
    """The p value of a paired t test, two-sided; 1 where all are 0.

    None for one pair, and for differences that are all the same: their deviation, 0 by chance,
    tells nothing.
    """
    if not any(differences):
        return 1.0 if len(differences) > 1 else None
    if np.ptp(differences) <= SAME:
        return None
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0).pvalue)


def holm(p: Mapping[str, float | None], number: int = 0) -> dict[str, float | None]:
    """Holm's correction of p values; what has none stays without.

    Args:
        p: the values by name.
        number: of the tests, if more are to come: these count as not significant.
    """
    known = {name: value for name, value in p.items() if value is not None}
    if not known:
        return dict(p)
    require_packages()
    from statsmodels.stats.multitest import multipletests

    to_come = [1.0] * (number - len(known))
    corrected = multipletests([*known.values(), *to_come], method="holm")[1]
    return {**p, **{name: float(x) for name, x in zip(known, corrected[: len(known)], strict=True)}}
