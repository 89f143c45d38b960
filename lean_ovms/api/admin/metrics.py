"""GET /metrics: Prometheus' text format, with --metrics_enable.

https://prometheus.io/docs/instrumenting/exposition_formats/. The engine's statistics are read at each scrape, and
omitted if the engine does not answer within a second (it answers between two steps).
"""

from __future__ import annotations

import asyncio

from ...errors import NotFound
from ...models.model import Model
from ...observability.metrics import EngineState, resident_bytes
from ...types import Request, Response
from .. import orca_report
from ..route_doc import RouteDoc
from ..services import Services

STATS_TIMEOUT_S = 1.0


@RouteDoc("Metrics for Prometheus, with --metrics_enable", errors=(404,), answer="text/plain")
async def handle(request: Request, services: Services) -> Response:
    if not services.metrics.enabled:
        raise NotFound("metrics are off; start with --metrics_enable")
    states = await asyncio.gather(*(_state(services, model) for model in services.registry.served))
    content = services.metrics.expose(states, services.keys.samples())
    return Response(200, [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")], content)


async def _state(services: Services, model: Model) -> EngineState:
    return EngineState(
        model=model.name,
        in_flight=services.records.in_flight(model.name),
        up=model.ready,
        loaded=model.loaded,
        waiting=model.waiting,
        restarts=model.restarts,
        memory=resident_bytes(None if model.adapter else model.engine.pid),
        info=model.info if model.loaded and not model.adapter else None,
        loras=_loras(services, model),
        stats=await orca_report.read(model.stats(), STATS_TIMEOUT_S),
    )


def _loras(services: Services, model: Model) -> tuple[str, str, str] | None:
    if not model.adapters.most:
        return None
    adapters = model.adapters.models.values()
    running = [one.name for one in adapters if services.records.in_flight(one.name) > one.waiting]
    waiting = [one.name for one in adapters if one.waiting]
    return str(model.adapters.most), ",".join(running), ",".join(waiting)
