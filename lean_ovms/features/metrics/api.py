"""GET /metrics: Prometheus' text format, with --metrics_enable.

https://prometheus.io/docs/instrumenting/exposition_formats/. The engine's statistics are read at each scrape, and
omitted if the engine does not answer within a second (it answers between two steps).
"""

from __future__ import annotations

import asyncio
from itertools import chain

from ...api.fields import RouteDoc
from ...api.services import Services, read_stats
from ...errors import NotFound
from ...models.model import Model
from ...types import Request, Response
from ...util.resources import resident_bytes
from .counts import EngineState, PrometheusMetrics


@RouteDoc("Metrics for Prometheus; needs --metrics_enable", errors=(404,), answer="text/plain")
async def handle(request: Request, services: Services) -> Response:
    if not isinstance(services.metrics, PrometheusMetrics):
        raise NotFound("metrics are off; start the server with --metrics_enable")
    models = services.registry.served
    states = await asyncio.gather(*(_state(services, model) for model in models))
    served = [(model, state.stats) for model, state in zip(models, states, strict=True)]
    samples = chain.from_iterable(make(services, served) for make in services.config.composition.samplers)
    content = services.metrics.expose(states, samples)
    return Response(200, [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")], content)


async def _state(services: Services, model: Model) -> EngineState:
    return EngineState(
        model=model.name,
        in_flight=services.records.in_flight(model.name),
        up=model.ready,
        loaded=model.loaded,
        waiting=model.waiting,
        restarts=model.restarts,
        memory=resident_bytes([] if model.adapter else model.engine.pids),
        info=model.info if model.loaded and not model.adapter else None,
        stats=await read_stats(model.stats()),
    )
