"""GET /metrics: Prometheus' text format, with --metrics_enable.

https://prometheus.io/docs/instrumenting/exposition_formats/. The engine's statistics are read at each scrape, and
omitted if the engine does not answer within a second (it answers between two steps).
"""

from __future__ import annotations

import asyncio
import os

from ...errors import NotFound
from ...models.model import Model
from ...observability.metrics import EngineState
from ...types import Request, Response
from .. import load_report
from ..route_doc import RouteDoc
from ..services import Services

STATS_TIMEOUT_S = 1.0
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


@RouteDoc("Metrics for Prometheus, with --metrics_enable", errors=(404,), answer="text/plain")
async def handle(request: Request, services: Services) -> Response:
    if not services.metrics.enabled:
        raise NotFound("metrics are off; start with --metrics_enable")
    states = await asyncio.gather(*(_state(services, model) for model in services.registry.served))
    return Response(
        200, [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")], services.metrics.expose(states)
    )


async def _state(services: Services, model: Model) -> EngineState:
    return EngineState(
        model=model.name,
        in_flight=services.records.in_flight(model.name),
        up=model.ready,
        loaded=model.loaded,
        waiting=model.waiting,
        restarts=model.restarts,
        memory=resident_bytes(None if model.adapter else model.engine.pid),
        stats=await load_report.read(model.stats(), STATS_TIMEOUT_S),
    )


def resident_bytes(pid: int | None) -> int | None:
    """Resident bytes of a process; None if /proc does not have it (10 us on Linux)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_SIZE
    except (OSError, IndexError, ValueError):
        return None
