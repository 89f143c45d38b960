"""The metrics of an engine's counts."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from lean_ovms.features.metrics.counts import EngineState, PrometheusMetrics
from lean_ovms.features.metrics.feature import FAMILIES
from lean_ovms.observability.records import GenerationRecord
from lean_ovms.types.engine import EngineStats

STATS = EngineStats(running=0, queued=0, kv_blocks_used=0, kv_blocks_total=1, steps=9, preemptions=0, recoveries=0)


def values(listed: str, *, hidden: bool) -> dict[str, float]:
    metrics = PrometheusMetrics(FAMILIES, listed, hidden=hidden)
    stats = replace(STATS, kv_blocks_used=1, kv_blocks_total=2)
    state = EngineState(model="m", in_flight=0, up=True, restarts=0, memory=1, stats=stats)
    record = GenerationRecord(
        engine_id=1, prompt_tokens=9, completion_tokens=1, ttft_s=1, seconds=1, decode_s=0, finish_reasons=("stop",),
        cached_tokens=4,
    )  # fmt: skip
    metrics.generation_finished("m", record, None)
    text = metrics.expose([state]).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {one.name: one.value for one in samples if one.labels.get("model_name") == "m"}


def test_older_names_are_shown_where_they_are_asked_for() -> None:
    older = {
        "vllm:gpu_cache_usage_perc": 0.5,
        "vllm:gpu_prefix_cache_queries_total": 9,
        "vllm:gpu_prefix_cache_hits_total": 4,
    }
    assert older.items() <= values("", hidden=True).items()
    assert values("", hidden=False).keys().isdisjoint(older)
    assert values("vllm:kv_cache_usage_perc", hidden=True) == {
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:gpu_cache_usage_perc": 0.5,
    }
