"""/v2/chat with a scripted engine: messages, events in the types of Cohere's client, errors."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from cohere.v2.types import V2ChatResponse, V2ChatStreamResponse
from pydantic import TypeAdapter

from lean_ovms.engine.protocol import Prefilled
from lean_ovms.errors import EngineFailure
from lean_ovms.features.cohere.api import chat_message
from lean_ovms.features.cohere.fields import FIELDS
from lean_ovms.models.generation import CompletedChoice
from lean_ovms.types import Delta, Reasoning, Text, TokenLogprob, ToolCallStart, Usage
from tests.api import conftest
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say

PATH = "/v2/chat"
HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
PARSING = {"tool_parser": "hermes3", "reasoning_parser": "qwen3"}


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [HI], **fields}


async def events(response: Any) -> list[Any]:
    """Returns the events of a stream, and checks that Cohere's types accept them."""
    *found, done = await conftest.events(response)
    assert done == "[DONE]"
    TypeAdapter(list[V2ChatStreamResponse]).validate_python(found)
    return found


@pytest.mark.parametrize("path", [PATH, "/v1/v2/chat", "/v3/v2/chat", "/cohere/v2/chat"])
async def test_a_message(make_app: MakeApp, path: str) -> None:
    app, engine = await make_app(say("Hel", "lo"))
    body = await whole(await post(app, path, ask(k=5, p=0.5, max_tokens=9, stop_sequences=["x"])))
    V2ChatResponse.model_validate(body)
    assert body.pop("id").startswith("chat-")
    tokens = {"input_tokens": 8, "output_tokens": 6}
    assert body == {
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
        "usage": {"billed_units": tokens, "tokens": tokens},
    }
    [(prompt, sampling)] = engine.submitted
    assert prompt == "user:hi;"
    assert (sampling.top_k, sampling.top_p, sampling.max_tokens) == (5, 0.5, 9)


async def test_reasoning_and_calls_whole_and_streamed(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("<think>", "h", "m", "</think>", "So", ". ", CALL), **PARSING)
    body = await whole(await post(app, PATH, ask(tools=[TOOL])))
    assert body["finish_reason"] == "TOOL_CALL"
    assert body["message"]["content"] == [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "So. "}]
    [call] = body["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}
    told = await events(await post(app, PATH, ask(tools=[TOOL], stream=True)))
    kinds = list(dict.fromkeys((event["type"], event.get("index")) for event in told))
    block = ("content-start", "content-delta", "content-end")
    calls = ("tool-call-start", "tool-call-delta", "tool-call-end")
    expected = [(kind, place) for place, names in enumerate((block, block, calls)) for kind in names]
    assert kinds == [("message-start", None), *expected, ("message-end", None)]
    begins = [event["delta"]["message"] for event in told if event["type"].endswith("-start")]
    assert begins == [
        {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []},
        {"content": {"type": "thinking", "thinking": ""}},
        {"content": {"type": "text", "text": ""}},
        {"tool_calls": {**begins[-1]["tool_calls"], "type": "function", "function": {"name": "f", "arguments": ""}}},
    ]
    deltas = [event["delta"]["message"] for event in told if event["type"].endswith("-delta")]
    assert "".join(one["tool_calls"]["function"]["arguments"] for one in deltas if "tool_calls" in one) == '{"x": 1}'
    contents = [one["content"] for one in deltas if "content" in one]
    assert ["".join(one.get(kind, "") for one in contents) for kind in ("thinking", "text")] == ["hm", "So. "]
    assert told[0]["id"] == told[-1]["id"]
    assert told[0]["id"].startswith("chat-")
    assert told[-1]["delta"]["finish_reason"] == "TOOL_CALL"
    assert told[-1]["delta"]["usage"]["tokens"]["output_tokens"] == body["usage"]["tokens"]["output_tokens"]


async def test_what_is_said_in_coheres_words(make_app: MakeApp) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}|{{ m.reasoning_content }}|"
        "{% for call in m.tool_calls %}{{ call.function }}{% endfor %};{% endfor %}{{ documents }}{{ enable_thinking }}"
    )
    app, engine = await make_app(say("x"), chat_template=template)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [
        HI,
        {"role": "assistant", "tool_plan": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "document", "document": {"data": {"a": 1}}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "So."}]},
        HI,
    ]
    documents = ["one", {"id": "2", "data": {"title": "two"}}, {"data": "three"}]
    thinking = {"type": "disabled"}
    response = await post(app, PATH, ask(messages=talk, documents=documents, thinking=thinking))
    assert response.status == 200
    prompt = engine.submitted[0][0]
    assert "|I look.|{'name': 'f', 'arguments': '{}'};tool:{\"a\":1}||;assistant:So.|hm|;user:hi||;" in prompt
    assert "[{'text': 'one'}, {'title': 'two', 'id': '2'}, {'text': 'three'}]False" in prompt


