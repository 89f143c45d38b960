"""The metrics of draft tokens."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.features.drafting.feature import FEATURE
from lean_ovms.features.drafting.metrics import samples
from lean_ovms.features.metrics.counts import EngineState, PrometheusMetrics
from lean_ovms.models.text_model import TextModel
from lean_ovms.types.engine import EngineStats

STATS = EngineStats(running=0, queued=0, kv_blocks_used=0, kv_blocks_total=1, steps=9, preemptions=0, recoveries=0)
GUESSES = "vllm:spec_decode_num_"


def guesses(stats: EngineStats) -> dict[str, float]:
    """Returns the series of speculative decoding. Names have the position in the draft at their end."""
    app = App(Config(fake_engine=True, model_name="m"), [TextModel(Config(fake_engine=True, model_name="m"))])
    metrics = PrometheusMetrics(FEATURE.metrics)
    state = EngineState(model="m", in_flight=0, up=True, restarts=0, memory=1, stats=stats)
    text = metrics.expose([state], samples(app.services, [(app.registry.models["m"], stats)])).decode()
    shown = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {s.name.removeprefix(GUESSES) + s.labels.get("position", ""): s for s in shown if GUESSES in s.name}
    assert {sample.labels["model_name"] for sample in found.values()} <= {"m"}
    return {name: sample.value for name, sample in found.items()}


def test_guesses_are_shown_as_by_vllm_where_there_is_speculative_decoding() -> None:
    assert guesses(STATS) == {}
    speculative = replace(STATS, speculative=True)
    assert guesses(speculative) == {"drafts_total": 0, "accepted_tokens_total": 0}
    counted = replace(speculative, drafts=5, drafted=20, accepted=7, accepted_by_position=[4, 2, 1])
    assert guesses(counted) == {
        "drafts_total": 5, "draft_tokens_total": 20, "accepted_tokens_total": 7,
        "accepted_tokens_per_pos_total0": 4, "accepted_tokens_per_pos_total1": 2,
        "accepted_tokens_per_pos_total2": 1,
    }  # fmt: skip
