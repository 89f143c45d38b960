"""endpoint-load-metrics: vLLM's load report in the headers of responses, for gateways that ask for it."""

from __future__ import annotations

import asyncio
import json

import pytest

from lean_ovms.api.app import LOAD_REPORT
from lean_ovms.errors import EngineFailure
from lean_ovms.features.vllm_extras import load_report
from lean_ovms.types.engine import EngineStats
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say

CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BUSY = EngineStats(running=2, queued=3, kv_blocks_used=1, kv_blocks_total=4, steps=9, preemptions=0, recoveries=0)


async def reports(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, form: str, path: str = CHAT, **changed: object
) -> list[str]:
    """Returns the header's values in the response to a request that asks for this form."""
    app, engine = await make_app(say("a"))

    async def stats() -> EngineStats:
        return BUSY

    monkeypatch.setattr(engine, "stats", stats)
    response = await post(app, path, {**HELLO, **changed}, **{LOAD_REPORT: form})
    await response.aclose()
    return [value for name, value in response.headers if name == load_report.NAME]


async def test_a_report_in_both_forms(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    text = await reports(make_app, monkeypatch, "text")
    assert text == ["TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3.0"]
    (report,) = await reports(make_app, monkeypatch, "JSON", "/v1/completions", prompt="x")
    form, _, content = report.partition(" ")
    assert form == "JSON"
    assert json.loads(content) == {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3.0}}


@pytest.mark.parametrize(
    ("form", "changed"),
    [("BIN", {}), ("", {}), ("TEXT", {"stream": True}), ("TEXT", {"temperature": 9}), ("TEXT", {"model": "none"})],
)
async def test_nothing_where_there_is_no_report(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, form: str, changed: dict[str, object]
) -> None:
    assert await reports(make_app, monkeypatch, form, **changed) == []


@pytest.mark.parametrize("silent", [False, True])
async def test_an_engine_that_does_not_report_holds_no_response_up(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    monkeypatch.setattr(load_report, "TIMEOUT_S", 0.01)
    app, engine = await make_app(say("a"))

    async def stats() -> EngineStats:
        if silent:
            await asyncio.Event().wait()
        raise EngineFailure("gone")

    monkeypatch.setattr(engine, "stats", stats)
    response = await post(app, CHAT, HELLO, **{LOAD_REPORT: "TEXT"})
    assert load_report.NAME not in dict(response.headers)
    assert (await whole(response))["object"] == "chat.completion"
