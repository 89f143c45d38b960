"""The metrics of speculative decoding, at a scrape."""

from __future__ import annotations

from collections.abc import Iterator

from ...api.services import Services
from ...models.model import Model
from ...observability.metrics import Sample
from ...types.engine import EngineStats
from .feature import METRICS


def samples(services: Services, model: Model, stats: EngineStats | None) -> Iterator[Sample]:
    """Yields what became of the drafts of a model that has some."""
    if stats is None or not stats.speculative:
        return
    labels = (model.name,)
    yield f"{METRICS}drafts_total", labels, stats.drafts
    if stats.drafted is not None:
        yield f"{METRICS}draft_tokens_total", labels, stats.drafted
    yield f"{METRICS}accepted_tokens_total", labels, stats.accepted
    for position, accepted in enumerate(stats.accepted_by_position):
        yield f"{METRICS}accepted_tokens_per_pos_total", (*labels, str(position)), accepted
