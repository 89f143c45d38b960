"""The metrics of speculative decoding, for Prometheus and in responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ...api.services import Services
from ...config import Config
from ...models.model import Model
from ...observability.records import Sample
from ...types import Json, Timings
from ...types.engine import EngineStats
from .feature import METRICS, DraftOptions


def samples(services: Services, served: Iterable[tuple[Model, EngineStats | None]]) -> Iterator[Sample]:
    """Yields the counts of proposed and accepted draft tokens of models that have drafts."""
    for model, stats in served:
        if stats is None or not stats.speculative:
            continue
        labels = (model.name,)
        yield f"{METRICS}drafts_total", labels, stats.drafts
        if stats.drafted is not None:
            yield f"{METRICS}draft_tokens_total", labels, stats.drafted
        yield f"{METRICS}accepted_tokens_total", labels, stats.accepted
        for position, accepted in enumerate(stats.accepted_by_position):
            yield f"{METRICS}accepted_tokens_per_pos_total", (*labels, str(position)), accepted


def of_generation(config: Config) -> Callable[[Timings], Json]:
    """Returns a function that makes vLLM's metrics.speculative_decoding from the timings of a generation."""
    level = config.of(DraftOptions).per_request_spec_decode_metrics

    def made(times: Timings) -> Json:
        if level == "none" or times.drafted is None:
            return {}
        return {"speculative_decoding": _of_drafts(times.drafted, times.accepted, detailed=level == "detailed")}

    return made


def _of_drafts(drafted: Sequence[int], accepted: Sequence[int], *, detailed: bool) -> Json:
    """Returns the numbers of proposed and accepted draft tokens of a generation."""
    steps, kept, longest = Counter(zip(drafted, accepted, strict=True)), Counter(accepted), max(drafted, default=0)
    found: Json = {
        "mean_acceptance_length": 1 + sum(accepted) / max(1, len(drafted)),
        "draft_acceptance_rate": sum(accepted) / max(1, sum(drafted)),
        "acceptance_histogram": [kept[n] for n in range(longest + 1)],
        "acceptance_histogram_by_draft_length": {
            str(length): [steps[length, n] for n in range(length + 1)] for length in sorted(set(drafted))
        },
        "num_spec_steps": len(drafted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_tokens": longest,
    }
    return found | {"per_step_accepted": accepted, "per_step_drafted": drafted} if detailed else found
