"""What the metrics show of an engine's counts."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from lean_ovms.observability.metrics import EngineState, Metrics
from lean_ovms.observability.records import GenerationRecord
from lean_ovms.types.engine import EngineStats

STATS = EngineStats(running=0, queued=0, kv_blocks_used=0, kv_blocks_total=1, steps=9, preemptions=0, recoveries=0)
GUESSES = "vllm:spec_decode_num_"


def guesses(stats: EngineStats) -> dict[str, float]:
    """The series of speculative decoding, with the place in the draft behind the name."""
    state = EngineState(model="m", in_flight=0, up=True, restarts=0, memory=1, stats=stats)
    text = Metrics("").expose([state]).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {s.name.removeprefix(GUESSES) + s.labels.get("position", ""): s for s in samples if GUESSES in s.name}
    assert {sample.labels["model_name"] for sample in found.values()} <= {"m"}
    return {name: sample.value for name, sample in found.items()}


def test_guesses_are_shown_as_by_vllm_where_there_is_speculative_decoding() -> None:
    assert guesses(STATS) == {}
    speculative = replace(STATS, speculative=True)
    assert guesses(speculative) == {"drafts_total": 0, "accepted_tokens_total": 0}
    counted = replace(speculative, drafts=5, drafted=20, accepted=7, accepted_by_position=[4, 2, 1])
    assert guesses(counted) == {
        "drafts_total": 5,
        "draft_tokens_total": 20,
        "accepted_tokens_total": 7,
        "accepted_tokens_per_pos_total0": 4,
        "accepted_tokens_per_pos_total1": 2,
        "accepted_tokens_per_pos_total2": 1,
    }


def values(listed: str, *, hidden: bool) -> dict[str, float]:
    metrics = Metrics(listed, hidden=hidden)
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
