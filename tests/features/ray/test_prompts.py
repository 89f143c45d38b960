"""What a proxy reads from the prompts of requests; the replica still gets the unchanged request."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from lean_ovms.features.ray import prompts, proxy
from lean_ovms.features.ray.prompts import IN_FLIGHT, MADE_BY, ProxiedRequest
from lean_ovms.features.replicas.prefix_router import BLOCK
from lean_ovms.ray_serve import proxy_middlewares

LONG = "the rain in spain falls mainly on the plain " * 20


def read(headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, ...]:
    return tuple(ProxiedRequest("/v1/x", headers or {}, orjson.dumps(fields)).prompt())


def shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    return sum(one == other for one, other in zip(first, second, strict=False))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"messages": [user(LONG)]}, {"messages": [user(LONG), {"role": "assistant", "content": "x"}, user("y" * 99)]}),
        ({"prompt": LONG}, {"prompt": LONG + LONG[::-1]}),
        ({"prompt": list(range(300))}, {"prompt": list(range(600))}),
        ({"instructions": LONG, "input": "a"}, {"instructions": LONG, "input": "b"}),
        ({"system": LONG, "messages": [user("a")]}, {"system": LONG, "messages": [user("b")]}),
        ({"tools": [LONG], "messages": [user("a")]}, {"messages": [user("b")], "stream": True, "tools": [LONG]}),
    ],
)
def test_what_goes_on_begins_with_what_was_there(first: dict[str, Any], second: dict[str, Any]) -> None:
    known = read(**first)
    assert len(known) >= 800 // BLOCK
    assert shared(known, read(**second)) >= len(known) - 1


def test_other_models_salts_and_keys_have_other_caches() -> None:
    every = [
        read(prompt=LONG, model="m"),
        read(prompt=LONG, model="adapter"),
        read(prompt=LONG, model="m", cache_salt="s"),
        read({"authorization": "Bearer a"}, prompt=LONG, model="m"),
        read({"x-api-key": "b"}, prompt=LONG, model="m"),
    ]
    assert len({one[0] for one in every}) == len(every)


def test_the_line_that_differs_in_each_request_of_claude_code_is_not_read() -> None:
    def asked(number: int) -> tuple[int, ...]:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: {number};"}
        return read(system=[billing, {"type": "text", "text": LONG}], messages=[user("x")])

    assert asked(1) == asked(2)
    assert read(system=f"x-anthropic-billing-header: 1\n{LONG}") == read(system=LONG)


def test_marks_are_those_of_every_process_and_go_with_the_blocks() -> None:
    """Python's own hashes of texts differ from process to process."""
    short, long = (ProxiedRequest("/v1/x", {}, orjson.dumps({"prompt": "a" * size})) for size in (1100, 9000))
    assert [one.hex() for one in short.marks()] == ["5ad0a947ef63fa91", "ec01136f2792b350"]
    assert (short.marks(), len(long.marks())) == (long.marks()[:2], len(long.prompt()) // 8)
    assert len(ProxiedRequest("/v1/x", {}, orjson.dumps({"conversation": "c", "input": "a"})).marks()) == 1


def test_a_stored_conversation_is_known_by_its_id() -> None:
    assert read(conversation="conv_1", input="a") == read(conversation="conv_1", input="b" * 200)
    assert read(conversation="conv_1", input="a") != read(conversation="conv_2", input="a")


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", b'"x"', b"{}", orjson.dumps({"messages": [user("hi")]})])
def test_a_body_without_a_long_prompt_has_none(body: bytes) -> None:
    assert not ProxiedRequest("/v1/x", {}, body).prompt()


@pytest.fixture
def made() -> Iterator[OrderedDict[str, Any]]:
    MADE_BY.clear()
    yield MADE_BY
    MADE_BY.clear()


def post(path: str, **fields: Any) -> ProxiedRequest:
    return ProxiedRequest(path, {}, orjson.dumps(fields))


@pytest.mark.parametrize(
    "answer",
    [
        b'{"id":"resp_1","object":"response"}',
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n',
    ],
)
def test_a_response_is_gone_on_with_where_it_was_made(answer: bytes, made: OrderedDict[str, Any]) -> None:
    first = post("/v1/responses", input="x")
    assert first.home() is None
    first.replica = "a"
    for data in (b"", answer, b'{"id":"resp_2"}'):
        first.answered(data)
    assert made == {"resp_1": "a"}
    assert post("/v1/responses", input="x", previous_response_id="resp_1").home() == "a"
    assert post("/v3/responses/resp_1/cancel").home() == "a"
    assert ProxiedRequest("/v1/responses/resp_1", {}, b"").home() == "a"
    assert post("/v1/responses/resp_2/cancel").home() is None


def test_of_other_answers_and_of_too_many_responses_nothing_is_remembered(
    made: OrderedDict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    post("/v1/chat/completions").answered(b'{"id":"resp_1"}')
    post("/v1/responses").answered(b'{"error":{}}')
    assert not made
    monkeypatch.setattr(prompts, "MOST_RESPONSES", 2)
    for number in range(4):
        post("/v1/responses").answered(b'{"id":"resp_%d"}' % number)
    assert list(made) == ["resp_2", "resp_3"]


class Replica:
    """Stands behind the middlewares of a proxy, and answers with what it receives."""

    def __init__(self) -> None:
        self.body = b""
        self.ids: list[str] = []
        self.in_flight: list[tuple[int, ...]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        [request_id] = [value.decode() for name, value in scope["headers"] if name == b"x-request-id"]
        self.ids.append(request_id)
        self.in_flight.append(tuple(IN_FLIGHT[request_id].prompt()))
        while (message := await receive())["type"] == "http.request":
            self.body += message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})


JSON = (b"content-type", b"application/json; charset=utf-8")


async def ask(*parts: bytes, method: str = "POST", headers: tuple[tuple[bytes, bytes], ...] = (JSON,)) -> Replica:
    replica = Replica()
    app: Any = replica
    for middleware in proxy_middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)  # type: ignore[call-arg]
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    waiting += [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        await asyncio.sleep(0)
        return waiting.pop(0)

    async def send(message: Any) -> None:
        assert message["status"] == 200

    scope = {"type": "http", "method": method, "path": "/v1/chat/completions", "headers": list(headers)}
    await app(scope, receive, send)
    assert not IN_FLIGHT
    return replica


async def test_the_replica_gets_the_body_that_the_router_has_read() -> None:
    body = orjson.dumps({"messages": [user(LONG)]})
    replica = await ask(body[:100], body[100:])
    assert replica.body == body
    assert replica.in_flight == [read(messages=[user(LONG)])]


async def test_a_request_has_the_id_of_its_client_or_one_of_its_own() -> None:
    first, second = await ask(), await ask(headers=((b"x-request-id", b"mine"),))
    assert second.ids == ["mine"]
    assert len(first.ids[0]) > 30


@pytest.mark.parametrize("case", ["too long", "a form", "GET"])
async def test_of_other_bodies_no_prompt_is_read(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = orjson.dumps({"messages": [user(LONG)]})
    if case == "too long":
        monkeypatch.setattr(proxy, "MOST_BODY", 300)
    headers = (JSON,) if case != "a form" else ((b"content-type", b"multipart/form-data; boundary=x"),)
    parts = (body[:200], body[200:400], body[400:])
    replica = await ask(*parts, method="GET" if case == "GET" else "POST", headers=headers)
    assert replica.body == body
    assert replica.in_flight == [()]


async def test_two_requests_with_one_id_end_each_for_itself() -> None:
    later = ProxiedRequest("/", {}, b"")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        IN_FLIGHT["twice"] = later

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"x-request-id", b"twice")]}
    await proxy.PromptReader(app)(scope, receive, None)  # type: ignore[arg-type]
    assert prompts.IN_FLIGHT.pop("twice") is later
