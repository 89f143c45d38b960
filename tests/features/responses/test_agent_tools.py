"""Namespaces, custom tools and unsupported tools, as coding agents send them."""

from __future__ import annotations

import threading
from typing import Any

import orjson
import pytest
from openai.types.responses import Response as OpenAIResponse

from lean_ovms.features.responses import request
from lean_ovms.features.responses.agent_tools import AgentTools
from lean_ovms.types import Json
from tests.api.conftest import MakeApp, post, warnings_of, whole
from tests.fakes import say
from tests.features.responses.rules import PATH, ask, refused, respond, streamed

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
SPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "Agents",
    "tools": [{**FUNCTION, "name": "close"}, {"type": "custom", "name": "note"}],
}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}}
TEMPLATE = "{% for t in tools %}{{ t.function.name }},{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
TEMPLATE += "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %};{% endfor %}"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{orjson.dumps({'name': name, 'arguments': arguments}).decode()}</tool_call>"


async def test_a_namespace_is_flat_for_the_model_and_named_in_the_answer(make_app: MakeApp) -> None:
    script = say(call("agents__close", id=1), call("f"), call("agents__note", input='a\n"b"'))
    app, engine = await make_app(script, tool_parser="hermes3", chat_template=TEMPLATE)
    body = ask(tools=[FUNCTION, SPACE])
    answer = await whole(await post(app, PATH, body))
    assert engine.submitted[0][0].startswith("f,agents__close,agents__note,")
    close, plain, note = answer["output"]
    assert (close["type"], close["name"], close["namespace"]) == ("function_call", "close", "agents")
    assert (plain["name"], "namespace" in plain) == ("f", False)
    assert (note["type"], note["name"], note["namespace"]) == ("custom_tool_call", "note", "agents")
    assert note["input"] == 'a\n"b"'
    assert [tool["type"] for tool in answer["tools"]] == ["function", "namespace"]
    assert answer["tools"][1] == SPACE
    OpenAIResponse.model_validate(answer)
    # The client sends the items back, and the model gets the names that it used.
    history = [{"role": "user", "content": "hi"}, *answer["output"]]
    history += [{"type": "custom_tool_call_output", "call_id": note["call_id"], "output": "noted"}]
    assert (await post(app, PATH, {**body, "input": history})).status == 200
    prompt = engine.submitted[1][0]
    assert 'agents__close{"id":1}' in prompt
    assert 'agents__note{"input": "a\\n\\"b\\""}' in prompt
    assert prompt.endswith("tool:noted;")


async def test_a_custom_call_has_events_of_its_own(make_app: MakeApp) -> None:
    text = call("patch", input="*** Begin\n+ä")
    app, _ = await make_app(say(*(text[i : i + 5] for i in range(0, len(text), 5))), tool_parser="hermes3")
    response = await post(app, PATH, ask(tools=[PATCH, FUNCTION], stream=True))
    assert any("not enforced" in text for text in warnings_of(response))
    found = await streamed(response)
    kinds = [event["type"] for event in found]
    start = kinds.index("response.output_item.added")
    assert kinds[start:] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert found[start]["item"]["input"] == ""
    assert found[start + 1]["delta"] == found[start + 2]["input"] == "*** Begin\n+ä"


async def test_a_custom_call_that_is_cut_off_has_no_input(make_app: MakeApp) -> None:
    app, engine = await make_app(say('<tool_call>{"name":"patch","arguments":{"input":"ab', reason="length"),
                                 tool_parser="hermes3")  # fmt: skip
    answer = await respond(app, tools=[PATCH])
    assert answer["status"] == "incomplete"
    assert all(item.get("input", "") == "" for item in answer["output"])
    await respond(app, "go on", previous_response_id=answer["id"])
    assert engine.submitted[-1][0] == "user:hi;user:go on;"


@pytest.mark.parametrize("kind", ["web_search_2026_01_01", "local_shell"])
async def test_what_is_not_run_here_is_left_out_where_other_tools_remain(make_app: MakeApp, kind: str) -> None:
    app, engine = await make_app(say("x"), chat_template=TEMPLATE)
    response = await post(app, PATH, ask(tools=[{"type": kind}, FUNCTION]))
    assert response.status == 200
    [warning] = warnings_of(response)
    assert f"tools[0]: tools of type {kind} are not supported" in warning
    assert [tool["type"] for tool in (await whole(response))["tools"]] == ["function"]
    assert engine.submitted[0][0].startswith("f,user:")
    assert (await refused(app, tools=[{"type": kind}]))["param"] == "tools[0]"