@pytest.mark.parametrize(
    ("fields", "script", "reason"),
    [
        ({}, say("x"), "COMPLETE"),
        ({}, say("x", reason="length"), "MAX_TOKENS"),
        ({"stop_sequences": ["b"]}, say("ab", "c"), "STOP_SEQUENCE"),
    ],
)
async def test_why_a_message_ends(make_app: MakeApp, fields: Any, script: Any, reason: str) -> None:
    app, _ = await make_app(lambda *_: list(script))
    assert (await whole(await post(app, PATH, ask(**fields))))["finish_reason"] == reason
    *_, last = await events(await post(app, PATH, ask(stream=True, **fields)))
    assert last["delta"]["finish_reason"] == reason


async def test_log_probabilities(make_app: MakeApp) -> None:
    app, _ = await make_app(say("a", "b"))
    body = await whole(await post(app, PATH, ask(logprobs=True)))
    V2ChatResponse.model_validate(body)
    assert [item["text"] for item in body["logprobs"][:2]] == ["a", "b"]
    told = await events(await post(app, PATH, ask(logprobs=True, stream=True)))
    items = [event["logprobs"] for event in told if event["type"] == "content-delta"]
    assert [token for item in items for token in item["token_ids"]][:2] == [97, 98]


async def test_a_stream_has_the_log_probabilities_of_every_token(make_app: MakeApp) -> None:
    """Among them those of markup, of calls, and of a character of several tokens."""
    script = ("<think>", "h", "</think>", "é", "😀x", CALL)
    for answer in (script, script[:-1], ("<think>", "h"), ("",)):
        app, _ = await make_app(lambda *_, answer=answer: say(*answer), **PARSING)
        asked = ask(tools=[TOOL], logprobs=True)
        body = await whole(await post(app, PATH, asked))
        told = await events(await post(app, PATH, asked | {"stream": True}))
        items = [event["logprobs"] for event in told if "logprobs" in event]
        assert [token for item in items for token in item["token_ids"]] == [
            token for item in body["logprobs"] for token in item["token_ids"]
        ]
        assert all(event["type"].endswith("-delta") for event in told if "logprobs" in event)


@pytest.mark.parametrize(
    ("budget", "tokens"), [(1, 1), (5, 5), (5.0, 5), (2**31 - 1, 2**31 - 1), (2**40, 2**31 - 1), (None, None)]
)
async def test_a_budget_of_reasoning_of_any_size(make_app: MakeApp, budget: Any, tokens: Any) -> None:
    app, engine = await make_app(say("x"), capable=True, **PARSING)
    response = await post(app, PATH, ask(thinking={"type": "enabled", "token_budget": budget}))
    assert response.status == 200
    assert engine.submitted[0][1].thinking_token_budget == tokens
    await post(app, PATH, ask(thinking={"type": "enabled"}, thinking_token_budget=7))
    assert engine.submitted[1][1].thinking_token_budget == 7


async def test_which_tools_the_model_is_offered(make_app: MakeApp) -> None:
    template = (
        "{% for t in tools or [] %}{{ t.function.name }}{{ t.function.strict }}{% endfor %}<tool_call></tool_call>"
    )
    app, engine = await make_app(lambda *_: say("x"), chat_template=template, **PARSING)
    for fields in ({}, {"strict_tools": True}, {"tool_choice": "NONE"}, {"tool_choice": "REQUIRED"}):
        assert (await post(app, PATH, ask(tools=[TOOL], **fields))).status == 200
    assert [prompt.partition("<")[0] for prompt, _ in engine.submitted] == ["f", "fTrue", "", "f"]
    assert [bool(constraint) for constraint in engine.constraints] == [False, True, False, True]


