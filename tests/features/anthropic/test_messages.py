"""POST …/messages with a scripted engine: exact JSON, the order of events, errors in Anthropic's form."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.errors import (
    EngineFailure,
    RequestError,
    TooManyRequests,
    Unavailable,
    prompt_too_long,
    too_many_characters,
)
from lean_ovms.features.anthropic.api import signatures
from lean_ovms.features.anthropic.errors import anthropic_error
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, get, parts, post, warnings_of, whole
from tests.fakes import FakeEngine, say
from tests.features.anthropic.conftest import FULL, HELLO, PARSERS, PATH, WEATHER, stream

VERSION = {"anthropic_version": "2023-06-01"}


def ask(**fields: Any) -> dict[str, Any]:
    return {**HELLO, **fields}


async def error(response: Any) -> tuple[int, str, str]:
    """Returns status, type and message of an error in Anthropic's form."""
    body = await whole(response)
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert ("Request-Id", body["request_id"]) in response.headers
    return response.status, body["error"]["type"], body["error"]["message"]


async def test_a_whole_message_has_anthropics_shape(make_app: MakeApp) -> None:
    app, engine = await make_app(say("Hel", "lo"))
    body = await whole(await post(app, PATH, ask(temperature=0.5, top_p=0.25, top_k=7, seed=3, max_tokens=9)))
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 8,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 6,
        },
    }
    [(prompt, sampling)] = engine.submitted
    assert prompt == "user:hi;"
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.25, 7, 9)
    assert sampling.seeds == (3,)


async def test_the_events_of_a_stream_come_in_anthropics_order(make_app: MakeApp) -> None:
    app, engine = await make_app(say(*FULL), **PARSERS)
    response = await post(app, PATH, ask(stream=True, tools=[WEATHER]))
    assert ("Content-Type", "text/event-stream; charset=utf-8") in response.headers
    found = await stream(response)
    shown = [f"{name} {(data.get('delta') or data.get('content_block') or {}).get('type', '')}" for name, data in found]
    assert shown == [
        "message_start ",
        "content_block_start thinking",
        "ping ",
        "content_block_delta thinking_delta",
        "content_block_delta thinking_delta",
        "content_block_delta signature_delta",
        "content_block_stop ",
        "content_block_start text",
        *["content_block_delta text_delta"] * 2,
        "content_block_stop ",
        "content_block_start tool_use",
        *["content_block_delta input_json_delta"] * shown.count("content_block_delta input_json_delta"),
        "content_block_stop ",
        "message_delta ",
        "message_stop ",
    ]
    assert [data["index"] for _, data in found if "index" in data] == sorted(
        data["index"] for _, data in found if "index" in data
    )
    start = found[0][1]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["input_tokens"]) == (
        [],
        None,
        len(engine.submitted[0][0]),
    )
    assert start["usage"]["output_tokens"] == 0
    assert found[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2][1]["usage"]["output_tokens"] > 20


async def test_silence_is_filled_with_ping_events(make_app: MakeApp) -> None:
    app, _ = await make_app([], sse_ping_s=0.001)
    response = await post(app, PATH, ask(stream=True))
    found = []
    async for part in parts(response):
        found.append(part)
        if len(found) == 2:
            break
    assert found[0].startswith(b"event: message_start\n"), "before the first token"
    assert found[1] == b'event: ping\ndata: {"type": "ping"}\n\n'


async def test_an_error_in_a_stream_is_its_last_event(make_app: MakeApp) -> None:
    app, _ = await make_app([[(0, "a", None)], EngineFailure("it broke")])
    response = await post(app, PATH, ask(stream=True))
    found = await stream(response)
    assert [name for name, _ in found][-2:] == ["content_block_delta", "error"]
    details = {"error_code": "engine_error"}
    assert found[-1][1]["error"] == {"type": "api_error", "message": "it broke", "details": details}
    assert ("Request-Id", found[-1][1]["request_id"]) in response.headers


@pytest.mark.parametrize(
    ("text", "reason", "fields", "expected"),
    [
        ("yes", "length", {}, ("max_tokens", None)),
        ("one END two", "stop", {"stop_sequences": ["END", "x9"]}, ("stop_sequence", "END")),
        ("one END two", "stop", {}, ("end_turn", None)),
        ("the model's own STOP", "stop", {}, ("end_turn", None)),
    ],
)
async def test_stop_reasons(
    make_app: MakeApp, text: str, reason: str, fields: Any, expected: tuple[str, str | None], tmp_path: Any
) -> None:
    (tmp_path / "config.json").write_text('{"stop_strings": ["STOP"]}')
    app, _ = await make_app(say(text, reason=reason), generation_config_path=str(tmp_path / "config.json"))
    body = await whole(await post(app, PATH, ask(**fields)))
    assert (body["stop_reason"], body["stop_sequence"]) == expected
    if "stop_sequences" in fields:
        assert body["content"] == [{"type": "text", "text": "one "}]
    events = await stream(await post(app, PATH, ask(stream=True, **fields)))
    assert events[-2][1]["delta"] == {"stop_reason": expected[0], "stop_sequence": expected[1]}


