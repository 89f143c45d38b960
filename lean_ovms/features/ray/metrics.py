"""Reports the server's metrics to Ray, so that Prometheus finds those of all replicas at each machine of the cluster.

Their names are those of vLLM under Ray: `ray_vllm_num_requests_waiting` for `vllm:num_requests_waiting`, with Ray's
labels `application`, `deployment` and `replica`. All are gauges with the value of the server's own metric, which
Prometheus' functions also accept for counters and histograms. Ray's counters and histograms could only repeat single
events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from ...api.app import App
from ...types import Request
from ..metrics import api as metrics
from .replicas import replica_context

log = logging.getLogger("lean_ovms.ray")

PERIOD_S = 10.0
"""Seconds between two reports, the same as for Ray's own processes."""
LINE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yields the name, the labels and the value in each line of Prometheus' text format."""
    for name, labels, value in LINE.findall(text):
        yield name, {label: ESCAPED.sub(_unescaped, found) for label, found in LABEL.findall(labels)}, float(value)


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


class Reporter:
    """Sets Ray's gauges to the values of an app's metrics."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._gauges: dict[str, Any] = {}
        self._series: set[tuple[str, tuple[tuple[str, str], ...]]] = set()

    async def report(self) -> None:
        """Sets the gauges once; those of series that no longer exist become 0, since they cannot be removed."""
        response = await metrics.handle(Request("GET", "/metrics"), self._app.services)
        assert isinstance(response.body, bytes)
        gone, self._series = self._series, set()
        for name, labels, value in samples(response.body.decode()):
            self._gauge(name, tuple(labels)).set(value, tags=labels)
            self._series.add((name, tuple(labels.items())))
        for name, pairs in gone - self._series:
            self._gauges[name].set(0.0, tags=dict(pairs))

    def _gauge(self, name: str, labels: tuple[str, ...]) -> Any:
        from ray.serve.metrics import Gauge

        if (found := self._gauges.get(name)) is None:
            found = self._gauges[name] = Gauge(name.replace(":", "_"), description=name, tag_keys=labels)
        return found

    async def run(self) -> None:
        """Sets the gauges every PERIOD_S seconds until it is cancelled."""
        while True:
            try:
                await self.report()
            except Exception:
                log.exception("metrics were not reported to Ray")
            await asyncio.sleep(PERIOD_S)


@contextlib.asynccontextmanager
async def publishing(app: App) -> AsyncIterator[None]:
    """Reports an app's metrics to Ray inside the `with` block, if --metrics_enable is set and this is a replica."""
    if not app.services.metrics.enabled or replica_context() is None:
        yield
        return
    reports = asyncio.ensure_future(Reporter(app).run())
    try:
        yield
    finally:
        reports.cancel()
        await asyncio.wait([reports])