async def test_messages_become_those_of_chat(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("x"), chat_template="{{ messages | tojson }}")
    text, document = {"type": "text", "text": "a"}, {"type": "document", "document": {"data": "b", "id": "1"}}
    thinking = {"type": "thinking", "thinking": "hm"}

    async def seen(message: Any) -> Any:
        assert (await post(app, PATH, ask(messages=[HI, message, HI]))).status == 200
        return orjson.loads(engine.submitted[-1][0])[1]

    tool = {"role": "tool", "tool_call_id": "c"}
    assert (await seen({**tool, "content": [text, document]}))["content"] == "a\nb"
    both = await seen(
        {"role": "assistant", "content": [thinking, text], "tool_plan": "p", "citations": [], "name": None}
    )
    assert both == {"role": "assistant", "content": "a", "reasoning_content": "p\nhm"}
    assert not (await seen({"role": "assistant", "content": [thinking]}))["content"]
    assert await seen({"role": "user", "content": [text], "tool_plan": "p"}) == {"role": "user", "content": "a"}
    assert await seen({"role": "assistant", "content": "a", "tool_plan": None}) == {"role": "assistant", "content": "a"}


async def test_a_template_that_reads_a_tool_plan_gets_the_reasoning_of_every_api(make_app: MakeApp) -> None:
    """The templates of Command R7B and Command A write message.tool_plan before calls."""
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if m.tool_calls %}<{{ m.tool_plan }}>"
        "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endif %};"
        "{% endfor %}"
    )
    app, engine = await make_app(lambda *_: say("x"), chat_template=template)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    used = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    planned: list[tuple[str, Any]] = [
        (PATH, {"role": "assistant", "tool_plan": "why", "tool_calls": [call]}),
        ("/v1/chat/completions", {"role": "assistant", "reasoning_content": "why", "tool_calls": [call]}),
        ("/v1/messages", {"role": "assistant", "content": [{"type": "thinking", "thinking": "why"}, used]}),
    ]
    for path, message in planned:
        assert (await post(app, path, ask(messages=[HI, message], max_tokens=5))).status == 200
    assert [prompt for prompt, _ in engine.submitted] == ["user:hi;assistant:<why>f{};"] * len(planned)


async def test_the_fields_of_other_apis(make_app: MakeApp) -> None:
    """Those with another name here, or that make several answers, are none of this API's; the others have an effect."""
    others = ("stop", "top_k", "top_p", "n", "best_of", "use_beam_search", "length_penalty", "early_stopping")
    assert FIELDS.names.isdisjoint(others)
    app, engine = await make_app(lambda *_: say("ab", "c"), chat_template="{{ who or 'you' }}")
    body = ask(include_stop_str_in_output=True, stop_sequences=["b"], chat_template_kwargs={"who": "me"})
    assert (await whole(await post(app, PATH, body)))["message"]["content"][0]["text"] == "ab"
    assert engine.submitted[0][0] == "me"
    told = await events(await post(app, PATH, ask(stop_sequences=["b"], stream=True)))
    deltas = [event["delta"]["message"]["content"] for event in told if event["type"] == "content-delta"]
    assert deltas == [{"text": "a"}]


async def test_an_error_in_a_stream_ends_the_message(make_app: MakeApp) -> None:
    app, _ = await make_app([[(0, "a", None)], EngineFailure("no more")])
    told = await events(await post(app, PATH, ask(stream=True)))
    assert told[-1]["delta"] == {"error": "no more", "finish_reason": "ERROR"}
    assert told[-2] == {"type": "content-end", "index": 0}


async def test_an_empty_answer_and_a_cached_prompt(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: [Prefilled(0, 2, 1.0), *say("")], chat_template="{{ enable_thinking }}")
    body = await whole(await post(app, PATH, ask(thinking={"type": "enabled"})))
    assert body["message"]["content"] == [{"type": "text", "text": ""}]
    assert body["usage"]["cached_tokens"] == 2
    assert engine.submitted[0][0] == "True"


def test_a_token_whose_log_probability_is_not_known() -> None:
    known, unknown = TokenLogprob(65, "A", b"A", -0.5), TokenLogprob(66, "B", b"B", None)
    choice = CompletedChoice(text="AB", logprobs=[known, unknown], finish="stop")
    items = chat_message.whole(chat_message.MessageEnd(()), choice, Usage(), logprobs=True)["logprobs"]
    assert items == [{"text": "A", "token_ids": [65], "logprobs": [-0.5]}, {"text": "B", "token_ids": [66]}]


