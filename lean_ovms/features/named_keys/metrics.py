"""The metrics of named API keys, at a scrape."""

from __future__ import annotations

from collections.abc import Iterable

from ...api.services import Services
from ...models.model import Model
from ...observability.metrics import Sample
from ...types.engine import EngineStats
from .keys import NamedKeys


def samples(services: Services, served: Iterable[tuple[Model, EngineStats | None]]) -> Iterable[Sample]:
    """Returns what was used with each named key; nothing where the keys have no names."""
    return services.keys.samples() if isinstance(services.keys, NamedKeys) else ()
