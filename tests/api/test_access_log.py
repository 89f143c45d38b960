"""One log line for each exchange when it has ended: the client, the request, its outcome, its duration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from lean_ovms.api.app import App
from lean_ovms.api.response import whole_body
from lean_ovms.errors import EngineFailure
from lean_ovms.observability.logging import Access, JsonLines
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, events, get, parts, post, whole
from tests.fakes import say
from tests.waiting import cancel

CHAT = "/v1/chat/completions"
SECRET = "what nobody else may read"
HELLO = {"model": "m", "messages": [{"role": "user", "content": SECRET}]}


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """Collects everything that is logged, except the loading of models."""
    logger, found = logging.getLogger("lean_ovms"), list[logging.LogRecord]()
    handler, level = logging.Handler(), logger.level
    handler.emit = found.append  # type: ignore[method-assign]
    handler.addFilter(lambda record: record.name != "lean_ovms.models")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def only(records: list[logging.LogRecord]) -> dict[str, Any]:
    """Returns the fields of the only line from its JSON, and checks that its text says the same."""
    [record] = [r for r in records if isinstance(r.msg, Access)]
    fields: dict[str, Any] = orjson.loads(JsonLines().format(record))
    text = record.getMessage()
    assert f" {fields['status']} {fields['bytes']} B " in text
    assert fields["request_id"] in text
    return fields


async def logged(make_app: MakeApp, *pieces: str, **options: Any) -> App:
    app, _ = await make_app(lambda _, sampling: say(*pieces, sequences=sampling.n), access_log=True, **options)
    return app


async def test_an_answer_to_head_has_no_bytes(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    app = await logged(make_app, "a")
    response = await app.handle(Request("HEAD", "/v1/models"))
    assert len(await whole_body(response)) > 100
    assert (only(lines)["status"], only(lines)["bytes"]) == (200, 0)


async def test_a_whole_answer(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    app = await logged(make_app, "a", "b")
    response = await post(app, CHAT, HELLO, x_request_id="mine")
    assert lines == []  # the transport has not sent the response yet
    await whole(response)
    line = only(lines)
    assert isinstance(response.body, bytes)
    assert (line["request_id"], line["method"], line["path"], line["status"]) == ("mine", "POST", CHAT, 200)
    assert line["bytes"] == len(response.body)
    assert (line["model"], line["stream"]) == ("m", False)
    assert line["prompt_tokens"] == len(f"user:{SECRET};")
    assert (line["completion_tokens"], line["finish"], line["engine_ids"]) == (3, ["stop"], [1])
    assert 0 < line["ttft_ms"] <= line["ms"]


async def test_a_stream(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    app = await logged(make_app, "a", "b")
    response = await post(app, CHAT, {**HELLO, "stream": True, "n": 2})
    sent = sum([len(part) async for part in parts(response)])
    line = only(lines)
    assert (line["stream"], line["status"], line["bytes"]) == (True, 200, sent)
    assert (line["completion_tokens"], line["finish"]) == (6, ["stop", "stop"])


async def test_several_prompts_are_one_line(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    app = await logged(make_app, "a")
    await whole(await post(app, "/v1/completions", {"model": "m", "prompt": ["one", "three"]}))
    line = only(lines)
    assert (line["prompt_tokens"], line["completion_tokens"], len(line["engine_ids"])) == (8, 4, 2)


async def test_a_client_that_leaves_a_stream_is_a_499(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    app = await logged(make_app, *"abcdefgh")
    body = parts(await post(app, CHAT, {**HELLO, "stream": True}))
    first = await anext(body)
    await body.aclose()
    line = only(lines)
    assert (line["status"], line["bytes"], line["finish"]) == (499, len(first), ["abort"])


async def test_a_client_that_leaves_before_the_answer_is_a_499(
    make_app: MakeApp, lines: list[logging.LogRecord]
) -> None:
    app, _ = await make_app([[(0, "a", None)]], access_log=True)  # the stream never ends
    task = asyncio.ensure_future(post(app, CHAT, HELLO))
    for _ in range(20):
        await asyncio.sleep(0)
    await cancel(task)
    line = only(lines)
    assert (line["status"], line["bytes"], line["finish"], line["completion_tokens"]) == (499, 0, ["abort"], 1)


async def test_an_error_has_its_code(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    app = await logged(make_app, "a")
    await whole(await post(app, CHAT, {**HELLO, "model": "x"}))
    line = only(lines)
    assert (line["status"], line["error"]) == (404, "model_not_found")
    assert "model" not in line


async def test_an_error_in_a_stream_has_its_code_beside_the_200(
    make_app: MakeApp, lines: list[logging.LogRecord]
) -> None:
    app, _ = await make_app([[(0, "a", None)], EngineFailure("it broke")], access_log=True)
    await events(await post(app, CHAT, {**HELLO, "stream": True}))
    line = only(lines)
    assert (line["status"], line["error"], line["finish"]) == (200, "engine_error", ["error"])


async def test_no_line_holds_a_prompt_unless_asked(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    for asked in (False, True):
        lines.clear()
        app = await logged(make_app, "a", log_prompts=asked)
        await whole(await post(app, CHAT, HELLO, x_request_id="mine"))
        await whole(await post(app, CHAT, {**HELLO, "n": 0}))
        said = [r.getMessage() for r in lines] + [JsonLines().format(r) for r in lines]
        told = [text for text in said if SECRET in text]
        assert bool(told) is asked
        assert all("mine" in text for text in told)


async def test_a_second_call_that_is_cut_off_is_no_departure(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    app, _ = await make_app(
        lambda *_: say(call, call, "x"), access_log=True, tool_parser="hermes3", chat_template=template
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = await whole(await post(app, CHAT, {**HELLO, "tools": tools, "parallel_tool_calls": False}))
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1
    assert only(lines)["finish"] == ["stop"]


async def test_hostile_names_stay_in_their_line(make_app: MakeApp, lines: list[logging.LogRecord]) -> None:
    app = await logged(make_app, "a")
    await whole(await get(app, "/x\r\nGET /forged 200\x1b[31m\udcff"))
    [record] = lines
    for text in (record.getMessage(), JsonLines().format(record)):
        assert not set("\r\n\x1b\udcff") & set(text)


@pytest.mark.parametrize("path", ["/health", "/ping", "/metrics", "/load", "/v2/health/live", "/v2/models/m/ready"])
async def test_what_is_asked_for_all_the_time_is_written_where_it_fails(
    make_app: MakeApp, lines: list[logging.LogRecord], path: str
) -> None:
    for enabled in (True, False):
        app, _ = await make_app(say("x"), access_log=True, metrics_enable=enabled)
        response = await get(app, path)
        await response.aclose()
        assert bool(lines) is (response.status != 200)
        assert (response.status == 200) is (enabled or path != "/metrics")
        lines.clear()
