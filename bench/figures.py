"""Pure functions that reduce samples to the figures that are reported."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

MARKS = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}


def quantile(values: Iterable[float], mark: float) -> float:
    """Returns a quantile by nearest rank: the smallest value that at least a share `mark` of all does not exceed; 0 if
    empty."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(mark * len(ordered)) - 1)]


def quantiles(values: Sequence[float], scale: float = 1e3, digits: int = 3) -> dict[str, float]:
    """Returns p50, p90, p99 and maximum. By default, seconds become milliseconds."""
    ordered = sorted(values)
    return {name: round(quantile(ordered, mark) * scale, digits) for name, mark in MARKS.items()} if ordered else {}


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Returns the median of repeated runs, with the lowest and the highest value to show how far they differ."""
    if not values:
        return {}
    return {
        "median": round(statistics.median(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Returns the spread of the ratios of each round, in which a drift of the machine's speed cancels out."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True) if b])


def added(ours: Sequence[float], theirs: Sequence[float], scale: float = 1e3) -> dict[str, float]:
    """Returns the spread of the differences of each round."""
    return spread([(a - b) * scale for a, b in zip(ours, theirs, strict=True)])
