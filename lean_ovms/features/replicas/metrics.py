"""The metrics of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...api.services import Services
from ...models.model import Model
from ...observability.records import Sample
from ...types.engine import EngineStats
from ...util.resources import resident_bytes
from .feature import METRIC
from .pool import EnginePool


def samples(services: Services, served: Iterable[tuple[Model, EngineStats | None]]) -> Iterator[Sample]:
    """Yields the metrics of each replica of a model, from the statistics that it reported last."""
    for model, _ in served:
        if model.parent or not model.loaded or not isinstance(model.engine, EnginePool):
            continue
        for number, (one, stats) in enumerate(zip(model.engine.replicas, model.engine.latest, strict=True)):
            labels = (model.name, str(number))
            yield f"{METRIC}up", labels, int(one.state == "ready")
            yield f"{METRIC}requests", labels, one.in_flight
            yield f"{METRIC}restarts_total", labels, one.restarts
            if (memory := resident_bytes(one.pids)) is not None:
                yield f"{METRIC}resident_memory_bytes", labels, memory
            if stats is not None:
                yield f"{METRIC}running", labels, stats.running
                yield f"{METRIC}waiting", labels, stats.queued
                yield f"{METRIC}kv_cache_usage", labels, stats.kv_blocks_used / max(stats.kv_blocks_total, 1)
