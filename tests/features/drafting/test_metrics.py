"""Metrics of draft tokens, and those in responses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.engine.protocol import Drafted
from lean_ovms.features.drafting.feature import FEATURE
from lean_ovms.features.drafting.metrics import samples
from lean_ovms.features.metrics.counts import EngineState, PrometheusMetrics
from lean_ovms.models.text_model import TextModel
from lean_ovms.types.engine import EngineStats
from tests.api.conftest import MakeApp, events, post, whole
from tests.api.generation.test_timings import later
from tests.fakes import say

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


PATHS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", PATHS)
async def test_vllms_metrics_of_draft_tokens(make_app: MakeApp, path: str) -> None:
    script = later([Drafted(0, [3, 3, 1, 3], [2, 0, 1, 0]), *say("abc", "de")])
    summary = {
        "mean_acceptance_length": 1.75, "draft_acceptance_rate": 0.3, "acceptance_histogram": [2, 1, 1, 0],
        "acceptance_histogram_by_draft_length": {"1": [0, 1], "3": [2, 0, 1, 0]}, "num_spec_steps": 4,
        "num_accepted_draft_tokens": 3, "num_draft_tokens": 10, "num_spec_tokens": 3,
    }  # fmt: skip
    app, _ = await make_app(script, per_request_spec_decode_metrics="summary")
    assert (await whole(await post(app, path, PATHS[path])))["metrics"] == {"speculative_decoding": summary}
    app, _ = await make_app(script, per_request_spec_decode_metrics="detailed", enable_per_request_metrics=True)
    detailed = {**summary, "per_step_accepted": [2, 0, 1, 0], "per_step_drafted": [3, 3, 1, 3]}
    body = {**PATHS[path], "stream": True, "stream_options": {"include_usage": True}}
    chunks = (await events(await post(app, path, body)))[:-1]
    assert [chunk for chunk in chunks if "metrics" in chunk] == chunks[-1:]
    assert chunks[-1]["metrics"]["speculative_decoding"] == detailed
    assert chunks[-1]["metrics"]["time_to_first_token_ms"] == 10.0
    app, _ = await make_app(later([Drafted(0, [], []), *say("a")]), per_request_spec_decode_metrics="summary")
    none = (await whole(await post(app, path, PATHS[path])))["metrics"]["speculative_decoding"]
    assert (none["acceptance_histogram"], none["mean_acceptance_length"], none["num_spec_steps"]) == ([0], 1, 0)


@pytest.mark.parametrize("path", PATHS)
async def test_there_are_no_metrics_of_draft_tokens_without_any_and_of_several_choices(
    make_app: MakeApp, path: str
) -> None:
    drafted = [Drafted(0, [3], [2]), *say("abc")]
    for script, level, n in ((drafted, "none", 1), (say("abc"), "summary", 1), (say("a", sequences=2), "summary", 2)):
        app, _ = await make_app(list(script), per_request_spec_decode_metrics=level)
        assert "metrics" not in await whole(await post(app, path, {**PATHS[path], "n": n}))
