"""The client's trace in the log and the response, and spans for a collector."""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lean_ovms.engine.protocol import Prefilled
from lean_ovms.errors import EngineFailure, StartError, TooManyRequests
from lean_ovms.features.traces import observer as traces
from lean_ovms.observability import logging as log
from tests.api.conftest import MakeApp, events, get, post, whole
from tests.collector import PATIENT_S, attributes, collecting
from tests.fakes import say

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
INVALID = ("x", "", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01",
           f"{SAMPLED}, {SAMPLED}", f"00-{TRACE.upper()}-{PARENT}-01", f"{SAMPLED}\n")  # fmt: skip
ENVIRONMENT = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "NO_PROXY": "127.0.0.1"}


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends spans over HTTP. The end of the app waits until they are sent."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(traces, "CLOSE_S", PATIENT_S)


# --- without a collector


@pytest.mark.parametrize("header", [SAMPLED, *INVALID])
async def test_a_valid_trace_of_a_client_is_in_the_access_line_and_in_the_response(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    app, _ = await make_app(access_log=True)
    with caplog.at_level(logging.INFO, "lean_ovms.access"):
        response = await get(app, "/v1/models", traceparent=header)
        await response.aclose()
    [line] = caplog.records
    text, fields = line.getMessage(), orjson.loads(log.JsonLines().format(line))
    if header == SAMPLED:
        assert ("traceparent", SAMPLED) in response.headers
        assert f" trace={TRACE} id=" in text
        assert fields["trace_id"] == TRACE
    else:
        assert "traceparent" not in dict(response.headers)
        assert "trace=" not in text
        assert "trace_id" not in fields


async def test_without_the_extra_the_start_fails_and_says_what_to_install(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "lean_ovms.features.traces.observer")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartError, match=r"--otlp_traces_endpoint needs pip install"):
        await make_app(otlp_traces_endpoint="http://127.0.0.1:4317")


@pytest.mark.parametrize(
    ("variable", "value", "endpoint", "message"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http://127.0.0.1:1", "grpc or http/protobuf"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "127.0.0.1:1", "must be a URL"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1", "http://127.0.0.1:1", "max_queue_size"),
    ],
)
@pytest.mark.slow
async def test_what_cannot_be_sent_to_stops_the_start(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, endpoint: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StartError, match=message):
        await make_app(otlp_traces_endpoint=endpoint)


class Scripted(SpanExporter):
    """Reports these results one after the other."""

    def __init__(self, *results: SpanExportResult) -> None:
        self.results = list(results)

    def export(self, spans: Any) -> SpanExportResult:
        return self.results.pop(0)


