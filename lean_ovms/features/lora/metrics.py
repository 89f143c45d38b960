"""The metric of adapters for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from ...api.services import Services
from ...models.model import Model
from ...observability.records import Sample
from ...types.engine import EngineStats
from .feature import REQUESTS


def samples(services: Services, served: Iterable[tuple[Model, EngineStats | None]]) -> Iterator[Sample]:
    """Yields for each model that may have adapters which of them are running, and for which requests wait."""
    for model, _ in served:
        if not model.adapters.most:
            continue
        adapters = model.adapters.models.values()
        running = [one.name for one in adapters if services.records.in_flight(one.name) > one.waiting]
        waiting = [one.name for one in adapters if one.waiting]
        yield REQUESTS, (model.name, str(model.adapters.most), ",".join(running), ",".join(waiting)), time.time()