WHAT_IS_WRONG_IS_NAMED: list[tuple[Any, ...]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"tool_choice": "AUTO"}, "tool_choice"),
    ({"tool_choice": "REQUIRED"}, "tool_choice"),
    ({"documents": [1]}, "documents[0]"),
    ({"thinking": {"type": "on"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "token_budget": 0}}, "thinking.token_budget"),
    ({"thinking": {"type": "enabled", "token_budget": "5"}}, "thinking.token_budget"),
    ({"thinking": {"type": "enabled", "token_budget": True}}, "thinking.token_budget"),
    ({"messages": "x"}, "messages"),
    ({"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": 1}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": ["x", {"type": "document"}]}]}, "messages[0].content[1]"),
    ({"tools": [1], "strict_tools": True}, "tools[0]"),
    ({"p": 2}, "p"),
    ({"k": -2}, "k"),
    ({"stop_sequences": [""]}, "stop_sequences"),
]


async def test_what_is_wrong_is_named(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    for fields, param in WHAT_IS_WRONG_IS_NAMED:
        response = await post(app, PATH, ask(**fields))
        assert response.status == 400, fields
        assert (await whole(response))["error"]["param"] == param, fields
        assert engine.submitted == [], fields


@pytest.mark.parametrize("path", ["/v2/chat", "/v3/v2/chat", "/cohere/v2/chat", "/v2/embed", "/v1/embed", "/v2/rerank"])
async def test_errors_have_the_message_where_coheres_clients_read_it(make_app: MakeApp, path: str) -> None:
    """@ai-sdk/cohere 3.0.63 reads `message`, and shows "Bad Request" without it."""
    app, _ = await make_app(say("x"))
    body = await whole(await post(app, path, {"model": 5}))
    found = body["error"]
    assert (body.keys(), found["param"]) == ({"id", "message", "error"}, "model")
    assert found["message"] in body["message"]
    assert "model" in body["message"]


async def test_a_format_and_strict_tools_are_imposed(make_app: MakeApp) -> None:
    app, engine = await make_app(say('{"a":1}'), **PARSING)
    schema = {"type": "object", "properties": {"abcde": {"type": "integer"}}, "required": ["abcde"]}
    await post(app, PATH, ask(response_format={"type": "json_object", "json_schema": schema}))
    assert "abcde" in engine.constraints[0]
    await post(app, PATH, ask(response_format={"type": "json_object", "schema": schema}))
    assert "abcde" in engine.constraints.pop()
    await post(app, PATH, ask(response_format={"type": "text", "json_schema": schema}))
    assert not engine.constraints.pop()
    await post(app, PATH, ask(tools=[TOOL], strict_tools=True, tool_choice="REQUIRED"))
    assert "<tool_call>" in engine.constraints[1]


async def test_a_call_that_a_stop_sequence_cuts_is_no_tool_call(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say(CALL), **PARSING)
    cut = ask(tools=[TOOL], stop_sequences=["1"])
    assert (await whole(await post(app, PATH, cut)))["finish_reason"] == "STOP_SEQUENCE"
    assert (await events(await post(app, PATH, cut | {"stream": True})))[-1]["delta"][
        "finish_reason"
    ] == "STOP_SEQUENCE"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ([Text("a")], "content-delta"),
        ([Reasoning("a")], "content-delta"),
        ([ToolCallStart(0, "c", "f")], "tool-call-delta"),
        ([], "content-delta"),
    ],
)
def test_the_last_tokens_belong_to_the_open_block(said: list[Any], kind: str) -> None:
    token = TokenLogprob(66, "B", b"B", -0.5)
    for logprobs in (True, False):
        renderer = chat_message.CohereMessageRenderer(chat_message.MessageEnd(()), logprobs=logprobs)
        renderer.deltas([Delta(0, events=list(said)), Delta(0, logprobs=[token], finish="stop")])
        told = [orjson.loads(block.split(b"data: ")[1]) for block in renderer.end(Usage()).split(b"\n\n")[:-1]]
        kinds = [event["type"] for event in told if event["type"].endswith("-delta")]
        assert kinds == ([kind] if logprobs else [])
        assert [event["index"] for event in told if "index" in event] == [0] * (len(told) - 1)


@pytest.mark.parametrize(
    ("stop", "reason"), [("Q", "STOP_SEQUENCE"), ("other", "COMPLETE"), (5, "COMPLETE"), (None, "COMPLETE")]
)
def test_only_a_stop_sequence_of_the_client_is_one(stop: Any, reason: str) -> None:
    assert chat_message.MessageEnd(("Q",)).reason("stop", stop, called=False) == reason