def test_a_collector_that_is_away_is_one_line_and_its_return_another(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    exporter = traces._LoggingExporter(Scripted(good, bad, bad, good, good, bad))
    with caplog.at_level(logging.INFO, "lean_ovms.traces"):
        for _ in range(6):
            exporter.export([])
    assert [line.levelname for line in caplog.records] == ["WARNING", "INFO", "WARNING"]


# --- with one


@pytest.mark.slow
@pytest.mark.usefixtures("http")
async def test_a_request_to_a_model_has_a_span_with_vllms_attributes(make_app: MakeApp) -> None:
    script = [Prefilled(0, 2, 0.0), *say("a", "b")]
    with collecting() as collector:
        app, _ = await make_app(script, otlp_traces_endpoint=collector.url)
        sampling = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.25}
        headers = {"traceparent": SAMPLED, "tracestate": "vendor=1", "x_request_id": "mine"}
        answer = await whole(await post(app, CHAT, {**HELLO, **sampling}, **headers))
        for path in ("/health", "/v2/models/m/ready"):  # nothing is computed, so there is no span
            await (await get(app, path)).aclose()
        await app.close()
        [span] = collector.received()
    assert (span.name, span.kind, span.trace_state) == ("llm_request", span.SPAN_KIND_SERVER, "vendor=1")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    found = attributes(span)
    latencies = {name: value for name, value in found.items() if name.startswith("gen_ai.latency.")}
    assert {name: found[name] for name in found.keys() - latencies.keys()} == {
        "gen_ai.request.id": "mine",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.25,
        "gen_ai.request.n": 1,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.prompt_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.completion_tokens": answer["usage"]["completion_tokens"],
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
    }
    names = ("queue", "model_prefill", "model_decode", "model_inference")
    latency = {name.removeprefix("gen_ai.latency."): value for name, value in latencies.items()}
    assert set(latency) == {"e2e", "time_to_first_token", *(f"time_in_{name}" for name in names)}
    assert all(0 <= value <= latency["e2e"] for value in latency.values())
    assert latency["time_in_queue"] + latency["time_in_model_prefill"] == pytest.approx(latency["time_to_first_token"])
    seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert seconds == pytest.approx(latency["e2e"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("http")
async def test_only_errors_of_the_server_are_errors_of_the_span(make_app: MakeApp) -> None:
    with collecting() as collector:
        app, engine = await make_app([[(0, "a", None)], EngineFailure("broken")], otlp_traces_endpoint=collector.url)
        await events(await post(app, CHAT, {**HELLO, "stream": True}))
        engine.refusal = TooManyRequests("full")
        await whole(await post(app, CHAT, HELLO))
        await app.close()
        stream, refused = collector.received()
    assert stream.status.code == stream.status.STATUS_CODE_ERROR
    assert attributes(stream)["error.type"] == stream.status.message
    assert attributes(stream)["http.response.status_code"] == 200
    assert refused.status.code == refused.status.STATUS_CODE_UNSET
    assert (attributes(refused)["error.type"], attributes(refused)["http.response.status_code"]) == ("queue_full", 429)


@pytest.mark.slow
@pytest.mark.usefixtures("http")
async def test_the_trace_of_a_request_without_one_is_in_the_access_line(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,region=x")
    with collecting() as collector, caplog.at_level(logging.INFO, "lean_ovms.access"):
        app, _ = await make_app(say("a"), access_log=True, otlp_traces_endpoint=collector.url)
        response = await post(app, CHAT, HELLO)
        await whole(response)
        await app.close()
        [resource] = collector.requests.get(timeout=PATIENT_S).resource_spans
    [span] = resource.scope_spans[0].spans
    assert span.parent_span_id == b""
    assert f" trace={span.trace_id.hex()} id=" in caplog.messages[-1]
    assert "traceparent" not in dict(response.headers)
    named = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert (named["service.name"], named["region"]) == ("mine", "x")


@pytest.mark.slow
@pytest.mark.usefixtures("http")
async def test_what_is_not_sampled_has_no_span(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = traces._attributes
    monkeypatch.setattr(traces, "_attributes", lambda record: made.append(record) or real(record))
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with collecting() as collector:
        app, _ = await make_app(lambda *_: say("a"), otlp_traces_endpoint=collector.url)
        await whole(await post(app, CHAT, HELLO))
        response = await post(app, CHAT, HELLO, traceparent=NOT_SAMPLED)
        assert dict(response.headers)["traceparent"] == NOT_SAMPLED
        await whole(response)
        await whole(await post(app, CHAT, HELLO, traceparent=SAMPLED))
        await app.close()
        [span] = collector.received()
    assert span.trace_id.hex() == TRACE
    assert len(made) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("http")
async def test_a_collector_that_does_not_answer_delays_neither_a_request_nor_the_end(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "CLOSE_S", 0.1)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    with collecting(hangs=True) as collector:
        app, _ = await make_app(lambda *_: say("a"), otlp_traces_endpoint=collector.url)
        assert (await whole(await post(app, CHAT, HELLO)))["choices"]
        assert collector.arrived.wait(PATIENT_S)
        assert (await whole(await post(app, CHAT, HELLO)))["choices"]
        await app.close()
        assert collector.requests.empty()  # the response has not been sent yet
