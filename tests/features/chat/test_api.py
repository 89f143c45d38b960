"""chat/completions with a scripted engine: exact JSON, streams, errors, cancellation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from lean_ovms.errors import EngineFailure, TooManyRequests
from tests.api.conftest import MakeApp, events, get, parts, post, whole
from tests.fakes import EOS, Script, say

PATH = "/v3/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def ask(**fields: Any) -> dict[str, Any]:
    return {**HELLO, **fields}


async def test_a_whole_answer_has_the_contracts_shape(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("Hel", "lo"))
    body = await whole(await post(app, PATH, HELLO))
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body.pop("system_fingerprint").startswith("lean_ovms-")
    assert body == {
        "choices": [
            {
                "finish_reason": "stop",
                "index": 0,
                "logprobs": None,
                "message": {"content": "Hello", "role": "assistant", "tool_calls": []},
            }
        ],
        "model": "m",
        "object": "chat.completion",
        "usage": {"prompt_tokens": 8, "completion_tokens": 6, "total_tokens": 14},
    }
    assert engine.submitted[0][0] == "user:hi;"
    fields = ask(skip_special_tokens=False, max_tokens=5, max_completion_tokens=9, no_such_field=1)
    body = await whole(await post(app, PATH, fields))
    assert body["choices"][0]["message"]["content"] == "Hello<eos>"
    assert engine.submitted[1][1].max_tokens == 9


async def test_models_are_named_by_aliases_and_refused_before_a_stream(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("x"), model_aliases="also gpt-4", response_role="model")
    assert (await whole(await post(app, PATH, ask(model="gpt-4"))))["model"] == "m"
    listed = (await whole(await get(app, "/v1/models")))["data"]
    assert [(one["id"], one.get("root")) for one in listed] == [("m", "m"), ("also", "m"), ("gpt-4", "m")]
    assert (await whole(await get(app, "/v1/models/gpt-4")))["id"] == "gpt-4"
    response = await post(app, PATH, ask(model="gpt-5"))
    error = (await whole(response))["error"]
    assert (response.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "served models: m" in error["message"]
    assert (await whole(await post(app, PATH, HELLO)))["choices"][0]["message"]["role"] == "model"
    [first, *_] = await events(await post(app, PATH, ask(stream=True)))
    assert first["choices"][0]["delta"]["role"] == "model", "the role of answers is an option"
    engine.refusal = TooManyRequests("too many requests are waiting")
    response = await post(app, PATH, ask(stream=True))
    assert (response.status, ("Retry-After", "1") in response.headers) == (429, True)


async def test_a_stream_is_role_deltas_finish_usage_done(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("Hello", " there."))
    response = await post(app, PATH, ask(stream=True, stream_options={"include_usage": True}))
    assert ("Content-Type", "text/event-stream; charset=utf-8") in response.headers
    found = await events(response)
    assert found.pop() == "[DONE]"
    assert {e["object"] for e in found} == {"chat.completion.chunk"}
    assert len({(e["id"], e["created"], e["model"]) for e in found}) == 1
    last = found.pop()
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 8, "completion_tokens": 13, "total_tokens": 21}
    assert all(e["usage"] is None for e in found)
    assert [(c["delta"], c["finish_reason"], c["logprobs"]) for e in found for c in e["choices"]] == [
        ({"role": "assistant", "content": None}, None, None),
        ({"content": "Hello"}, None, None),
        ({"content": " there."}, None, None),
        ({}, "stop", None),
    ]
    found = await events(await post(app, PATH, ask(stream=True, stream_options={"continuous_usage_stats": True})))
    counts = [e["usage"]["completion_tokens"] for e in found[:-1]]
    assert (counts, counts[-1]) == (sorted(counts), 13)


async def test_obfuscated_chunks_have_lengths_that_tell_little(make_app: MakeApp) -> None:
    for asked, lengths in ((True, 1), (False, 2)):
        app, _ = await make_app(say("a", "a longer piece"))
        response = await post(app, PATH, ask(stream=True, stream_options={"include_obfuscation": asked}))
        found = [e for e in (await events(response))[:-1] if e["choices"][0]["delta"].get("content")]
        assert len({len(orjson.dumps(e)) % 16 for e in found}) == lengths
        assert all(("obfuscation" in e) is asked for e in found)


async def test_n_choices_stream_side_by_side(make_app: MakeApp) -> None:
    app, engine = await make_app([[(0, "a", None), (1, "x", None)], [(1, "y", "length")], [(0, "b", "stop")]])
    found = await events(await post(app, PATH, ask(stream=True, n=2)))
    chunks = [c for e in found[:-1] for c in e["choices"]]
    texts = ["".join(c["delta"].get("content") or "" for c in chunks if c["index"] == i) for i in (0, 1)]
    assert texts == ["ab", "xy"]
    assert {c["index"]: c["finish_reason"] for c in chunks if c["finish_reason"]} == {0: "stop", 1: "length"}
    assert engine.submitted[0][1].n == 2


@pytest.mark.parametrize("named", [False, True])
async def test_logprobs_and_ids_come_with_their_text_in_both_modes(make_app: MakeApp, named: bool) -> None:
    app, _ = await make_app(lambda *_: say("ab", "c"))
    fields = ask(logprobs=True, return_tokens_as_token_ids=named, return_token_ids=True)
    unary = await whole(await post(app, PATH, fields))
    content = unary["choices"][0]["logprobs"]["content"]
    name = "token_id:97" if named else "a"
    assert content[0] == {"token": name, "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    assert len(content) == unary["usage"]["completion_tokens"]
    assert (unary["prompt_token_ids"], unary["choices"][0]["token_ids"]) == (list(b"user:hi;"), [*b"abc", EOS])
    found = await events(await post(app, PATH, fields | {"stream": True}))
    streamed = [t for e in found[:-1] for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
    assert streamed == content
    assert found[0]["prompt_token_ids"] == list(b"user:hi;")
    assert [t for e in found[:-1] for c in e["choices"] for t in c["token_ids"]] == [*b"abc", EOS]


async def test_a_stop_string_over_token_borders_ends_the_work_and_is_shown_in_streams_alone(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: [[(0, p, None)] for p in ("Hello ", "EN", "D mo", "re")])
    body = await whole(await post(app, PATH, ask(stop=["END"])))
    choice = body["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("Hello ", "stop", "END")
    assert len(engine.cancelled) == 1
    assert not engine.mail.busy
    for extra, text in (({}, "Hello END"), ({"include_stop_str_in_output": False}, "Hello ")):
        found = await events(await post(app, PATH, ask(stop="END", stream=True, **extra)))
        assert "".join(c["delta"].get("content") or "" for e in found[:-1] for c in e["choices"]) == text
        assert (found[-2]["choices"][0]["finish_reason"], found[-2]["choices"][0]["stop_reason"]) == ("stop", "END")
        assert not any("stop_reason" in e["choices"][0] for e in found[:-2])


async def test_an_answers_id_ends_with_the_request_id_that_is_given(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"))
    assert (await whole(await post(app, PATH, ask(request_id="mine 1"))))["id"] == "chatcmpl-mine 1"
    found = await events(await post(app, PATH, ask(request_id="mine", stream=True)))
    assert {e["id"] for e in found[:-1]} == {"chatcmpl-mine"}
    for wrong in ("", "a\n", "é", "x" * 129):
        response = await post(app, PATH, ask(request_id=wrong))
        assert (response.status, (await whole(response))["error"]["param"]) == (400, "request_id")


async def test_reasoning_has_the_names_of_both_servers(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("<think>", 'h"m', "</think>", "yes"), reasoning_parser="qwen3")
    message = (await whole(await post(app, PATH, HELLO)))["choices"][0]["message"]
    assert (message["reasoning_content"], message["reasoning"], message["content"]) == ('h"m', 'h"m', "yes")
    found = await events(await post(app, PATH, ask(stream=True)))
    deltas = [c["delta"] for e in found[:-1] for c in e["choices"]]
    assert {"reasoning_content": 'h"m', "reasoning": 'h"m'} in deltas
    body = await whole(await post(app, PATH, ask(include_reasoning=False)))
    assert body["choices"][0]["message"] == {"content": "yes", "role": "assistant", "tool_calls": []}
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    found = await events(await post(app, PATH, ask(include_reasoning=False, stream=True)))
    deltas = [c["delta"] for e in found[:-1] for c in e["choices"]]
    assert deltas == [{"role": "assistant", "content": None}, {"content": "yes"}, {}]
    assert all("usage" not in e for e in found[:-1])


async def test_documents_reach_the_template(make_app: MakeApp) -> None:
    template = "{% for d in documents or [] %}[{{ d.title }}]{% endfor %}{{ messages[0].content }}"
    app, engine = await make_app(lambda *_: say("x"), chat_template=template)
    for fields, text in [
        ({"documents": [{"title": "A", "text": "a"}, {"title": "B", "text": "b"}]}, "[A][B]hi"),
        ({"documents": [{"title": "A"}], "chat_template_kwargs": {"documents": [{"title": "C"}]}}, "[C]hi"),
        ({}, "hi"),
    ]:
        response = await post(app, PATH, ask(**fields))
        await whole(response)
        assert (engine.submitted[-1][0], dict(response.headers).get("Warning")) == (text, None)
        body = await whole(await post(app, "/tokenize", ask(**fields)))
        assert body["count"] == len(text)
    response = await post(app, PATH, ask(documents=["a"]))
    assert (response.status, (await whole(response))["error"]["param"]) == (400, "documents")


@pytest.mark.parametrize("path", [PATH, "/v2/chat"])
async def test_documents_that_the_template_does_not_show_are_said(make_app: MakeApp, path: str) -> None:
    app, _ = await make_app(lambda *_: say("x"), chat_template="{{ messages[0].content }}")
    response = await post(app, path, ask(documents=[{"data": "a"}]))
    assert response.status == 200
    assert dict(response.headers)["Warning"].endswith(
        '"documents has no effect: the model\'s chat template shows none"'
    )


@pytest.mark.parametrize("prompts", [0, 2])
async def test_a_beam_search_may_find_fewer_texts(make_app: MakeApp, prompts: int) -> None:
    app, _ = await make_app([[(0, "a", "stop"), (1, "", "absent"), (2, "", "absent")]], metrics_enable=True)
    path = "/v1/completions" if prompts else PATH
    body = {"model": "m", "prompt": ["x"] * prompts, "best_of": 3, "n": 3} if prompts else ask(best_of=3, n=3)
    found = await whole(await post(app, path, body))
    indices = [0, 3] if prompts else [0]
    assert [(choice["index"], choice["finish_reason"]) for choice in found["choices"]] == [(i, "stop") for i in indices]
    *chunks, _ = await events(await post(app, path, {**body, "stream": True}))
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == set(indices)
    metrics = app.registry.models["m"].metrics.expose().decode()
    assert 'finished_reason="abort"' not in metrics
    assert f'vllm:request_success_total{{finished_reason="stop",model_name="m"}} {2 * len(indices)}' in metrics


WRONG_FIELDS: list[tuple[Any, ...]] = [
    ({"model": 5}, "model field is not a string", "model"),
    ({"messages": None}, "Messages missing in request", "messages"),
    ({"messages": []}, "Messages array cannot be empty", "messages"),
    ({"messages": "hi"}, "Messages are not an array", "messages"),
    ({"messages": [5]}, "Message is not a JSON object", "messages[0]"),
    ({"messages": [{"content": "x"}]}, "Every message must have 'role' field", "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "Invalid message structure - content text missing",
        "messages[0].content[0]",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "This servable supports only text input, but image_url has been provided",
        "messages[0].content[0]",
    ),
    ({"max_tokens": 0}, "max_tokens value should be greater than 0", "max_tokens"),
    ({"max_completion_tokens": 0}, "max_tokens value should be greater than 0", "max_completion_tokens"),
    ({"top_logprobs": 21}, "top_logprobs exceeds limit of this server: 20", "top_logprobs"),
    ({"skip_special_tokens": 1}, "skip_special_tokens is not a bool", "skip_special_tokens"),
    ({"stream_options": {}}, "stream_options provided, but stream not set to true", "stream_options"),
    ({"logprobs": 1}, "logprobs accepts values true or false", "logprobs"),
    ({"tools": {}}, "Tools are not an array", "tools"),
    ({"tools": [{"type": "function", "function": {}}]}, None, "tools[0].function.name"),
    ({"tool_choice": "maybe"}, "tool_choice should be either 'none' or 'auto' or 'required'", "tool_choice"),
    ({"chat_template_kwargs": 1}, "chat_template_kwargs must be an object", "chat_template_kwargs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, None, "continue_final_message"),
]


async def test_what_is_wrong_with_a_request_is_said(make_app: MakeApp) -> None:
    app, engine = await make_app()
    for fields, message, param in WRONG_FIELDS:
        response = await post(app, PATH, ask(**fields))
        error = (await whole(response))["error"]
        assert response.status == 400, fields
        assert error["type"] == "invalid_request_error", fields
        assert error["param"] == param, fields
        assert message is None or error["message"] == message, fields
        assert engine.submitted == [], fields


async def test_a_failure_is_a_status_and_in_a_stream_an_event_behind_which_it_ends(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: [[(0, "Hel", None)], EngineFailure("out of memory")])
    response = await post(app, PATH, HELLO)
    assert (response.status, (await whole(response))["error"]["message"]) == (500, "out of memory")
    found = await events(await post(app, PATH, ask(stream=True)))
    assert found[-1] == "[DONE]"
    assert found[-2]["error"]["message"] == "out of memory"
    assert found[1]["choices"][0]["delta"] == {"content": "Hel"}
    assert not engine.mail.busy


async def test_a_client_that_leaves_stops_the_work(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: [[(0, "x", None)]] * 100)
    response = await post(app, PATH, ask(stream=True))
    async for _ in parts(response):
        break
    await response.aclose()
    assert [(c.id, c.index) for c in engine.cancelled] == [(1, None)]
    assert not engine.mail.busy
    await (await post(app, PATH, ask(stream=True))).aclose()  # nothing of it was read
    assert len(engine.cancelled) == 2


async def test_a_deadline_ends_a_generation_with_an_error(make_app: MakeApp) -> None:
    app, engine = await make_app([[(0, "x", None)]], request_timeout_s=0.02)
    response = await post(app, PATH, HELLO)
    assert (response.status, (await whole(response))["error"]["code"]) == (408, "request_timeout")
    assert len(engine.cancelled) == 1


HIDDEN: Script = [[(0, "<think>", None)], *[[(0, "x", None)]] * 100_000]
"""Reasoning that does not end."""


@pytest.mark.parametrize("script", [[[(0, "x", None)]], HIDDEN], ids=["nothing", "reasoning"])
async def test_a_stream_pings_while_nothing_or_nothing_visible_is_generated(make_app: MakeApp, script: Script) -> None:
    app, _ = await make_app(script, sse_ping_s=0.01, reasoning_parser="qwen3")
    response = await post(app, PATH, ask(stream=True, include_reasoning=False))
    pings = 0
    async for part in parts(response):
        pings += part == b": ping\n\n"
        if pings == 2:
            break
    assert pings == 2


async def test_effort_and_verbosity_reach_the_template(make_app: MakeApp) -> None:
    template = "{{ enable_thinking }}|{{ reasoning_effort }}|{{ verbosity }}"
    app, engine = await make_app(lambda *_: say("x"), chat_template=template)
    for fields, prompt in (
        ({"reasoning_effort": "high", "verbosity": "low"}, "True|high|low"),
        ({"reasoning_effort": "none"}, "False|none|"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "False|low|"),
        ({}, "||"),
    ):
        assert (await post(app, PATH, ask(**fields))).status == 200
        assert engine.submitted[-1][0] == prompt


async def test_null_and_the_default_of_strict_in_a_tool_are_absent(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("x"), chat_template="{{ tools | tojson }}")
    for strict in (None, False):
        function = {"name": "f", "description": None, "parameters": None, "strict": strict}
        for tool in ({"type": "function", "function": function}, {"type": "function", **function}):
            assert (await post(app, PATH, ask(tools=[tool]))).status == 200
            assert engine.submitted[-1][0] == '[{"type": "function", "function": {"name": "f"}}]'


async def test_old_function_calling_is_read_as_tool_calls(make_app: MakeApp) -> None:
    template = "{% for m in messages %}{{ m.role }}{{ m.tool_call_id }}:{{ m.content }}"
    template += (
        "{% for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    )
    app, engine = await make_app(say("x"), chat_template=template + ";{% endfor %}")
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": '{"a":1}'}},
        {"role": "function", "name": "f", "content": "42"},
        {"role": "assistant", "content": "", "function_call": {"name": "g", "arguments": "{}"}},
        {"role": "function", "name": "g", "content": "43"},
    ]
    assert (await post(app, PATH, ask(messages=messages))).status == 200
    assert engine.submitted[0][0] == (
        'user:hi;assistant:call_1=f{"a":1};toolcall_1:42;assistant:call_2=g{};toolcall_2:43;'
    )
    wrong = [{"role": "assistant", "content": "", "function_call": "f"}]
    error = (await whole(await post(app, PATH, ask(messages=wrong))))["error"]
    assert error["param"] == "messages[0].function_call"


async def test_parts_of_the_responses_api_are_read(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    messages = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]},
        {"role": "user", "content": "and?"},
    ]
    assert (await post(app, PATH, ask(messages=messages))).status == 200
    assert engine.submitted[0][0] == "user:hi;assistant:yes;user:and?;"
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}]
    error = (await whole(await post(app, PATH, ask(messages=image))))["error"]
    assert "supports only text input" in error["message"]
    missing = [{"role": "user", "content": [{"type": "input_text"}]}]
    assert (await post(app, PATH, ask(messages=missing))).status == 400


async def test_texts_alone_and_parts_without_a_type_are_read_as_in_vllm(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    messages = [{"role": "user", "content": ["a", {"text": "b"}, {"type": None, "text": "c"}]}]
    assert (await post(app, PATH, ask(messages=messages))).status == 200
    assert engine.submitted[0][0] == "user:a\nb\nc;"
    for part, said in (
        ({"image_url": "https://x/y.png"}, "supports only text input, but image_url"),
        ({"name": "x"}, "content object type missing"),
        ({"type": 5, "text": "x"}, "content object type missing"),
        (5, "content array should contain objects"),
    ):
        response = await post(app, PATH, ask(messages=[{"role": "user", "content": [part]}]))
        error = (await whole(response))["error"]
        assert (response.status, error["param"]) == (400, "messages[0].content[0]")
        assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {**HELLO, "max_tokens": 8000}),
        (PATH, {**HELLO, "max_completion_tokens": 8000}),
        ("/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 8000}),
        ("/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": 8000}),
        ("/v1/messages", {**HELLO, "max_tokens": 8000}),
    ],
)
async def test_too_many_tokens_are_refused_or_clamped(make_app: MakeApp, path: str, body: dict[str, Any]) -> None:
    app, engine = await make_app(say("x"), max_tokens_limit=50)
    refused = await post(app, path, body)
    assert refused.status == 400
    assert "exceeds limit of this server: 50" in (await whole(refused))["error"]["message"]
    app, engine = await make_app(say("x"), max_tokens_limit=50, clamp_max_tokens=True)
    assert (await post(app, path, body)).status == 200
    assert engine.submitted[0][1].max_tokens == 50


CALLED = '<tool_call>{"name":"f","arguments":{"x":[1,2]}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        (CALLED, {}, "tool_calls"),
        (CALLED, {"stop": ["</tool"]}, "tool_calls"),
        (CALLED, {"stop": [",2"]}, "stop"),
        (CALLED, {"stop": ["{"]}, "stop"),
        (CALLED + CALLED, {"stop": ["2]"], "min_tokens": len(CALLED)}, "stop"),
        (CALLED + CALLED, {"stop": ["</tool"], "min_tokens": len(CALLED)}, "tool_calls"),
        (CALLED.replace("2]", ""), {}, "stop"),
    ],
)
async def test_an_answer_that_ends_inside_of_a_call_is_not_said_to_call(
    make_app: MakeApp, text: str, fields: dict[str, Any], expected: str
) -> None:
    app, _ = await make_app(lambda *_: say(*text), tool_parser="hermes3")
    asked = ask(tools=[{"type": "function", "function": {"name": "f"}}], include_stop_str_in_output=False, **fields)
    choice = (await whole(await post(app, PATH, asked)))["choices"][0]
    found = await events(await post(app, PATH, asked | {"stream": True}))
    assert [choice["finish_reason"], found[-2]["choices"][0]["finish_reason"]] == [expected] * 2
    for call in choice["message"]["tool_calls"] if expected == "tool_calls" else ():
        assert orjson.loads(call["function"]["arguments"]) == {"x": [1, 2]}


async def test_a_prompt_that_is_to_end_in_two_ways_is_refused(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"))
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    twice: list[Any] = [{"add_generation_prompt": True}, {"chat_template_kwargs": {"add_generation_prompt": True}}]
    for fields in twice:
        asked = {"model": "m", "messages": talk, "continue_final_message": True, **fields}
        error = (await whole(await post(app, PATH, asked)))["error"]
        assert error["message"] == "continue_final_message and add_generation_prompt cannot both be true"
        assert error["param"] == "continue_final_message"
    assert engine.submitted == []
