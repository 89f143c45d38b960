"""/metrics is off by default, has OVMS's and vLLM's names, and counts every request and every generation once."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lean_ovms.api.app import App
from lean_ovms.composition import compose
from lean_ovms.engine.protocol import Prefilled
from lean_ovms.errors import EngineFailure, StartError, TooManyRequests, Unavailable
from tests.api.conftest import MakeApp, events, get, parts, post, whole
from tests.fakes import FakeEngine, say

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
UNARY = 'api="V3",interface="REST",method="Unary",name="m"'
STREAM = 'api="V3",interface="REST",method="Stream",name="m"'


async def scraped(app: App) -> dict[str, float]:
    """Returns every sample of a scrape by the beginning of its line."""
    response = await get(app, "/metrics")
    assert response.status == 200
    assert isinstance(response.body, bytes)
    await response.aclose()
    lines = [line for line in response.body.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def make(make_app: MakeApp, *pieces: str, **options: object) -> tuple[App, FakeEngine]:
    return await make_app(lambda _, sampling: say(*pieces, sequences=sampling.n), metrics_enable=True, **options)


async def test_metrics_are_off_unless_asked_for(make_app: MakeApp) -> None:
    app, _ = await make_app()
    assert (await get(app, "/metrics")).status == 404


async def test_requests_are_counted_under_ovms_names(make_app: MakeApp) -> None:
    app, engine = await make(make_app, "a", "b")
    await whole(await post(app, CHAT, HELLO))
    chunks = await events(await post(app, CHAT, {**HELLO, "stream": True}))
    await whole(await post(app, CHAT, {**HELLO, "temperature": 9}))
    await whole(await post(app, CHAT, {**HELLO, "max_tokens": 0}))
    engine.refusal = TooManyRequests("full")
    await whole(await post(app, CHAT, HELLO))
    found = await scraped(app)
    assert found[f"ovms_requests_accepted{{{UNARY}}}"] == 2  # requests without a known model are not counted for it
    assert found[f"ovms_requests_accepted{{{STREAM}}}"] == 1
    assert found[f"ovms_requests_rejected{{{UNARY}}}"] == 1
    assert found[f"ovms_graph_error{{{UNARY}}}"] == 1
    assert 1 < found[f"ovms_responses{{{STREAM}}}"] <= len(chunks)
    assert found['ovms_current_graphs{name="m"}'] == 0
    assert found['ovms_graph_processing_time_us_count{method="Unary",name="m"}'] == 2
    assert found['lean_ovms_request_errors_total{code="queue_full",model_name="m"}'] == 1


async def test_a_refusal_is_one_in_every_form(make_app: MakeApp) -> None:
    app, engine = await make(make_app, "a")
    for refusal in (TooManyRequests("full"), Unavailable("restarting")):
        engine.refusal = refusal
        for path in (CHAT, "/v1/messages", "/api/chat", "/v1/responses"):
            body = HELLO if path != "/v1/responses" else {"model": "m", "input": "hi"}
            response = await post(app, path, {**body, "max_tokens": 5} if path == "/v1/messages" else body)
            assert response.status in (429, 503, 529)
            await response.aclose()
    found = await scraped(app)
    rejected = [found[f"ovms_requests_rejected{{{labels}}}"] for labels in (UNARY, STREAM)]
    accepted = [found[f"ovms_requests_accepted{{{labels}}}"] for labels in (UNARY, STREAM)]
    assert (sum(rejected), sum(accepted)) == (8, 0)


async def test_ovms_buckets_are_there(make_app: MakeApp) -> None:
    app, _ = await make(make_app, "a")
    found = await scraped(app)
    bounds = [re.search(r'le="(.*?)"', name) for name in found if name.startswith("ovms_graph_processing_time_us_b")]
    stream = [found[1] for found in bounds if found][:34]
    assert stream[:4] == ["10", "18", "32", "58"]  # floor(10 * 1.8^i), as in OVMS
    assert stream[-1] == "+Inf"


async def test_generations_are_counted_under_vllm_names(make_app: MakeApp) -> None:
    app, _ = await make(make_app, "a", "b", "c")
    await whole(await post(app, CHAT, HELLO))
    await whole(await post(app, CHAT, {**HELLO, "n": 2}))
    found = await scraped(app)
    model = '{model_name="m"}'
    assert found[f"vllm:prompt_tokens_total{model}"] == 16
    assert found[f"vllm:generation_tokens_total{model}"] == 12
    assert found['vllm:request_success_total{finished_reason="stop",model_name="m"}'] == 3
    assert found[f"vllm:time_to_first_token_seconds_count{model}"] == 2
    assert found[f"vllm:e2e_request_latency_seconds_count{model}"] == 2
    assert found[f"vllm:request_time_per_output_token_seconds_count{model}"] == 2
    assert found[f"vllm:request_generation_tokens_sum{model}"] == 12
    assert 0 < found[f"vllm:inter_token_latency_seconds_count{model}"] <= 6
    assert found[f"vllm:kv_cache_usage_perc{model}"] == 0
    assert found[f"lean_ovms_engine_up{model}"] == 1


async def test_the_times_of_a_generation_are_those_of_its_parts(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda prompt, sampling: [Prefilled(0, 2, 0.0), *say("a", "b")], metrics_enable=True)
    await whole(await post(app, CHAT, HELLO))
    found = await scraped(app)
    names = ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time")
    whole_s, queue_s, prefill_s, decode_s = (found[f'vllm:{name}_seconds_sum{{model_name="m"}}'] for name in names)
    inference_s = found['vllm:request_inference_time_seconds_sum{model_name="m"}']
    assert queue_s > 0
    assert whole_s == pytest.approx(queue_s + inference_s, abs=1e-5)
    assert inference_s == pytest.approx(prefill_s + decode_s, abs=1e-5)
    assert found['vllm:prefix_cache_hits_total{model_name="m"}'] == 2


async def test_who_leaves_is_a_cancellation(make_app: MakeApp) -> None:
    app, _ = await make(make_app, *"abcdefgh")
    body = parts(await post(app, CHAT, {**HELLO, "stream": True}))
    await anext(body)
    assert app.services.records.in_flight("m") == 1
    await body.aclose()
    found = await scraped(app)
    assert found['lean_ovms_cancellations_total{model_name="m"}'] == 1
    assert found['vllm:request_success_total{finished_reason="abort",model_name="m"}'] == 1
    assert found[f'lean_ovms_requests_total{{method="POST",path="{CHAT}",status="499"}}'] == 1
    assert app.services.records.in_flight("m") == 0


async def test_a_failure_in_a_stream_is_an_error_though_the_status_was_200(make_app: MakeApp) -> None:
    app, _ = await make_app([[(0, "a", None)], EngineFailure("it broke")], metrics_enable=True)
    await events(await post(app, CHAT, {**HELLO, "stream": True}))
    found = await scraped(app)
    assert found[f"ovms_graph_error{{{STREAM}}}"] == 1
    assert found['lean_ovms_request_errors_total{code="engine_error",model_name="m"}'] == 1
    assert found['vllm:request_success_total{finished_reason="error",model_name="m"}'] == 1
    assert found['lean_ovms_cancellations_total{model_name="m"}'] == 0


async def test_a_client_cannot_make_series(make_app: MakeApp) -> None:
    app, _ = await make(make_app, "a")
    found = []
    for number in range(20):
        await whole(await get(app, f"/no/such/path/{number}"))
        await whole(await post(app, CHAT, {**HELLO, "model": f"m{number}"}))
        found.append(set(await scraped(app)))
    assert found[1] == found[-1]
    assert not any("m1" in name or "such" in name for name in found[-1])


async def test_a_scrape_has_what_is_known_while_the_engine_restarts(make_app: MakeApp) -> None:
    app, engine = await make(make_app, "a")
    await whole(await post(app, CHAT, HELLO))
    engine.state, engine.restarts = "restarting", 1
    found = await scraped(app)
    assert found['lean_ovms_engine_up{model_name="m"}'] == 0
    assert found['lean_ovms_engine_restarts_total{model_name="m"}'] == 1
    assert found['vllm:prompt_tokens_total{model_name="m"}'] == 8


async def test_prometheus_own_parser_reads_every_family(make_app: MakeApp) -> None:
    app, _ = await make(make_app, "a")
    await whole(await post(app, CHAT, HELLO))
    response = await get(app, "/metrics")
    assert isinstance(response.body, bytes)
    parsed = {family.name for family in text_string_to_metric_families(response.body.decode())}
    missing = {f.name.removesuffix("_total") for f in compose().metrics} - parsed
    assert missing == {"lean_ovms_engine_resident_memory_bytes"} - parsed  # the fake engine has no process


async def test_a_list_of_metrics_leaves_the_others_out(make_app: MakeApp) -> None:
    app, _ = await make(make_app, "a", metrics_list="ovms_requests_accepted, vllm:prompt_tokens,ovms_streams")
    await whole(await post(app, CHAT, {**HELLO, "stream": False}))
    names = {re.split(r"[ {]", name)[0] for name in await scraped(app)}
    assert names == {"ovms_requests_accepted", "vllm:prompt_tokens_total"}


async def test_an_unknown_metric_in_the_list_stops_the_start(make_app: MakeApp) -> None:
    with pytest.raises(StartError, match="no_such_thing"):
        await make(make_app, "a", metrics_list="ovms_requests_accepted,no_such_thing")
    with pytest.raises(StartError, match="--metrics_enable"):
        await make_app(metrics_list="ovms_requests_accepted")


async def samples(app: App, family: str) -> list[tuple[dict[str, str], float]]:
    """Returns the labels and values of a family."""
    response = await get(app, "/metrics")
    assert isinstance(response.body, bytes)
    found = text_string_to_metric_families(response.body.decode())
    return [(sample.labels, sample.value) for one in found if one.name == family for sample in one.samples]


async def test_the_form_of_the_kv_cache_is_shown_as_by_vllm(make_app: MakeApp) -> None:
    app, engine = await make(make_app, "a")
    [(labels, value)] = await samples(app, "vllm:cache_config_info")
    info = engine.info
    assert value == 1
    assert labels == {
        "model_name": "m",
        "block_size": str(info.block_size),
        "num_gpu_blocks": str(info.kv_blocks),
        "cache_dtype": info.kv_precision,
        "enable_prefix_caching": str(info.prefix_caching),
    }


async def test_rejections_are_counted_by_their_reason_where_no_model_is_known_too(make_app: MakeApp) -> None:
    app, engine = await make(make_app, "a", api_key="secret")
    await whole(await post(app, CHAT, HELLO))
    engine.refusal = TooManyRequests("full")
    await whole(await post(app, CHAT, HELLO, authorization="Bearer secret"))
    counted = await samples(app, "lean_ovms_request_errors")
    assert [(labels["code"], labels["model_name"], value) for labels, value in counted] == [
        ("invalid_api_key", "", 1),
        ("queue_full", "m", 1),
    ]


async def test_older_names_of_vllm(make_app: MakeApp) -> None:
    for options in ({}, {"show_hidden_metrics_for_version": "0.9"}):
        app, _ = await make(make_app, "x", **options)
        assert ('vllm:gpu_cache_usage_perc{model_name="m"}' in await scraped(app)) == bool(options)