@pytest.mark.parametrize(
    ("reason", "stops", "expected"),
    [("length", [], "max_tokens"), ("stop", ["Os"], "stop_sequence"), ("stop", [], "end_turn")],
)
async def test_a_call_that_is_cut_has_no_input(make_app: MakeApp, reason: str, stops: list[str], expected: str) -> None:
    cut = '<tool_call>{"name":"get_weather","arguments":{"city":"Os'
    app, _ = await make_app(lambda *_: say(cut, reason=reason), **PARSERS)
    body = await whole(await post(app, PATH, ask(tools=[WEATHER], stop_sequences=stops)))
    assert body["stop_reason"] == expected
    events = await stream(await post(app, PATH, ask(tools=[WEATHER], stop_sequences=stops, stream=True)))
    assert events[-2][1]["delta"]["stop_reason"] == expected
    assert all(block["type"] != "tool_use" or block["input"] == {} for block in body["content"])


def test_a_signature_is_read_up_to_a_limit() -> None:
    for size, text in ((1000, "x" * 1000), (signatures.MAX_SIGNATURE, "")):
        assert signatures.omitted_text(signatures.signature("x" * size, omitted=True)) == text
    assert signatures.omitted_text("!") == ""


async def test_omitted_thinking_comes_back_in_the_signature(make_app: MakeApp) -> None:
    template = "{% for m in messages %}{{ m.role }}({{ m.reasoning_content }}){{ m.content }}{% endfor %}"
    app, engine = await make_app(lambda *_: say(*FULL), **{**PARSERS, "chat_template": template})
    asked = ask(thinking={"type": "adaptive", "display": "omitted"}, tools=[WEATHER])
    body = await whole(await post(app, PATH, asked))
    block = body["content"][0]
    assert (block["type"], block["thinking"]) == ("thinking", "")
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    [used] = [b for b in body["content"] if b["type"] == "tool_use"]
    assert used["input"] == {"city": "Oslo"}
    events = await stream(await post(app, PATH, {**asked, "stream": True}))
    deltas = [data["delta"] for _, data in events if "delta" in data]
    assert "thinking_delta" not in {delta.get("type") for delta in deltas}
    assert {"type": "signature_delta", "signature": block["signature"]} in deltas
    for signed, shown in ((block, "hmm"), ({**block, "signature": "c2lnbmVk"}, ""), ({**block, "signature": "é"}, "")):
        turns = [*asked["messages"], {"role": "assistant", "content": [signed, *body["content"][1:]]}]
        results = [b for b in body["content"] if b["type"] == "tool_use"]
        answers = [{"type": "tool_result", "tool_use_id": b["id"], "content": "8"} for b in results]
        await whole(await post(app, PATH, {**asked, "messages": [*turns, {"role": "user", "content": answers}]}))
        assert f"assistant({shown})" in engine.submitted[-1][0]


TEMPLATE = "{{ enable_thinking }} {{ reasoning_effort }} {% for t in tools or [] %}{{ t.function.name }},{% endfor %}"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "  "),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "True  "),
        ({"thinking": {"type": "adaptive"}}, "True  "),
        ({"thinking": {"type": "disabled"}}, "False  "),
        ({"output_config": {"effort": "high"}}, " high "),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "True  "),
        ({"tools": [WEATHER], "tool_choice": {"type": "none"}}, "  "),
        ({"tools": [WEATHER, {**WEATHER, "name": "b"}], "tool_choice": {"type": "tool", "name": "b"}}, "  b,"),
        ({"tools": [WEATHER], "tool_choice": {"type": "any"}}, "  get_weather,"),
    ],
)
async def test_what_the_template_gets(make_app: MakeApp, fields: Any, prompt: str) -> None:
    app, engine = await make_app(say("x"), chat_template=TEMPLATE, capable=True, **PARSERS)
    assert (await post(app, PATH, ask(**fields))).status == 200
    [(sent, sampling)] = engine.submitted
    assert (sent, sampling.thinking_token_budget) == (prompt, fields.get("thinking", {}).get("budget_tokens"))


FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
    "{{ m.role }}:{{ m.content }};{% endfor %}"
)


async def test_a_late_system_message_is_a_users_where_the_template_refuses_it(make_app: MakeApp) -> None:
    messages = [*HELLO["messages"], {"role": "system", "content": "note"}]
    for template, role in ((None, "system"), (FIRST_ONLY, "user")):
        app, engine = await make_app(say("x"), **({"chat_template": template} if template else {}))
        assert (await post(app, PATH, ask(system="s", messages=messages))).status == 200
        assert engine.submitted[0][0] == f"system:s;user:hi;{role}:note;"


async def test_the_tool_fields_reach_the_grammar(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say(*FULL, *FULL), **PARSERS)
    for alone, calls in ((False, 2), (True, 1)):
        choice: dict[str, Any] = {"type": "auto", "disable_parallel_tool_use": alone}
        body = await whole(await post(app, PATH, ask(tools=[WEATHER], tool_choice=choice)))
        assert [block["type"] for block in body["content"]].count("tool_use") == calls
        assert body["stop_reason"] == "tool_use"
    engine.constraints.clear()
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}):
        await whole(await post(app, PATH, ask(tools=[WEATHER], tool_choice=choice)))
    await whole(await post(app, PATH, ask(tools=[{**WEATHER, "strict": True}])))
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    await whole(await post(app, PATH, ask(output_config={"format": form})))
    await whole(await post(app, PATH, ask(output_format=form)))
    assert [bool(constraint) for constraint in engine.constraints] == [False, True, True, True, True, True]


async def test_what_has_no_effect_is_warned_of(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    response = await post(app, PATH, ask(context_management=edits))
    assert any("context_management is not supported" in text for text in warnings_of(response))
    quiet = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "mcp_servers": [],
    }
    response = await post(app, PATH, ask(**quiet), anthropic_beta="unknown-2027-01-01")
    assert response.status == 200
    assert warnings_of(response) == []


