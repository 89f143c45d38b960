"""The numbers of a histogram."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Histogram:
    """A histogram. counts: per bucket, the last one beyond all bounds. total: sum of all values."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, counts: Iterable[int], total: float) -> None:
        self.counts = [own + new for own, new in zip(self.counts, counts, strict=True)]
        self.total += total
