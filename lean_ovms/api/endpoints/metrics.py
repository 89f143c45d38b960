"""GET /metrics: Prometheus' text format, with --metrics_enable.

https://prometheus.io/docs/instrumenting/exposition_formats/. The engine's own figures are asked for at each scrape,
and left out when it does not answer within a second (it answers between two steps).
"""

from __future__ import annotations

import asyncio

from ...errors import NotFound, RequestError
from ...model import Model
from ...shapes import EngineStats, Request, Response
from ..app import App
from ..routes import Route

PATIENCE_S = 1.0


async def handle(request: Request, app: App) -> Response:
    if not app.metrics.enabled:
        raise NotFound("metrics are off; start with --metrics_enable")
    models = list(app.models.values())
    for model, stats in zip(models, await asyncio.gather(*map(_stats, models)), strict=True):
        app.metrics.engine(model.name, stats, model.engine.restarts)
    return Response(200, [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")], app.metrics.expose())


ROUTES = [Route("GET", "/metrics", handle, "open")]


async def _stats(model: Model) -> EngineStats | None:
    try:
        return await asyncio.wait_for(model.stats(), PATIENCE_S)
    except (RequestError, asyncio.TimeoutError):
        return None