async def test_citations_that_are_asked_for_are_a_warning(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"))
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Cats purr."}}
    cited = {**document, "citations": {"enabled": True}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [cited]}
    foreign = {"type": "web_search_tool_result", "tool_use_id": "t", "content": ["x", 5]}
    for block, warned in ((cited, True), (result, True), (document, False)):
        messages = [{"role": "assistant", "content": [foreign]}, {"role": "user", "content": [block]}]
        response = await post(app, PATH, {"model": "m", "max_tokens": 9, "messages": messages})
        assert response.status == 200
        assert any("citations" in text for text in warnings_of(response)) is warned
        await whole(response)


WRONG = [
    ({"max_tokens": None}, "max_tokens: Field required"),
    ({"messages": None}, "messages: Field required"),
    ({"messages": []}, "messages: at least one message"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences must have no more than 16"),
    ({"thinking": {"type": "much"}}, "thinking.type must be one of"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "display": "some"}}, "thinking.display must be one of"),
    ({"tool_choice": {"type": "all"}}, "tool_choice.type must be one of"),
    ({"tool_choice": {"type": "tool", "name": "f"}, "tools": [WEATHER]}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type: 'web_search_20250305'"),
    ({"tools": [{"name": "f"}]}, "tools.0.input_schema: Field required"),
    ({"tools": [WEATHER, WEATHER]}, f"tools.1.name: {WEATHER['name']!r} is not unique"),
    ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers: this endpoint does not connect"),
    ({"container": "c"}, "container: this server does not run code"),
    ({"output_config": {"format": {"type": "regex"}}}, "output_config.format must be of type json_schema"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort must be one of"),
]


async def test_wrong_fields_are_named(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    for fields, message in WRONG:
        status, kind, text = await error(await post(app, PATH, ask(**fields)))
        assert (status, kind) == (400, "invalid_request_error"), fields
        assert message in text, fields


async def test_every_failure_under_the_path_has_anthropics_form(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, engine = await make_app(say("x"), api_key="secret")
    key = {"x_api_key": "secret"}
    assert (await error(await post(app, PATH, HELLO)))[:2] == (401, "authentication_error")
    assert (await error(await post(app, PATH, HELLO, x_api_key="wrong")))[:2] == (401, "authentication_error")
    assert (await error(await post(app, PATH, b"{", **key)))[:2] == (400, "invalid_request_error")
    assert (await error(await post(app, PATH, ask(model="x"), **key)))[:2] == (404, "not_found_error")
    assert (await error(await post(app, PATH + "/nowhere", HELLO, **key)))[:2] == (404, "not_found_error")
    assert (await error(await get(app, PATH)))[:2] == (405, "invalid_request_error")
    assert (await error(await post(app, PATH, b"x", content_type="text/plain", **key)))[0] == 415
    engine.refusal = TooManyRequests("full")
    response = await post(app, PATH, HELLO, **key)
    assert ("Retry-After", "1") in response.headers
    assert (await error(response))[:2] == (429, "rate_limit_error")
    engine.refusal = Unavailable("loading")
    response = await post(app, PATH, HELLO, **key)
    assert ("Retry-After", "2") in response.headers
    assert (await whole(response))["error"] == {
        "type": "overloaded_error", "message": "loading", "details": {"error_code": "model_unavailable"},
    }  # fmt: skip
    assert response.status == 529
    engine.refusal = EngineFailure("broken")
    assert (await error(await post(app, PATH, HELLO, **key)))[:2] == (500, "api_error")
    monkeypatch.setattr(engine, "submit", None)
    assert await error(await post(app, PATH, HELLO, authorization="Bearer secret")) == (
        500,
        "api_error",
        "internal error",
    )
    assert (await error(await get(app, "/v1/nothing", **VERSION)))[:2] == (404, "not_found_error")
    for path in ("/v3/messages/count_tokens", "/v3/v1/messages/batches"):
        assert (await error(await post(app, path, {})))[:2] == (401, "authentication_error")
    for path in ("/v1/nothing", "/v1/models/x", "/v1/chat/completions"):
        openai = await whole(await get(app, path, **key))
        assert set(openai["error"]) == {"message", "type", "param", "code"}


async def test_counting_needs_no_max_tokens_and_no_model(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    body = {"messages": HELLO["messages"], "system": "be brief"}
    assert await whole(await post(app, PATH + "/count_tokens", body)) == {"input_tokens": 24}
    assert (await error(await post(app, PATH + "/count_tokens", {})))[2] == "messages: Field required"
    assert engine.submitted == []


# --- GET …/models for the two kinds of clients


async def test_the_header_chooses_the_form(make_app: MakeApp) -> None:
    app, engine = await make_app()
    listed = await whole(await get(app, "/v1/models", **VERSION))
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "m", "m")
    [model] = listed["data"]
    assert (model["type"], model["id"], model["max_input_tokens"]) == ("model", "m", 1000)
    assert await whole(await get(app, "/v1/models/m", **VERSION)) == model
    assert (await whole(await get(app, "/v1/models")))["object"] == "list"
    assert (await whole(await get(app, "/v1/models/m")))["object"] == "model"
    assert (await get(app, "/v1/models/x", **VERSION)).status == 404
    engine.state = "restarting"
    assert (await whole(await get(app, "/v1/models", **VERSION)))["data"] == []


async def test_pages() -> None:
    config = Config(fake_engine=True, access_log=False)
    models = [TextModel(Config(fake_engine=True, model_name=name), FakeEngine([])) for name in "abcd"]  # type: ignore[arg-type]
    app = App(config, models)
    for model in models:
        await model.load()

    async def page(query: str) -> tuple[str, bool]:
        headers = {"anthropic-version": "2023-06-01"}
        found = await whole(await app.handle(Request("GET", "/v1/models", query, headers)))
        return "".join(model["id"] for model in found["data"]), found["has_more"]

    assert await page("") == ("abcd", False)
    assert await page("limit=2") == ("ab", True)
    assert await page("limit=2&after_id=b") == ("cd", False)
    assert await page("limit=1&before_id=c") == ("b", True)
    assert await page("before_id=a") == ("", False)
    for wrong in ("limit=0", "limit=x", "after_id=z"):
        headers = {"anthropic-version": "2023-06-01"}
        assert (await app.handle(Request("GET", "/v1/models", wrong, headers))).status == 400
    await app.close()


# --- Anthropic's form of errors, and the requests whose errors have it


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (prompt_too_long(40030, 32768), "40030 tokens > 32768 maximum"),
        (prompt_too_long(40, 40), "40 tokens > 40 maximum"),
        (too_many_characters(2000, 40), too_many_characters(2000, 40).message),
    ],
)
def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(error: RequestError, text: str) -> None:
    """Claude Code parses both numbers, and shortens its conversation by the difference; LangChain searches for the
    words."""
    shown = anthropic_error(error)["error"]
    assert shown["message"] == f"prompt is too long: {text}"
    assert shown["details"] == {"error_code": "context_length_exceeded"}