async def test_a_choice_may_name_a_tool_of_a_namespace(make_app: MakeApp) -> None:
    app, engine = await make_app(say(call("agents__close")), tool_parser="hermes3", chat_template=TEMPLATE)
    choice = {"type": "function", "name": "close", "namespace": "agents"}
    answer = await respond(app, tools=[SPACE], tool_choice=choice)
    assert answer["tool_choice"] == choice
    assert engine.submitted[0][0].startswith("agents__close,user:")
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    await respond(app, tools=[SPACE], tool_choice=choice)
    assert engine.submitted[1][0].startswith("agents__close,user:")


async def test_the_grammar_of_a_custom_tool_is_imposed_or_shown(make_app: MakeApp) -> None:
    """OpenAI has two syntaxes: https://platform.openai.com/docs/guides/function-calling#context-free-grammars"""
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-c]+|x"}
    app, engine = await make_app(say(call("letters", input="abc")), tool_parser="hermes3", chat_template=TEMPLATE)
    body = ask(tools=[{"type": "custom", "name": "letters", "format": form}])
    response = await post(app, PATH, body)
    assert not warnings_of(response)
    assert (await whole(response))["output"][0]["input"] == "abc"
    constraint = engine.constraints[0]
    assert "[a-c]" in constraint
    assert "<tool_call>" in constraint
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: X+\nX: "a".."d"'}
    response = await post(app, PATH, {**body, "tools": [{"type": "custom", "name": "letters", "format": form}]})
    assert not warnings_of(response)
    assert "[a-d]" in engine.constraints[1]
    response = await post(app, PATH, {**body, "tools": [PATCH]})
    assert "not enforced: the grammar has no rule x" in dict(response.headers)["Warning"]


async def test_names_that_cannot_be_told_apart_or_are_too_long_are_refused(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"))
    plain = {"type": "function", "name": "agents__close"}
    nested = {"type": "function", "function": {"name": "patch"}}
    for tools in ([SPACE, plain], [plain, SPACE], [nested, PATCH], [PATCH, PATCH]):
        assert "two tools have the same name" in (await refused(app, tools=tools))["message"]
    await respond(app, tools=[plain, plain])
    error = await refused(app, tools=[{**SPACE, "name": "x" * 257}])
    assert error["param"] == "tools[0].name"


SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools",
    "parameters": {"type": "object", "properties": {"goal": {"type": "string"}}, "required": ["goal"]},
}


