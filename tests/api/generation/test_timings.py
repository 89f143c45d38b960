"""llama.cpp's timings, timings_per_token and return_progress, on every endpoint that generates text."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.engine.protocol import Drafted, Prefilled, Progress
from lean_ovms.types import SamplingParams
from tests.api.conftest import MakeApp, events, parts, post, warnings_of, whole
from tests.fakes import Script, say

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
HI = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: HI,
    COMPLETIONS: {"prompt": "user:hi;"},
    RESPONSES: {"input": "hi", "store": False},
    MESSAGES: {"max_tokens": 20, **HI},
}
PATHS = (CHAT, COMPLETIONS)
"""Endpoints whose events have no names."""
PROMPT = 8
"""The number of prompt tokens of each body."""
each_path = pytest.mark.parametrize("path", PATHS)
every_path = pytest.mark.parametrize("path", BODIES)


def later(script: Script) -> Any:
    """Returns a script that reports the prompt's progress first, and gives the reader a turn between two reports."""

    def made(prompt: str, sampling: SamplingParams) -> Script:
        found: Script = []
        if sampling.report_progress:
            found += [Progress(0, PROMPT // 2, 2, 5.0), [], [], Progress(0, PROMPT, 2, 10.0), [], []]
        return [*found, Prefilled(0, 2, 10.0), *script]

    return made


async def streamed(app: App, path: str, **fields: Any) -> list[Any]:
    """Returns the events of a stream without the last [DONE], and checks that there is no Warning header."""
    response = await post(app, path, {**BODIES[path], "stream": True, **fields})
    assert not warnings_of(response)
    blocks = b"".join([part async for part in parts(response)]).removesuffix(b"data: [DONE]\n\n").split(b"\n\n")[:-1]
    return [orjson.loads(block.partition(b"data: ")[2]) for block in blocks]


def timings_of(event: dict[str, Any]) -> Any:
    """Returns the timings of an event or of the response in it, None if it has none."""
    return event.get("response", event).get("timings")


def check(timings: dict[str, Any], predicted: int) -> None:
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (2, PROMPT - 2, predicted)
    assert (timings["prompt_ms"], timings["prompt_per_second"]) == (10.0, 600.0)
    assert timings["prompt_per_token_ms"] == pytest.approx(10 / 6, abs=0.001)
    if timings["predicted_ms"]:
        expected = 1000 * (predicted - 1) / timings["predicted_ms"]
        assert timings["predicted_per_second"] == pytest.approx(expected, rel=0.5)


@every_path
@pytest.mark.parametrize("field", ["timings", "timings_per_token"])
async def test_timings_of_a_whole_response(make_app: MakeApp, path: str, field: str) -> None:
    app, _ = await make_app(later(say("abc", "de")))
    body = await whole(await post(app, path, {**BODIES[path], field: True}))
    check(body["timings"], 6)
    assert path not in PATHS or body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert "timings" not in await whole(await post(app, path, BODIES[path]))


@each_path
async def test_timings_tell_of_draft_tokens_where_there_were_some(make_app: MakeApp, path: str) -> None:
    for drafted, expected in (([Drafted(0, [5], [1]), Drafted(0, [4], [3])], (9, 4)), ([], (None, None))):
        app, _ = await make_app(later([*drafted, *say("abc", "de")]))
        timings = (await whole(await post(app, path, {**BODIES[path], "timings": True})))["timings"]
        assert (timings.get("draft_n"), timings.get("draft_n_accepted")) == expected


@every_path
async def test_timings_at_the_end_of_a_stream(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later(say("abc", "de")))
    for usage in (False, True) if path in PATHS else (False,):
        options = {"stream_options": {"include_usage": usage}} if path in PATHS else {}
        found = await streamed(app, path, timings=True, **options)
        timed = [event for event in found if timings_of(event)]
        check(timings_of(timed[-1]), 6)
        if path in PATHS:
            assert timed == found[-2 if usage else -1 :]
        else:
            assert [event["type"] for event in timed] == [
                {RESPONSES: "response.completed", MESSAGES: "message_delta"}[path]
            ]
            assert path != RESPONSES or timed[0]["timings"] == timed[0]["response"]["timings"]


@every_path
async def test_timings_in_every_chunk_of_text(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later(say("abc", "de")))
    found = await streamed(app, path, timings_per_token=True)
    counts = [event["timings"]["predicted_n"] for event in found if path in PATHS or "timings" in event]
    assert counts == sorted(counts)
    assert {3, 6} <= {*counts}


async def test_timings_of_several_prompts_are_of_all(make_app: MakeApp) -> None:
    app, _ = await make_app(later(say("abc")))
    timings = (await whole(await post(app, COMPLETIONS, {"prompt": ["12345678"] * 2, "timings": True})))["timings"]
    assert (timings["prompt_n"], timings["prompt_ms"], timings["predicted_n"]) == (2 * (PROMPT - 2), 10.0, 8)


async def test_a_prompt_without_a_report_has_no_rate(make_app: MakeApp) -> None:
    app, _ = await make_app(say("abc"))
    timings = (await whole(await post(app, COMPLETIONS, {"prompt": "12345678", "timings": True})))["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["prompt_ms"]) == (0, PROMPT, 0.0)
    assert timings["prompt_per_second"] == 0.0


@every_path
async def test_progress_of_the_prompt_in_a_stream(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(later(say("abc", "de")), capable=True)
    found = await streamed(app, path, return_progress=True)
    assert engine.submitted[0][1].report_progress
    shown = [event for event in found if "prompt_progress" in event]
    assert [event["prompt_progress"] for event in shown] == [
        {"total": PROMPT, "cache": 2, "processed": PROMPT // 2, "time_ms": 5},
        {"total": PROMPT, "cache": 2, "processed": PROMPT, "time_ms": 10},
    ]
    if path == CHAT:
        assert [event["choices"][0]["delta"] for event in shown] == [{"role": "assistant", "content": None}] * 2
    elif path == COMPLETIONS:
        assert [event["choices"][0]["text"] for event in shown] == [""] * 2
    else:
        assert [event["type"] for event in shown] == ["ping" if path == MESSAGES else "response.in_progress"] * 2
        assert not any("prompt_progress" in event for event in await streamed(app, path))
    if path in PATHS:
        assert found[: len(shown)] == shown
        assert all(set(event) >= {"id", "object", "created", "model"} for event in found)


async def test_progress_that_came_with_the_first_token_is_sent_before_it(make_app: MakeApp) -> None:
    app, _ = await make_app([Progress(0, PROMPT, 0, 1.0), *say("abc")], capable=True)
    found = await streamed(app, CHAT, return_progress=True)
    assert [event.get("prompt_progress", {}).get("processed") for event in found] == [PROMPT, None, None]


@each_path
async def test_an_engine_that_does_not_know_the_progress_is_said_to(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(later(say("abc")))
    response = await post(app, path, {**BODIES[path], "stream": True, "return_progress": True})
    [warning] = warnings_of(response)
    assert "return_progress is not supported and was ignored" in warning
    assert not any("prompt_progress" in event for event in await events(response) if event != "[DONE]")
    assert not engine.submitted[0][1].report_progress


@each_path
async def test_vllms_metrics_of_a_request(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(later(say("abc", "de")), enable_per_request_metrics=True)
    found = (await whole(await post(app, path, BODIES[path])))["metrics"]
    assert found.keys() == {
        "generation_time_ms", "mean_itl_ms", "time_to_first_token_ms", "queue_time_ms", "tokens_per_second"
    }  # fmt: skip
    assert found["time_to_first_token_ms"] == 10.0
    assert found["mean_itl_ms"] == pytest.approx(found["generation_time_ms"] / 5, abs=0.001)
    assert found["queue_time_ms"] >= 0
    seconds = (10 + found["generation_time_ms"]) / 1000
    assert found["tokens_per_second"] == pytest.approx(6 / seconds, rel=0.01)
    chunks = await streamed(app, path, stream_options={"include_usage": True})
    assert [chunk for chunk in chunks if "metrics" in chunk] == chunks[-1:]
    assert chunks[-1]["metrics"]["time_to_first_token_ms"] == 10.0
    app, _ = await make_app(say("abc", sequences=2), enable_per_request_metrics=True)
    assert "metrics" not in await whole(await post(app, path, {**BODIES[path], "n": 2}))


async def test_metrics_have_no_times_that_the_engine_does_not_report(make_app: MakeApp) -> None:
    app, _ = await make_app(say("a"), enable_per_request_metrics=True)
    body = await whole(await post(app, COMPLETIONS, {"prompt": "a"}))
    assert body["metrics"].keys() == {"generation_time_ms", "mean_itl_ms"}
    assert "metrics" not in await whole(await post(app, COMPLETIONS, {"prompt": ["a", "b"]}))
