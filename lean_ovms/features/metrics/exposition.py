"""Writes Prometheus' text format: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

from ...manifest import Metric

Labels = tuple[str, ...]


@dataclass(slots=True)
class Histogram:
    """The values of a histogram."""

    bounds: tuple[float, ...]
    """The upper bounds of its buckets."""
    counts: list[int] = field(init=False)
    """The number of values in each bucket; the last bucket has the values beyond all bounds."""
    total: float = 0.0
    """The sum of all values."""

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, counts: Iterable[int], total: float) -> None:
        self.counts = [own + new for own, new in zip(self.counts, counts, strict=True)]
        self.total += total


class Exposition:
    """Prints one metric family.

    The constant text of each series (names, help, labels, bounds) is written once, and a scrape fills in the numbers.
    800 lines take 0.5 ms, where prometheus_client takes 8 ms. Series whose label values are not given any more are
    dropped.
    """

    def __init__(self, family: Metric) -> None:
        self._family = family
        self._head = f"# HELP {family.name} {_escaped(family.help)}\n# TYPE {family.name} {family.kind}\n"
        self._templates: dict[Labels, str] = {}

    def text(self, values: Mapping[Labels, float | Histogram]) -> str:
        """Returns the lines of the family, or only its head if it has no values."""
        if len(self._templates) > len(values):
            self._templates = {labels: text for labels, text in self._templates.items() if labels in values}
        return self._head + "".join([self._series(labels, value) for labels, value in values.items()])

    def _series(self, labels: Labels, value: float | Histogram) -> str:
        template = self._templates.get(labels)
        if template is None:
            template = self._templates[labels] = self._template(labels)
        if isinstance(value, Histogram):
            cumulative = list(accumulate(value.counts))
            return template % (*cumulative, cumulative[-1], value.total)
        return template % value

    def _template(self, labels: Labels) -> str:
        """Returns the lines of one series with %s for each number."""
        family = self._family
        named = dict(zip(family.labels, labels, strict=True))
        if family.kind != "histogram":
            return _line(family.name, named)
        bounds = [*(f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in family.buckets), "+Inf"]
        buckets = [_line(f"{family.name}_bucket", {"le": bound, **named}) for bound in bounds]
        return "".join([*buckets, _line(f"{family.name}_count", named), _line(f"{family.name}_sum", named)])


def _line(name: str, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{label}="{_escaped(labels[label], quote=True)}"' for label in sorted(labels))
    return f"{name}{{{pairs}}} ".replace("%", "%%") + "%s\n" if pairs else f"{name} %s\n"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


PROCESS_FAMILIES = (
    Metric("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", ()),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", ()),
    Metric("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", ()),
    Metric("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", ()),
    Metric("process_open_fds", "gauge", "Number of open file descriptors.", ()),
    Metric("process_max_fds", "gauge", "Maximum number of open file descriptors.", ()),
)
"""Names and help of Prometheus' client libraries."""


def process_values() -> dict[str, float]:
    try:
        import resource  # not available on Windows

        hertz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the first is the third field in proc(5)
        return {
            "process_virtual_memory_bytes": int(fields[20]),
            "process_resident_memory_bytes": int(fields[21]) * page,
            "process_start_time_seconds": _booted_at() + int(fields[19]) / hertz,
            "process_cpu_seconds_total": (int(fields[11]) + int(fields[12])) / hertz,
            "process_open_fds": len(os.listdir("/proc/self/fd")),
            "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
    except (ImportError, OSError, IndexError, ValueError, StopIteration):
        return {}


@cache
def _booted_at() -> float:
    with open("/proc/stat", "rb") as file:
        return next(float(line.split()[1]) for line in file if line.startswith(b"btime "))