async def test_a_search_of_the_client_finds_tools_that_can_be_called(make_app: MakeApp) -> None:
    said = [call("tool_search", goal="close"), call("agents__close", id=1) + call("g", x=1)]
    app, engine = await make_app(lambda *_: say(said.pop(0)), tool_parser="hermes3", chat_template=TEMPLATE)
    body = ask(tools=[FUNCTION, SEARCH])
    answer = await whole(await post(app, PATH, body))
    assert engine.submitted[0][0].startswith("f,tool_search,user:")
    [search] = answer["output"]
    assert (search["type"], search["execution"], search["status"]) == ("tool_search_call", "client", "completed")
    assert search["arguments"] == {"goal": "close"}
    assert [tool["type"] for tool in answer["tools"]] == ["function", "tool_search"]
    OpenAIResponse.model_validate(answer)
    other = {**FUNCTION, "name": "g", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    loaded = {
        "type": "tool_search_output",
        "call_id": search["call_id"],
        "execution": "client",
        "status": "completed",
        "tools": [SPACE, other, {"type": "web_search"}, {**FUNCTION, "description": "another f"}],
    }
    history = [{"role": "user", "content": "hi"}, search, loaded]
    answer = await whole(await post(app, PATH, {**body, "input": history}))
    prompt = engine.submitted[1][0]
    assert prompt.startswith("f,tool_search,user:hi;assistant:")  # the same beginning, which stays cached
    assert 'tool_search{"goal": "close"};tool:' in prompt
    assert '"name":"agents__close"' in prompt
    close, plain = answer["output"]
    assert (close["name"], close["namespace"], plain["name"]) == ("close", "agents", "g")
    assert [tool["type"] for tool in answer["tools"]] == ["function", "tool_search"]
    OpenAIResponse.model_validate(answer)


async def test_what_a_search_found_in_an_earlier_turn_can_be_called(make_app: MakeApp) -> None:
    said = [call("tool_search", goal="close"), "Found.", call("agents__close", id=1)]
    app, engine = await make_app(lambda *_: say(said.pop(0)), tool_parser="hermes3", chat_template=TEMPLATE)
    answer = await respond(app, tools=[SEARCH])
    call_id = answer["output"][0]["call_id"]
    loaded = {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": [SPACE]}
    answer = await respond(app, [loaded], tools=[SEARCH], previous_response_id=answer["id"])
    answer = await respond(app, "Now close it.", tools=[SEARCH], previous_response_id=answer["id"])
    [close] = answer["output"]
    assert (close["type"], close["name"], close["namespace"]) == ("function_call", "close", "agents")
    assert [tool["type"] for tool in answer["tools"]] == ["tool_search"]
    prompts = [prompt for prompt, _ in engine.submitted]
    assert all(prompt.startswith("tool_search,user:") for prompt in prompts)


@pytest.mark.parametrize(
    ("kind", "more"), [("function", {}), ("allowed_tools", {}), ("function", {"audio": {"format": "wav"}})]
)
async def test_tool_choice_may_name_what_a_search_found_in_a_stored_turn(
    make_app: MakeApp, kind: str, more: Json
) -> None:
    said = [call("tool_search", goal="close"), "Found.", call("agents__close", id=1)]
    app, engine = await make_app(lambda *_: say(said.pop(0)), tool_parser="hermes3", chat_template=TEMPLATE)
    answer = await respond(app, tools=[SEARCH])
    call_id = answer["output"][0]["call_id"]
    loaded = {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": [SPACE]}
    answer = await respond(app, [loaded], tools=[SEARCH], previous_response_id=answer["id"])
    named: Json = {"type": "function", "name": "close", "namespace": "agents"}
    choice = named if kind == "function" else {"type": kind, "mode": "required", "tools": [named]}
    ask_for = {"tools": [SEARCH], "previous_response_id": answer["id"], **more}
    error = await refused(app, tool_choice={"type": "function", "name": "open"}, **ask_for)
    assert (error["param"], "names 'open', which is not in tools" in error["message"]) == ("tool_choice", True)
    answer = await respond(app, "Close it.", tool_choice=choice, **ask_for)
    [close] = answer["output"]
    assert (close["name"], close["namespace"]) == ("close", "agents")
    assert "agents__close" in engine.constraints[-1]
    assert "tool_search" not in engine.constraints[-1]


async def test_what_searches_have_found_is_read_in_a_thread(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []

    def load(tools: AgentTools, items: list[Json]) -> None:
        loads.append((threading.current_thread(), len(items)))

    monkeypatch.setattr(request, "load", load)
    app, _ = await make_app(lambda *_: say("x"), tool_parser="hermes3", chat_template=TEMPLATE)
    answer = await respond(app, tools=[SEARCH])
    await respond(app, tools=[FUNCTION], previous_response_id=answer["id"])
    assert loads == []
    await respond(app, tools=[SEARCH], previous_response_id=answer["id"])
    [(thread, count)] = loads
    assert (thread is threading.main_thread(), count) == (False, 2)


async def test_a_search_has_the_events_of_an_item_and_may_be_required(make_app: MakeApp) -> None:
    app, engine = await make_app(say(call("tool_search", query="x")), tool_parser="hermes3")
    choice = {"type": "function", "name": "tool_search"}
    response = await post(app, PATH, ask(tools=[{"type": "tool_search", "execution": "client"}], stream=True,
                                         tool_choice=choice))  # fmt: skip
    kinds = [event["type"] for event in await streamed(response)]
    assert kinds[-3:] == ["response.output_item.added", "response.output_item.done", "response.completed"]
    assert '"query"' in engine.constraints[0]


async def test_a_search_that_is_cut_off_is_not_in_the_next_turn(make_app: MakeApp) -> None:
    app, engine = await make_app(say('<tool_call>{"name":"tool_search","arguments":{"goal":"ab', reason="length"),
                                 tool_parser="hermes3")  # fmt: skip
    answer = await respond(app, tools=[SEARCH])
    assert [(item["type"], item["status"], item["arguments"]) for item in answer["output"]] == [
        ("tool_search_call", "incomplete", {})
    ]
    await respond(app, "go on", previous_response_id=answer["id"])
    assert "tool_search" not in engine.submitted[1][0]


async def test_a_search_that_openai_runs_is_left_out(make_app: MakeApp) -> None:
    app, engine = await make_app(say("x"), tool_parser="hermes3", chat_template=TEMPLATE)
    response = await post(app, PATH, ask(tools=[{**FUNCTION, "defer_loading": True}, {"type": "tool_search"}]))
    assert "tool_search are not supported" in dict(response.headers)["Warning"]
    assert engine.submitted[0][0].startswith("f,user:")
    await response.aclose()
