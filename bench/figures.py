"""From samples to the few figures that are reported. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

MARKS = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}


def quantile(values: Iterable[float], mark: float) -> float:
    """By nearest rank: the smallest value that at least this share of all does not exceed. 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(mark * len(ordered)) - 1)]


def quantiles(values: Sequence[float], scale: float = 1e3, digits: int = 3) -> dict[str, float]:
    """p50, p90, p99 and max; seconds become milliseconds."""
    ordered = sorted(values)
    return {name: round(quantile(ordered, mark) * scale, digits) for name, mark in MARKS.items()} if ordered else {}


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median of repeated runs, with the lowest and the highest: what a reader needs to trust it."""
    if not values:
        return {}
    return {
        "median": round(statistics.median(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Round by round, so that a machine whose speed drifts cancels out."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True) if b])


def added(ours: Sequence[float], theirs: Sequence[float], scale: float = 1e3) -> dict[str, float]:
    """The differences, round by round."""
    return spread([(a - b) * scale for a, b in zip(ours, theirs, strict=True)])
