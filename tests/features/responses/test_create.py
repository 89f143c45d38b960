"""POST …/responses with a scripted engine: exact JSON, streams, inputs, errors."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.api.app import App
from lean_ovms.errors import EngineFailure, TooManyRequests
from lean_ovms.features.responses.api import create
from lean_ovms.features.responses.service import ResponseService
from tests.api.conftest import MakeApp, parts, post, warnings_of, whole
from tests.fakes import FakeEngine, Script, say
from tests.features.responses.rules import PATH, Json, ask, check_response, refused, respond, streamed

TOOL = {
    "type": "function",
    "name": "f",
    "description": "Does f.",
    "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    "strict": True,
}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
CALL_F = '<tool_call>\n{"name": "f", "arguments": {"x": "1"}}\n</tool_call>'
CALL_G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'


async def parsing(make_app: MakeApp, script: Script | Any, **options: Any) -> tuple[App, FakeEngine]:
    return await make_app(script, tool_parser="hermes3", reasoning_parser="qwen3", **options)


async def test_a_whole_answer_has_the_contracts_shape(make_app: MakeApp) -> None:
    app, engine = await make_app(say("Hel", "lo"))
    body = await respond(app)
    assert list(body)[:8] == [
        "id", "object", "created_at", "completed_at", "incomplete_details", "error", "model", "status",
    ]  # fmt: skip
    assert body.pop("id").startswith("resp_")
    assert isinstance(body.pop("created_at"), int)
    assert isinstance(body.pop("completed_at"), int)
    assert body["output"][0].pop("id").startswith("msg_")
    text = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert body == {
        "object": "response",
        "incomplete_details": None,
        "error": None,
        "model": "m",
        "status": "completed",
        "parallel_tool_calls": True,
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "metadata": {},
        "max_output_tokens": None,
        "background": False,
        "conversation": None,
        "instructions": None,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "top_logprobs": 0,
        "user": None,
        "output": [{"type": "message", "role": "assistant", "status": "completed", "content": [text]}],
        "usage": {
            "input_tokens": 8,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 14,
        },
    }
    assert engine.submitted[0][0] == "user:hi;"


async def test_what_does_not_change_the_answer_is_echoed(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    fields: Json = {
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.05,
        "metadata": {"a": "b"},
        "max_output_tokens": 20,
        "max_tool_calls": 3,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "truncation": "auto",
        "reasoning": {"effort": "low", "summary": "auto", "context": "all_turns"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "instructions": "Be brief.",
        "store": False,
    }
    body = await respond(app, **fields)
    assert {name: body[name] for name in fields} == fields


async def test_the_reasoning_of_earlier_turns_is_left_out_on_request(make_app: MakeApp) -> None:
    app, engine = await make_app(
        say("x"), chat_template="{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }};{% endfor %}"
    )
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    hi = {"role": "user", "content": "hi"}
    for context in ("auto", "current_turn"):
        await post(app, PATH, ask(input=[hi, thought, hi, thought], reasoning={"context": context}))
    assert [prompt.count("hm") for prompt, _ in engine.submitted] == [2, 1]


async def test_a_stream_obeys_the_rules_and_ends_as_the_whole_answer(make_app: MakeApp) -> None:
    app, _ = await parsing(make_app, lambda *_: say("<think>", "hm", "</think>", "Grüße ", "世界", CALL_F, CALL_G))
    unary = await respond(app, tools=[TOOL, OTHER])
    events = await streamed(await post(app, PATH, ask(tools=[TOOL, OTHER], stream=True)))
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "function_call"]
    for body in (unary, final):
        body["id"] = ""
        for item in body["output"]:
            item["id"] = ""
            item.pop("call_id", None)
    assert {**unary, "created_at": 0, "completed_at": 0} == {**final, "created_at": 0, "completed_at": 0}


async def test_the_first_event_goes_out_before_the_first_token(make_app: MakeApp) -> None:
    app, engine = await make_app([])  # an engine that never generates anything
    response = await post(app, PATH, ask(stream=True))
    found = parts(response)
    assert b"event: response.created\n" in await found.__anext__()
    await found.aclose()
    assert len(engine.cancelled) == 1
    assert not engine.mail.busy


async def test_an_answer_cut_by_its_length_or_inside_of_a_call_is_incomplete(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("Hel", reason="length"))
    body = await respond(app, max_output_tokens=3)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert (await streamed(await post(app, PATH, ask(stream=True))))[-1]["type"] == "response.incomplete"
    assert engine.submitted[0][1].max_tokens == 3
    call = '<tool_call>{"name":"f","arguments":{"x":"END"}}</tool_call>'  # in which a stop string is found
    app, _ = await make_app(lambda *_: say(call), tool_parser="hermes3")
    fields = ask(tools=[{"type": "function", "name": "f", "parameters": {}}], stop=["END"])
    body = await whole(await post(app, PATH, fields))
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": None})
    assert (body["output"][0]["status"], body["output"][0]["arguments"]) == ("incomplete", '{"x":"')
    assert (await streamed(await post(app, PATH, fields | {"stream": True})))[-1]["type"] == "response.incomplete"


async def test_a_failure_in_a_stream_is_an_event_of_the_stream(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: [*say("Hel", reason="x")[:0], [(0, "Hel", None)], EngineFailure("it broke")])
    events = await streamed(await post(app, PATH, ask(stream=True)))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "it broke"}
    assert events[-1]["response"]["usage"] is None
    assert (await refused(app, status=500))["message"] == "it broke"


async def test_a_refusal_of_the_engine_is_an_http_error_in_every_mode(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    engine.refusal = TooManyRequests("the queue is full")
    for how in ({}, {"stream": True}, {"background": True}):
        response = await post(app, PATH, ask(**how))
        assert response.status == 429
        assert ("Retry-After", "1") in response.headers
    assert app.services.get(ResponseService)._background == {}


async def test_log_probabilities_are_included_when_asked_for(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("ab", "c"))
    for fields in ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}, {"top_logprobs": 2}):
        body = await respond(app, **fields)
        logprobs = body["output"][0]["content"][0]["logprobs"]
        assert logprobs[0] == {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}
        assert [entry["token"] for entry in logprobs] == ["a", "b", "c"]  # the token that ends the answer is not text
    response = await post(app, PATH, ask(top_logprobs=2))
    assert any("top_logprobs" in text for text in warnings_of(response))


@pytest.mark.parametrize(
    ("choice", "prompt", "echo"),
    [
        (None, "f,g,;", "auto"),
        ("none", ";", "none"),
        ("required", "f,g,;", "required"),
        ({"type": "function", "name": "g"}, "g,;", {"type": "function", "name": "g"}),
        ({"type": "function", "function": {"name": "g"}}, "g,;", {"type": "function", "name": "g"}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            "f,;",
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        ),
    ],
)
async def test_tool_choice_decides_which_tools_the_model_sees(
    make_app: MakeApp, choice: Any, prompt: str, echo: Any
) -> None:
    app, engine = await make_app(
        lambda *_: say("x"), chat_template="{% for t in tools or [] %}{{ t.function.name }},{% endfor %};"
    )
    body = await respond(app, tools=[TOOL, OTHER], tool_choice=choice)
    assert engine.submitted[-1][0] == prompt
    assert body["tool_choice"] == echo
    assert body["tools"] == [TOOL, {"type": "function", "name": "g", "parameters": {"type": "object"}, "strict": None}]


async def test_effort_reaches_the_template(make_app: MakeApp) -> None:
    template = "{{ enable_thinking }}|{{ reasoning_effort }}|{{ verbosity }}"
    app, engine = await make_app(lambda *_: say("x"), chat_template=template)
    for fields, prompt in (
        ({"reasoning": {"effort": "high"}, "text": {"verbosity": "low"}}, "True|high|low"),
        ({"reasoning": {"effort": "none"}}, "False|none|"),
        ({"reasoning": {"effort": "ultra"}}, "True|ultra|"),
        ({"reasoning": {"effort": "low"}, "chat_template_kwargs": {"enable_thinking": False}}, "False|low|"),
        ({"reasoning": {"summary": "auto"}}, "||"),
    ):
        assert (await post(app, PATH, ask(**fields))).status == 200
        assert engine.submitted[-1][0] == prompt


async def test_an_incomplete_answer_at_the_end_is_continued(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    for status, text, prompt in (
        ("incomplete", "Hel", "user:hi;assistant:Hel"),
        ("in_progress", "Hel", "user:hi;assistant:Hel"),
        ("completed", "Hel", "user:hi;assistant:Hel;"),
        (None, "Hel", "user:hi;assistant:Hel;"),
        ("incomplete", "", "user:hi;assistant:;"),
    ):
        answer = {"role": "assistant", "status": status, "content": [{"type": "output_text", "text": text}]}
        question = {"role": "user", "content": "hi", "status": "incomplete"}
        assert (await post(app, PATH, ask(input=[question, answer]))).status == 200
        assert engine.submitted[-1][0] == prompt
        assert (await post(app, PATH, ask(input=[question, answer, question]))).status == 200
        assert engine.submitted[-1][0] == f"user:hi;assistant:{text};user:hi;"


REFUSED: list[tuple[Any, ...]] = [
    ({"input": None}, "input", "input missing in request"),
    ({"input": ""}, "input", "input cannot be empty"),
    ({"input": []}, "input", "input array must not be empty"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "must be one of"),
    ({"max_output_tokens": 200}, "max_output_tokens", "exceeds limit of this server: 100"),
    ({"metadata": {"a": 1}}, "metadata", "must be a string"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "no more than 16"),
    ({"max_tool_calls": 1e308}, "max_tool_calls", "out of range"),
    ({"include": ["everything"]}, "include", "must be one of"),
    ({"include": [{}]}, "include", "must be one of"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]", "supported, not those of type web_search"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0]", ""),
    ({"tools": [{"type": "namespace", "name": "n", "tools": {}}]}, "tools[0]", ""),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]}, "tools[0].tools[0]", ""),
    ({"tools": [{"type": "custom"}]}, "tools[0].name", ""),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "h"}}, "tool_choice", "is not in tools"),
    ({"tool_choice": "required"}, "tool_choice", "no tools are given"),
    ({"stream_options": {}}, "stream_options", "stream not set to true"),
    ({"stream": True, "stream_options": {"x": True}}, "stream_options", "unexpected stream options"),
    ({"store": False, "background": True}, "background", "requires store to be true"),
    ({"store": False, "conversation": "conv_1"}, "conversation", "requires store to be true"),
    *(({"conversation": name}, "conversation", "must be an id") for name in ("", {}, {"id": 5})),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id", "cannot be used together"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "not supported"),
    ({"reasoning": {"context": "none"}}, "reasoning.context", "must be one of: auto, current_turn"),
    ({"context_management": [{"type": "compaction"}]}, "context_management", "not supported"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,x"}]}]},
        "input",
        "supports only text input",
    ),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "must be one of"),
]


async def test_what_cannot_be_is_refused_with_its_field(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), max_tokens_limit=100)
    for fields, param, words in REFUSED:
        error = await refused(app, **fields)
        assert error["param"] == param, fields
        assert words in error["message"], fields
        assert engine.submitted == [], fields


async def test_input_tokens_are_counted_as_the_response_would_count_them(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    body = ask(instructions="Be brief.")
    counted = await whole(await post(app, PATH + "/input_tokens", body))
    assert engine.submitted == []
    answer = await whole(await post(app, PATH, body))
    assert counted == {"object": "response.input_tokens", "input_tokens": answer["usage"]["input_tokens"]}
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,x"}]}]
    response = await post(app, PATH + "/input_tokens", ask(picture))
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "input")


SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("fields", "echo"),
    [
        ({"text": {"format": {"type": "json_object"}}}, {"type": "json_object"}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"type": "json_schema", "name": "n", "schema": SCHEMA},
        ),
    ],
)
async def test_the_form_of_the_answer_reaches_the_engine_and_is_echoed(
    make_app: MakeApp, fields: Json, echo: Json
) -> None:
    app, engine = await make_app(lambda *_: say('{"a": 1}'))
    for more in ({}, {"stream": True}, {"background": True}):
        response = await post(app, PATH, ask(**fields, **more))
        body = (await streamed(response))[-1]["response"] if "stream" in more else await whole(response)
        assert body["text"] == {"format": echo}
        check_response(body)
    assert len(engine.constraints) == 3
    assert len(set(engine.constraints)) == 1
    assert engine.constraints[0]


async def test_a_form_that_cannot_be_imposed_gets_a_warning_or_is_refused_under_its_own_name(make_app: MakeApp) -> None:
    text = {"format": {"type": "strange"}}
    app, _ = await make_app(say("x"))
    response = await post(app, PATH, ask(text=text))
    assert response.status == 200
    assert any("text.format was not enforced" in text for text in warnings_of(response))
    strict, _ = await make_app(say("x"), strict_response_format=True)
    assert (await refused(strict, text=text))["param"].startswith("text.format")
    both = {"text": {"format": {"type": "json_object"}}, "response_format": {"type": "regex", "pattern": "a"}}
    assert (await refused(strict, **both))["param"] == "text.format"


async def test_the_loop_has_its_turns_while_several_choices_are_read(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "DELTAS", 3)
    app, _ = await make_app(say(*"abcdefgh", sequences=2))
    body = await respond(app, n=2)
    assert [item["content"][0]["text"] for item in body["output"]] == ["abcdefgh", "abcdefgh"]
