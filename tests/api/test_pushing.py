"""A stream's body is the same whether its chunks are pushed, read, or some of each; and as well recorded."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lean_ovms.api.openai import chat
from lean_ovms.push_types import Pushing, Sink
from lean_ovms.types import Response
from tests.fakes import say

from .conftest import MakeApp, Script, parts, post

PIECES = ("<think>", "a ", "b", "</think>", "Hel", "lo ", "STO", "RM ", 'quote " 🙂', "STO", "P", "never")
MESSAGE = {"messages": [{"role": "user", "content": "x"}]}
REQUESTS = {
    "chat": ("/v1/chat/completions", MESSAGE),
    "chat, usage": ("/v1/chat/completions", {**MESSAGE, "stream_options": {"include_usage": True}}),
    "chat, stop": ("/v1/chat/completions", {**MESSAGE, "stop": ["STOP"]}),
    "chat, logprobs": ("/v1/chat/completions", {**MESSAGE, "logprobs": True}),
    "chat, choices": ("/v1/chat/completions", {**MESSAGE, "n": 2, "stop": "STOP"}),
    "chat, ids": ("/v1/chat/completions", {**MESSAGE, "return_token_ids": True}),
    "completions": ("/v1/completions", {"prompt": "x", "echo": True}),
    "completions, logprobs": ("/v1/completions", {"prompt": "x", "logprobs": 0}),
    "completions, prompts": ("/v1/completions", {"prompt": ["x", "y"]}),
    "messages": ("/v1/messages", {**MESSAGE, "max_tokens": 90}),
    "responses": ("/v1/responses", {"input": "x", "store": False}),
}
READY = {"always": [True], "never": [False], "in turns": [True, True, False]}
DIFFERENT = re.compile(rb'(?:chatcmpl|cmpl|msg|resp|rs)[-_][0-9a-f]+|"(?:created|created_at|completed_at)":[0-9]+')


def same(body: bytes) -> list[bytes]:
    """What two bodies of one request share: the events but for ids and times, those of each choice in order."""
    blocks = DIFFERENT.sub(b"", body).split(b"\n\n")
    return sorted(blocks, key=lambda block: next(iter(re.findall(rb'^data: {"id":.*?"index":(\d+)', block)), b"~"))


def slowly(script: Script) -> Script:
    """With turns of the loop in which nothing comes, so that each step finds its reader waiting."""
    return [step for one in script for step in (one, *[[]] * 9)]


async def both(response: Response, ready: Iterator[bool]) -> AsyncIterator[tuple[str, bytes]]:
    """The parts of the body, and how each came."""
    pushed: list[bytes] = []
    assert isinstance(response.body, Pushing)
    response.body.push_to(Sink(lambda: next(ready), pushed.append))
    async for part in parts(response):
        for earlier in pushed:
            yield "pushed", earlier
        pushed.clear()
        yield "read", part


@pytest.mark.parametrize("parser", ["none", "qwen3"])
@pytest.mark.parametrize("request_", REQUESTS)
async def test_pushed_or_read_the_body_is_the_same(
    request_: str, parser: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fields = REQUESTS[request_]
    script = slowly(say(*PIECES, sequences=fields.get("n", 1)))
    app, engine = await make_app(script, reasoning_parser=parser, access_log=True)
    body = {"model": "m", "stream": True, **fields}

    whole = b"".join([part async for part in parts(await post(app, path, body))])

    for pattern in READY.values():
        ways = [way async for way in both(await post(app, path, body), itertools.cycle(pattern))]
        assert same(b"".join(part for _, part in ways)) == same(whole)
        pushed = sum(how == "pushed" for how, _ in ways)
        assert (pushed > 3) == (any(pattern))

    monkeypatch.setattr(chat.Chunks, "around", lambda *_: None)
    without_templates = b"".join([part async for part in parts(await post(app, path, body))])
    assert same(without_templates) == same(whole)
    assert not engine.mail.busy


async def test_what_is_pushed_is_recorded(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app, _ = await make_app(say(*PIECES), access_log=True)
    with caplog.at_level(logging.INFO, "lean_ovms.access"):
        body = {"model": "m", "stream": True, **MESSAGE}
        ways = [part async for _, part in both(await post(app, "/v1/chat/completions", body), itertools.repeat(True))]
    [line] = [record.getMessage() for record in caplog.records if record.name == "lean_ovms.access"]
    assert f" {sum(map(len, ways))} B " in line


async def test_a_bug_in_a_push_ends_its_stream_alone(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, engine = await make_app(say(*PIECES))
    body: dict[str, Any] = {"model": "m", "stream": True, **MESSAGE}
    broken, sound = [await post(app, "/v1/chat/completions", body) for _ in range(2)]
    stream: Any = broken.body
    render = stream._renderer.deltas

    def deltas(deltas: list[Any]) -> bytes:
        if any(getattr(event, "text", "") == "RM " for event in deltas[0].events):
            raise ZeroDivisionError
        return render(deltas)  # type: ignore[no-any-return]

    monkeypatch.setattr(stream._renderer, "deltas", deltas)

    ended = [part async for _, part in both(broken, itertools.repeat(True))]
    others = [part async for _, part in both(sound, itertools.repeat(True))]

    assert b"RM " not in b"".join(ended)
    assert b"internal_error" in ended[-1]
    assert ended[-1].endswith(b"[DONE]\n\n")
    [logged] = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert logged is ZeroDivisionError
    assert b"never" in b"".join(others)
    assert not engine.mail.busy
