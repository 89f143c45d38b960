"""llama.cpp's timings, timings_per_token and return_progress, on every endpoint that generates text."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.engine.protocol import Drafted, Prefilled, Progress
from lean_ovms.types import SamplingParams
from tests.api.conftest import MakeApp, events, parts, post, whole
from tests.fakes import Script, say
from tests.features.anthropic.conftest import stream as named_events

PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "user:hi;"},
}
MESSAGES = {"max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}
NAMED = {"/v1/responses": {"input": "hi", "store": False}, "/v1/messages": MESSAGES}
"""Endpoints whose events have names."""
PROMPT = 8
"""The number of prompt tokens in both tests."""


def later(script: Script) -> Any:
    """Returns a script that reports the prompt's progress first, and gives the reader a turn between two reports."""

    def made(prompt: str, sampling: SamplingParams) -> Script:
        found: Script = []
        if sampling.report_progress:
            found += [Progress(0, PROMPT // 2, 2, 5.0), [], [], Progress(0, PROMPT, 2, 10.0), [], []]
        return [*found, Prefilled(0, 2, 10.0), *script]

    return made


def check(timings: dict[str, Any], predicted: int) -> None:
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (2, PROMPT - 2, predicted)
    assert (timings["prompt_ms"], timings["prompt_per_second"]) == (10.0, 600.0)
    assert timings["prompt_per_token_ms"] == pytest.approx(10 / 6, abs=0.001)
    if timings["predicted_ms"]:
        expected = 1000 * (predicted - 1) / timings["predicted_ms"]
        assert timings["predicted_per_second"] == pytest.approx(expected, rel=0.5)


@pytest.mark.parametrize("path", PATHS | NAMED)
@pytest.mark.parametrize("field", ["timings", "timings_per_token"])
async def test_timings_of_a_whole_response(make_app: MakeApp, path: str, field: str) -> None:
    app, _ = await make_app(later(say("abc", "de")))
    asked = (PATHS | NAMED)[path]
    body = await whole(await post(app, path, {**asked, field: True}))
    check(body["timings"], 6)
    assert path in NAMED or body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert "timings" not in await whole(await post(app, path, asked))


@pytest.mark.parametrize("path", PATHS)
async def test_timings_tell_of_draft_tokens_where_there_were_some(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later([Drafted(0, [5], [1]), Drafted(0, [4], [3]), *say("abc", "de")]))
    timings = (await whole(await post(app, path, {**PATHS[path], "timings": True})))["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (9, 4)
    app, _ = await make_app(later(say("abc", "de")))
    assert "draft_n" not in (await whole(await post(app, path, {**PATHS[path], "timings": True})))["timings"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("usage", [False, True])
async def test_timings_at_the_end_of_a_stream(make_app: MakeApp, path: str, usage: bool) -> None:
    app, _ = await make_app(later(say("abc", "de")))
    options = {"stream": True, "stream_options": {"include_usage": usage}}
    found = (await events(await post(app, path, {**PATHS[path], **options, "timings": True})))[:-1]
    timed = [event for event in found if "timings" in event]
    check(timed[-1]["timings"], 6)
    assert timed == found[-2:] if usage else timed == found[-1:]


@pytest.mark.parametrize("path", PATHS)
async def test_timings_in_every_chunk(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later(say("abc", "de")))
    body = {**PATHS[path], "stream": True, "timings_per_token": True}
    found = (await events(await post(app, path, body)))[:-1]
    counts = [event["timings"]["predicted_n"] for event in found]
    assert counts == sorted(counts)
    assert (len(counts) >= 2, counts[0] > 0, counts[-1]) == (True, True, 6)


async def test_timings_of_several_prompts_are_of_all(make_app: MakeApp) -> None:
    app, _ = await make_app(later(say("abc")))
    body = await whole(await post(app, "/v1/completions", {"prompt": ["12345678", "12345678"], "timings": True}))
    timings = body["timings"]
    assert (timings["prompt_n"], timings["prompt_ms"], timings["predicted_n"]) == (2 * (PROMPT - 2), 10.0, 8)


async def test_a_prompt_without_a_report_has_no_rate(make_app: MakeApp) -> None:
    app, _ = await make_app(say("abc"))
    timings = (await whole(await post(app, "/v1/completions", {"prompt": "12345678", "timings": True})))["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["prompt_ms"]) == (0, PROMPT, 0.0)
    assert timings["prompt_per_second"] == 0.0


@pytest.mark.parametrize("path", PATHS)
async def test_progress_of_the_prompt_in_a_stream(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(later(say("abc", "de")), capable=True)
    response = await post(app, path, {**PATHS[path], "stream": True, "return_progress": True})
    assert not [header for header in response.headers if header[0] == "Warning"]
    found = (await events(response))[:-1]
    assert engine.submitted[0][1].report_progress
    assert [event.get("prompt_progress") for event in found[:3]] == [
        {"total": PROMPT, "cache": 2, "processed": PROMPT // 2, "time_ms": 5},
        {"total": PROMPT, "cache": 2, "processed": PROMPT, "time_ms": 10},
        None,
    ]
    if "chat" in path:
        assert [event["choices"][0]["delta"] for event in found[:3]] == [
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": None},
            {"content": "abc"},
        ]
    else:
        assert [event["choices"][0]["text"] for event in found[:3]] == ["", "", ""]
    assert all(set(event) >= {"id", "object", "created", "model"} for event in found)


async def test_progress_that_came_with_the_first_token_is_sent_before_it(make_app: MakeApp) -> None:
    app, _ = await make_app([Progress(0, PROMPT, 0, 1.0), *say("abc")], capable=True)
    body = {**PATHS["/v1/chat/completions"], "stream": True, "return_progress": True}
    found = (await events(await post(app, "/v1/chat/completions", body)))[:-1]
    assert [event.get("prompt_progress", {}).get("processed") for event in found] == [PROMPT, None, None]


@pytest.mark.parametrize("path", PATHS)
async def test_an_engine_that_does_not_know_the_progress_is_said_to(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(later(say("abc")))
    response = await post(app, path, {**PATHS[path], "stream": True, "return_progress": True})
    [warning] = [value for name, value in response.headers if name == "Warning"]
    assert "return_progress is not supported and was ignored" in warning
    assert not any("prompt_progress" in event for event in await events(response) if event != "[DONE]")
    assert not engine.submitted[0][1].report_progress


async def named(app: App, path: str, **fields: Any) -> list[tuple[str, Any]]:
    """Returns the events of a stream with their names, without the final [DONE] of responses."""
    response = await post(app, path, {**NAMED[path], "stream": True, **fields})
    assert not [header for header in response.headers if header[0] == "Warning"]
    if path == "/v1/messages":
        return await named_events(response)
    blocks = b"".join([part async for part in parts(response)]).split(b"\n\n")[:-2]
    return [(data["type"], data) for data in (orjson.loads(block.partition(b"data: ")[2]) for block in blocks)]


@pytest.mark.parametrize("path", NAMED)
async def test_timings_at_the_end_of_a_stream_of_named_events(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later(say("abc", "de")))
    [(name, data)] = [event for event in await named(app, path, timings=True) if "timings" in repr(event[1])]
    assert name == {"/v1/responses": "response.completed", "/v1/messages": "message_delta"}[path]
    check(data.get("response", data)["timings"], 6)


@pytest.mark.parametrize("path", NAMED)
async def test_timings_in_the_named_events_of_text(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later(say("abc", "de")))
    found = await named(app, path, timings_per_token=True)
    counts = [data["timings"]["predicted_n"] for _, data in found if "timings" in data]
    assert counts == sorted(counts)
    assert {3, 6} <= {*counts}


@pytest.mark.parametrize("path", NAMED)
async def test_progress_of_the_prompt_in_a_stream_of_named_events(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later(say("abc", "de")), capable=True)
    found = await named(app, path, return_progress=True)
    names = [name for name, data in found if "prompt_progress" in data]
    assert names == (["ping"] if path == "/v1/messages" else ["response.in_progress"]) * 2
    assert [data["prompt_progress"]["processed"] for _, data in found if "prompt_progress" in data] == [4, 8]
    without = [data for _, data in await named(app, path) if "prompt_progress" in data]
    assert without == []


@pytest.mark.parametrize("path", PATHS)
async def test_vllms_metrics_of_a_request(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later(say("abc", "de")), enable_per_request_metrics=True)
    found = (await whole(await post(app, path, PATHS[path])))["metrics"]
    assert found.keys() == {
        "generation_time_ms", "mean_itl_ms", "time_to_first_token_ms", "queue_time_ms", "tokens_per_second"
    }  # fmt: skip
    assert found["time_to_first_token_ms"] == 10.0
    assert found["mean_itl_ms"] == pytest.approx(found["generation_time_ms"] / 5, abs=0.001)
    assert found["queue_time_ms"] >= 0
    seconds = (10 + found["generation_time_ms"]) / 1000
    assert found["tokens_per_second"] == pytest.approx(6 / seconds, rel=0.01)
    body = {**PATHS[path], "stream": True, "stream_options": {"include_usage": True}}
    chunks = (await events(await post(app, path, body)))[:-1]
    assert [chunk for chunk in chunks if "metrics" in chunk] == chunks[-1:]
    assert chunks[-1]["metrics"]["time_to_first_token_ms"] == 10.0
    app, _ = await make_app(say("abc", sequences=2), enable_per_request_metrics=True)
    assert "metrics" not in await whole(await post(app, path, {**PATHS[path], "n": 2}))


async def test_metrics_have_no_times_that_the_engine_does_not_report(make_app: MakeApp) -> None:
    app, _ = await make_app(say("a"), enable_per_request_metrics=True)
    body = await whole(await post(app, "/v1/completions", {"prompt": "a"}))
    assert body["metrics"].keys() == {"generation_time_ms", "mean_itl_ms"}
    assert "metrics" not in await whole(await post(app, "/v1/completions", {"prompt": ["a", "b"]}))
