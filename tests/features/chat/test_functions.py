"""OpenAI's older function calling: `functions` and `function_call` become tools, and a call becomes `function_call`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.conftest import MakeApp, events, post, whole
from tests.fakes import say

PATH = "/v1/chat/completions"
TEMPLATE = "{{ tools | tojson if tools else 'no tools' }}"
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
F: dict[str, Any] = {"name": "f", "description": "d", "parameters": {"type": "object"}}
G: dict[str, Any] = {"name": "g"}


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


async def test_a_call_is_the_messages_function_call(make_app: MakeApp) -> None:
    script = [[(0, piece, None)] for piece in (CALL, CALL, "never", " seen")]
    app, engine = await make_app(script, tool_parser="hermes3", chat_template=TEMPLATE)
    [choice] = (await whole(await post(app, PATH, ask(functions=[F, G]))))["choices"]
    assert choice["message"] == {
        "content": "",
        "role": "assistant",
        "tool_calls": [],
        "function_call": {"name": "f", "arguments": '{"x": 1}'},
    }
    assert choice["finish_reason"] == "function_call"
    assert len(engine.cancelled) == 1, "the answer ends with its first call"
    assert json.loads(engine.submitted[0][0]) == [{"type": "function", "function": tool} for tool in (F, G)]


async def test_a_call_is_streamed_as_function_call(make_app: MakeApp) -> None:
    app, _ = await make_app(say(*CALL), tool_parser="hermes3", chat_template=TEMPLATE)
    chunks = await events(await post(app, PATH, ask(functions=[F], stream=True)))
    choices = [chunk["choices"][0] for chunk in chunks if chunk != "[DONE]"]
    calls = [choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]]
    assert calls[0] == {"name": "f", "arguments": ""}
    assert json.loads("".join(call["arguments"] for call in calls)) == {"x": 1}
    assert all(set(call) == {"arguments"} for call in calls[1:])
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["function_call"]
    assert not any("tool_calls" in choice["delta"] for choice in choices)


@pytest.mark.parametrize(
    ("call", "offered", "forced"),
    [(None, ["f", "g"], False), ("auto", ["f", "g"], False), ("none", [], False), ({"name": "g"}, ["g"], True)],
)
async def test_function_call_is_tool_choice(make_app: MakeApp, call: Any, offered: list[str], forced: bool) -> None:
    app, engine = await make_app(say("x"), tool_parser="hermes3", chat_template=TEMPLATE)
    answer = await whole(await post(app, PATH, ask(functions=[F, G], function_call=call)))
    prompt = engine.submitted[0][0]
    tools = [] if prompt == "no tools" else json.loads(prompt)
    assert [tool["function"]["name"] for tool in tools] == offered
    assert bool(engine.constraints[0]) is forced
    [choice] = answer["choices"]
    assert choice["message"] == {"content": "x", "role": "assistant", "tool_calls": []}


async def test_tools_win_over_functions(make_app: MakeApp) -> None:
    app, engine = await make_app(say(CALL), tool_parser="hermes3", chat_template=TEMPLATE)
    tools = [{"type": "function", "function": F}]
    [choice] = (await whole(await post(app, PATH, ask(functions=[G], tools=tools))))["choices"]
    assert json.loads(engine.submitted[0][0]) == tools
    assert choice["finish_reason"] == "tool_calls"
    assert "function_call" not in choice["message"]
    assert choice["message"]["reasoning"] is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"functions": [5]}, "functions[0]"),
    ({"functions": [F, {"name": ""}]}, "functions[1]"),
    ({"functions": [{"name": "f", "parameters": []}]}, "functions[0].parameters"),
    ({"functions": [F], "function_call": "required"}, "function_call"),
    ({"functions": [F], "function_call": {}}, "function_call"),
    ({"functions": [F], "function_call": {"name": "g"}}, "function_call"),
]


async def test_wrong_fields_are_named(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    for fields, param in WRONG:
        response = await post(app, PATH, ask(**fields))
        assert (response.status, (await whole(response))["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        (
            {"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
            '<tool_call>\n{"name": "sh", "arguments": {"input": "ls"}}\n</tool_call>',
        ),
        ({"refusal": "No."}, "No."),
    ],
)
async def test_other_answers_of_openai_are_shown(make_app: MakeApp, message: dict[str, Any], seen: Any) -> None:
    template = "{{ messages[1].content | tojson }}"
    app, engine = await make_app(say("x"), chat_template=template)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", **message}, {"role": "user", "content": "hi"}]
    assert (await post(app, PATH, ask(messages=messages))).status == 200
    assert json.loads(engine.submitted[0][0]) == seen
