"""Means, deviations and histograms of values that come a few at a time, in constant memory."""

from collections.abc import Iterable
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


class Running:
    """Mean and standard deviation of all values added so far; what is not finite is left out."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0  # the sum of the squared differences from the mean

    def add(self, values: ArrayLike) -> None:
        """Add one value or an array of them."""
        x = np.ravel(np.asarray(values, dtype=np.float64))
        x = x[np.isfinite(x)]
        if not x.size:
            return
        # Chan, Golub and LeVeque 1979: joining two samples without cancellation.
        total = self.count + x.size
        shift = x.mean() - self.mean
        self.squares += ((x - x.mean()) ** 2).sum() + shift**2 * self.count * x.size / total
        self.mean += shift * x.size / total
        self.count = total

    def figures(self) -> dict[str, Any]:
        """Mean, standard deviation (n - 1) and number; None of what so few values do not have."""
        if not self.count:
            return {"mean": None, "sd": None, "n": 0}
        sd = rounded(np.sqrt(self.squares / (self.count - 1))) if self.count > 1 else None
        # Means are subtracted from others, and may differ by much less than their size.
        return {"mean": rounded(self.mean, 12), "sd": sd, "n": self.count}


def finite_mean(values: Iterable[float]) -> float | None:
    """The mean of those that are finite; None without any."""
    finite = [x for x in values if np.isfinite(x)]
    return fmean(finite) if finite else None


class CosineAcross:
    """The mean cosine of all pairs of directions that come from different sentences."""

    def __init__(self) -> None:
        self.total: Any = 0.0  # the sum of all directions
        self.within = 0.0  # the squared length of each sentence's sum, over sentences
        self.count = 0
        self.pairs_within = 0  # ordered, each with itself included

    def add(self, directions: np.ndarray) -> None:
        """Add those of a sentence, unit vectors (tokens, d)."""
        own = directions.sum(axis=0)
        self.total = self.total + own
        self.within += float(own @ own)
        self.count += len(directions)
        self.pairs_within += len(directions) ** 2

    def mean(self) -> float | None:
        """By |sum of all|^2 less the same of each sentence; None of a single sentence."""
        pairs = self.count**2 - self.pairs_within
        return rounded((float(self.total @ self.total) - self.within) / pairs) if pairs else None


class Histogram:
    """Counts of values from -1 to 1 in bins of equal width."""

    def __init__(self, bins: int) -> None:
        self.edges = np.linspace(-1, 1, bins + 1)
        self.counts = np.zeros(bins, dtype=np.int64)

    def add(self, values: ArrayLike) -> None:
        """Add an array of values; one on an edge belongs to the bin above it."""
        self.counts += np.histogram(np.asarray(values), self.edges)[0]

    def quantile(self, q: float) -> float | None:
        """The value below which the share `q` lies, interpolated in its bin."""
        total = self.counts.sum()
        if not total:
            return None
        below = np.concatenate(([0], np.cumsum(self.counts))) / total
        return rounded(np.interp(q, below, self.edges))


def rounded(x: float, digits: int = 6) -> float:
    """To so many digits; six are more than most figures are worth."""
    return float(f"{x:.{digits}g}")
