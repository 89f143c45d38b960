"""Tools of MCP servers in responses, with scripted connections. test_real_servers.py has real ones."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import orjson
import pytest
from openai.types.responses import Response as OpenAIResponse

from lean_ovms.api.app import App
from lean_ovms.errors import StartError
from lean_ovms.features.mcp import loop
from lean_ovms.features.mcp.request import execution_error
from lean_ovms.features.mcp.sessions import ListingFailed, ToolFailed
from lean_ovms.types import Json, Request
from tests.api.conftest import MakeApp, parts, post, whole
from tests.fakes import FakeEngine, say
from tests.features.responses.rules import parse_sse

PATH = "/v1/responses"
URL = "https://tools.example/mcp"
SERVERS = f"calc={URL} files=command 'with blanks'"
CALC: Json = {"type": "mcp", "server_label": "calc", "require_approval": "never"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"name": "add", "description": "Adds.", "input_schema": SCHEMA, "annotations": {"readOnlyHint": True}},
    {"name": "drop", "description": None, "input_schema": SCHEMA, "annotations": None},
]
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}|{% for m in messages %}{{ m.role }}:{{ m.content }}"
)
TEMPLATE += "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %};{% endfor %}"


def wanted(name: str = "calc__add", **arguments: Any) -> str:
    return f"<tool_call>{orjson.dumps({'name': name, 'arguments': arguments}).decode()}</tool_call>"


class Sessions:
    """ToolSessions without servers. `results` has results by the name of the tool; calls of other tools never
    return."""

    log: list[Any]
    results: dict[str, Any]

    def __init__(self, servers: Any, tools: Any) -> None:
        self.tools = {tool.label: tool for tool in tools}
        self.log.append({label: (tool.server.url, tool.headers) for label, tool in self.tools.items()})

    async def list_tools(self, label: str) -> list[Json]:
        self.log.append(f"list {label}")
        if isinstance(found := self.results.get("list", TOOLS), Exception):
            raise found
        return [tool for tool in found if self.tools[label].is_allowed(tool)]

    async def call(self, tool: Any, arguments: str) -> str:
        self.log.append(f"call {tool.namespace} {tool.name} {arguments}")
        if tool.name not in self.results:
            await asyncio.Event().wait()
        result = self.results[tool.name]
        if isinstance(result, Exception):
            raise result
        return str(result)

    def close(self) -> None:
        if self.log[-1] != "close":
            self.log.append("close")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> type[Sessions]:
    class Mine(Sessions):
        """Sessions with a log of their own."""

    Mine.log, Mine.results = [], {"add": 3, "drop": ToolFailed(execution_error("it is locked"))}
    monkeypatch.setattr(loop, "ToolSessions", Mine)
    return Mine


async def made(make_app: MakeApp, *scripts: Any, **options: Any) -> tuple[App, FakeEngine]:
    """Returns an app whose engine answers with these scripts, one after the other."""
    left = [say(script) if isinstance(script, str) else script for script in scripts]
    options = {"tool_parser": "hermes3", "chat_template": TEMPLATE, "tool_server": SERVERS, **options}
    return await make_app(lambda prompt, sampling: left.pop(0), **options)


def body(**fields: Any) -> Json:
    return {"model": "m", "input": "hi", "tools": [CALC], **fields}


async def answered(app: App, status: int = 200, **fields: Any) -> Json:
    response = await post(app, PATH, body(**fields))
    found: Json = await whole(response)
    assert response.status == status, found
    if status == 200:
        OpenAIResponse.model_validate(found)
    return found


def types(found: Json) -> list[str]:
    return [item["type"] for item in found["output"]]


async def test_calls_are_made_until_the_model_answers(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app, wanted(a=1), wanted("calc__drop", a=2), "done", metrics_enable=True)
    found = await answered(app)
    assert types(found) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
    listing, add, drop, _ = found["output"]
    assert [tool["name"] for tool in listing["tools"]] == ["add", "drop"]
    assert (add["status"], add["name"], add["server_label"], add["output"]) == ("completed", "add", "calc", "3")
    assert (drop["status"], drop["output"], drop["error"]["type"]) == ("failed", None, "mcp_tool_execution_error")
    assert sessions.log == [
        {"calc": (URL, {})},
        "list calc",
        'call calc add {"a":1}',
        'call calc drop {"a":2}',
        "close",
    ]
    prompts = [prompt for prompt, _ in engine.submitted]
    assert prompts[0] == "calc__add,calc__drop,|user:hi;"
    assert prompts[1] == prompts[0] + 'assistant:calc__add{"a":1};tool:3;'
    assert prompts[2] == prompts[1] + 'assistant:calc__drop{"a":2};tool:Error: it is locked;'
    texts = (wanted(a=1), wanted("calc__drop", a=2), "done")
    assert found["usage"]["output_tokens"] == sum(len(text) + 1 for text in texts)
    assert found["tools"] == [CALC]
    metrics = (await app.handle(Request("GET", "/metrics"))).body
    assert isinstance(metrics, bytes)
    [line] = [line for line in metrics.decode().splitlines() if line.startswith("vllm:generation_tokens_total")]
    assert float(line.split()[-1]) == found["usage"]["output_tokens"]


async def test_the_events_are_openais(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, _ = await made(make_app, say("Let me see.", *wanted(a=1)), "done")
    response = await post(app, PATH, body(stream=True))
    events = parse_sse(b"".join([part async for part in parts(response)]))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events if "delta" not in event["type"]]
    start, listed = ["created", "in_progress"], ["mcp_list_tools.in_progress", "mcp_list_tools.completed"]
    added, done = "output_item.added", "output_item.done"
    text = [added, "content_part.added", "output_text.done", "content_part.done", done]
    call = [added, "mcp_call.in_progress", "mcp_call_arguments.done", "mcp_call.completed", done]
    assert kinds == [*start, added, *listed, done, *text, *call, *text, "completed"]
    deltas = [event for event in events if event["type"] == "response.mcp_call_arguments.delta"]
    assert "".join(event["delta"] for event in deltas) == '{"a":1}'
    final = events[-1]["response"]
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == final["output"]
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places)
    assert {event["item_id"] for event in deltas} == {final["output"][2]["id"]}


async def test_functions_of_the_client_end_the_response(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app, wanted(a=1) + wanted(a=2), wanted(a=1) + wanted("f"))
    found = await answered(app, tools=[CALC, FUNCTION])
    assert types(found) == ["mcp_list_tools", *["mcp_call"] * 3, "function_call"]
    assert [item["arguments"] for item in found["output"][1:3]] == ['{"a":1}', '{"a":2}'], "of one turn"
    assert found["output"][3]["output"] == "3"
    assert len(engine.submitted) == 2


async def test_a_next_response_knows_the_tools_and_the_results(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app, wanted(a=1), "three", wanted(a=9), "nine")
    first = await answered(app)
    second = await answered(app, input="again", previous_response_id=first["id"])
    assert types(second) == ["mcp_call", "message"]
    assert sessions.log.count("list calc") == 1
    history = 'user:hi;assistant:calc__add{"a":1};tool:3;assistant:three;user:again;'
    assert engine.submitted[2][0] == "calc__add,calc__drop,|" + history


async def test_a_server_may_be_chosen_beside_what_a_search_has_found(
    make_app: MakeApp, sessions: type[Sessions]
) -> None:
    app, engine = await made(make_app, wanted("tool_search", query="f"), wanted("f"), "done")
    tools = [CALC, {"type": "tool_search", "execution": "client"}]
    first = await answered(app, tools=tools)
    loaded = {"type": "tool_search_output", "call_id": first["output"][1]["call_id"], "execution": "client",
              "tools": [FUNCTION]}  # fmt: skip
    second = await answered(app, tools=tools, input=[loaded], previous_response_id=first["id"])
    assert types(second) == ["function_call"]
    result = {"type": "function_call_output", "call_id": second["output"][0]["call_id"], "output": "1"}
    after = {"input": [result], "previous_response_id": second["id"]}
    third = await answered(app, tools=tools, tool_choice={"type": "mcp", "server_label": "calc"}, **after)
    assert types(third) == ["message"]
    assert all(prompt.startswith(("tool_search,calc__add", "calc__add")) for prompt, _ in engine.submitted)


async def test_items_that_a_client_keeps_do_the_same(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app, wanted(a=1), wanted("calc__drop"), "x", "nine")
    first = await answered(app, store=False)
    history = [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "again"}]
    second = await answered(app, store=False, input=history)
    assert types(second) == ["message"]
    assert sessions.log.count("list calc") == 1
    assert engine.submitted[3][0].endswith(
        "tool:3;assistant:calc__drop{};tool:Error: it is locked;assistant:x;user:again;"
    )


async def test_a_call_waits_for_approval(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app, wanted(a=1), "done", "too bad", "never mind")
    tools = [{name: value for name, value in CALC.items() if name != "require_approval"}]
    first = await answered(app, tools=tools)
    assert types(first) == ["mcp_list_tools", "mcp_approval_request"]
    request = first["output"][1]
    assert (request["name"], request["server_label"], request["arguments"]) == ("add", "calc", '{"a":1}')
    assert "call" not in str(sessions.log[1:])
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    after = {"previous_response_id": first["id"], "tools": tools}
    second = await answered(app, input=[answer], **after)
    assert types(second) == ["mcp_call", "message"]
    assert second["output"][0]["approval_request_id"] == request["id"]
    assert engine.submitted[1][0].endswith('user:hi;assistant:calc__add{"a":1};tool:3;')
    third = await answered(app, input=[{**answer, "approve": False, "reason": "No!"}], **after)
    assert types(third) == ["message"]
    assert engine.submitted[2][0].endswith('calc__add{"a":1};tool:The user did not approve this call. No!;')
    await answered(app, input=[answer, {**answer, "approve": False}], **after)
    calls = [line for line in sessions.log if "call " in line]
    assert calls == ['call calc add {"a":1}'], "an answer that is taken back approves nothing"
    # A call that was approved and executed is not executed again.
    again = await made(make_app, "fine")
    app = again[0]
    history = [{"role": "user", "content": "hi"}, *first["output"], answer, *second["output"]]
    await answered(app, input=[*history, {"role": "user", "content": "and?"}], tools=tools, store=False)
    assert [line for line in sessions.log if "call " in line] == calls
    unknown = await answered(app, 404, input=[{**answer, "approval_request_id": "mcpr_1"}], tools=tools)
    assert "mcpr_1" in unknown["error"]["message"]
    gone = await answered(app, 400, tools=[{**tools[0], "allowed_tools": ["drop"]}], input=[*first["output"], answer])
    assert "is not in tools" in gone["error"]["message"]


APPROVALS: list[tuple[Any, list[str]]] = [
    ("always", ["add", "drop"]),
    ("never", []),
    ({"never": {"tool_names": ["add"]}}, ["drop"]),
    ({"never": {"read_only": True}}, ["drop"]),
    ({"always": {"tool_names": ["drop"]}}, ["add", "drop"]),
]
ALLOWED: list[tuple[Any, str]] = [
    (["drop"], "calc__drop,"),
    ({"read_only": True}, "calc__add,"),
    ({"tool_names": []}, ""),
    (None, "calc__add,calc__drop,"),
]


async def test_which_calls_wait_for_approval_and_which_tools_are_offered(
    make_app: MakeApp, sessions: type[Sessions]
) -> None:
    for approval, waits in APPROVALS:
        app, _ = await made(make_app, wanted() + wanted("calc__drop"), "done")
        found = await answered(app, tools=[{**CALC, "require_approval": approval}])
        assert [item["name"] for item in found["output"] if item["type"] == "mcp_approval_request"] == waits
    for allowed, names in ALLOWED:
        app, engine = await made(make_app, "done")
        await answered(app, tools=[{**CALC, "allowed_tools": allowed}])
        assert engine.submitted[0][0].startswith(names + "|")


async def test_more_calls_than_allowed_end_the_tools(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app, wanted(a=1), wanted(a=2), "done", max_tool_calls=5)
    found = await answered(app, max_tool_calls=1)
    assert [item["status"] for item in found["output"][1:]] == ["completed", "failed", "completed"]
    assert "limit of calls" in found["output"][2]["error"]["content"][0]["text"]
    assert engine.submitted[2][0].startswith("|")
    app, engine = await made(make_app, wanted(a=1), wanted(a=2), wanted(a=3), max_tool_calls=1)
    found = await answered(app, tools=[CALC, FUNCTION])
    assert [item["status"] for item in found["output"][1:]] == ["completed", "failed", "failed"]
    assert len(engine.submitted) == 3


async def test_generations_share_max_output_tokens(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app, wanted(a=1), [[(0, "do", "length")]])
    used = len(wanted(a=1)) + 1
    found = await answered(app, max_output_tokens=used + 2, min_tokens=used + 1)
    asked = [(sampling.min_tokens, sampling.max_tokens) for _, sampling in engine.submitted]
    assert asked == [(used + 1, used + 2), (1, 2)]
    assert found["status"] == "incomplete"
    app, engine = await made(make_app, wanted(a=1))
    found = await answered(app, max_output_tokens=used, timings=True)
    assert (found["status"], found["timings"]["predicted_n"]) == ("incomplete", used)


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "mcp", "server_label": "calc"}, {"type": "mcp", "server_label": "calc", "name": "add"}],
)
async def test_a_tool_is_required_of_the_first_generation_only(
    make_app: MakeApp, sessions: type[Sessions], choice: Any
) -> None:
    app, engine = await made(make_app, wanted(a=1), "done")
    assert types(await answered(app, tool_choice=choice))[-1] == "message"
    assert [bool(constraint) for constraint in engine.constraints] == [True, False]
    assert engine.submitted[0][0].split("|")[0] == ("calc__add," if "name" in choice else "calc__add,calc__drop,")


async def test_secrets_are_for_the_server_alone(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, _ = await made(make_app, "done")
    headers = {"X-Key": "s3cret", "Tenant": "a", "authorization": "replaced"}
    secret = {"headers": headers, "authorization": "t0ken", "server_url": URL}
    found = await answered(app, tools=[{**CALC, **secret, "server_label": "mine"}])
    assert sessions.log[0] == {"mine": (URL, {"X-Key": "s3cret", "Tenant": "a", "Authorization": "Bearer t0ken"})}
    stored = await app.handle(Request("GET", f"{PATH}/{found['id']}"))
    for text in (str(found), str(await whole(stored))):
        assert not any(word in text for word in ("s3cret", "t0ken", URL))


REFUSED: list[tuple[Json, str]] = [
    ({"server_label": "other"}, "server_label"),
    ({"server_label": None}, "server_label"),
    ({"server_label": "a b"}, "server_label"),
    ({"server_url": "http://169.254.169.254/"}, "server_url"),
    ({"server_url": URL + "/"}, "server_url"),
    ({"server_url": ""}, "server_url"),
    ({"connector_id": "connector_gmail"}, "connector_id"),
    ({"headers": {"Host": "internal"}}, "headers"),
    ({"headers": {"TE": "trailers"}}, "headers"),
    ({"headers": {"Accept-Encoding": "br"}}, "headers"),
    ({"headers": {"X": "a\r\nb"}}, "headers"),
    ({"headers": {"a:b": "c"}}, "headers"),
    ({"authorization": "a\nb"}, "headers"),
    ({"require_approval": "maybe"}, "require_approval"),
    ({"require_approval": {"never": 3}}, "require_approval.never"),
    ({"allowed_tools": [3]}, "allowed_tools"),
]


async def test_what_may_not_be_used_is_refused(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app)
    for changes, param in REFUSED:
        error = (await answered(app, 400, tools=[{**CALC, **changes}]))["error"]
        assert error["param"] == f"tools[0].{param}"
    assert sessions.log == engine.submitted == []


async def test_a_choice_that_names_servers_often_offers_each_tool_once(
    make_app: MakeApp, sessions: type[Sessions]
) -> None:
    app, engine = await made(make_app, "a", "b")
    one = {"type": "mcp", "server_label": "calc"}
    for named, offered in (([one] * 5, "calc__add,calc__drop"), ([{**one, "name": "drop"}] * 5, "calc__drop")):
        others: list[Any] = [{**one, "server_label": []}, {**one, "name": {}}]
        choice = {"type": "allowed_tools", "mode": "auto", "tools": named + others}
        await answered(app, tool_choice=choice)
        assert engine.submitted[-1][0].startswith(f"{offered},|")


async def test_what_has_no_meaning_with_tools_is_refused(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, _ = await made(make_app)
    other = {**CALC, "server_label": "again", "server_url": URL}
    for fields in ({"n": 2}, {"return_token_ids": True}, {"tools": [CALC, CALC]}, {"tools": [CALC, other]}):
        await answered(app, 400, **fields)
    clash = await answered(app, 400, tools=[CALC, {**FUNCTION, "name": "calc__add"}])
    assert "calc__add" in clash["error"]["message"]
    app, _ = await made(make_app, tool_server="")
    assert "--tool_server" in (await answered(app, 400))["error"]["message"]


async def test_without_the_package_a_server_does_not_start(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = await made(make_app)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(StartError, match=r"^--tool_server needs the package mcp"):
        await app.open()


async def test_a_client_that_leaves_ends_the_call(make_app: MakeApp, sessions: type[Sessions]) -> None:
    app, engine = await made(make_app, wanted(a=1))
    del sessions.results["add"]
    response = await post(app, PATH, body(stream=True))
    async for part in parts(response):
        if b"arguments.done" in part:
            break
    await response.aclose()
    assert sessions.log[-1] == "close"
    assert len(engine.submitted) == 1


@pytest.mark.parametrize("approval", ["never", "always"])
async def test_a_background_response_is_cancelled_in_a_call(
    make_app: MakeApp, sessions: type[Sessions], approval: str
) -> None:
    app, _ = await made(make_app, wanted(a=1), say("x"))
    del sessions.results["add"]
    fields: Json = {"tools": [{**CALC, "require_approval": approval}], "timings": True}
    if approval == "always":  # the call is made before the first generation
        found = await answered(app, **fields)
        answer = {"type": "mcp_approval_response", "approval_request_id": found["output"][-1]["id"], "approve": True}
        fields |= {"input": [answer], "previous_response_id": found["id"]}
    found = await answered(app, background=True, **fields)
    while "call calc" not in str(sessions.log):
        await asyncio.sleep(0)
    final = await whole(await post(app, f"{PATH}/{found['id']}/cancel", {}))
    assert final["status"] == "cancelled"
    assert final["output"][-1]["status"] == "incomplete"
    assert final["timings"]["predicted_n"] == (0 if approval == "always" else len(wanted(a=1)) + 1)
    assert sessions.log[-1] == "close"


async def test_tokens_are_counted_with_the_tools_if_they_are_listed(
    make_app: MakeApp, sessions: type[Sessions]
) -> None:
    app, engine = await made(make_app)
    response = await post(app, f"{PATH}/input_tokens", body())
    assert (await whole(response))["input_tokens"] == len("calc__add,calc__drop,|user:hi;")
    assert sessions.log[-1] == "close"
    assert engine.submitted == []
    sessions.results["list"] = ListingFailed("no list", param="tools")
    assert (await answered(app, 424))["error"]["type"] == "external_connector_error"
    assert sessions.log[-1] == "close"
    assert engine.submitted == []


async def test_a_server_without_the_feature_reads_calls_and_makes_none(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("yes"), without="mcp", chat_template=TEMPLATE)
    call = {"type": "mcp_call", "server_label": "calc", "name": "add", "arguments": "{}", "output": "3"}
    given = {"model": "m", "input": [call, {"role": "user", "content": "And now?"}]}
    assert (await post(app, PATH, given)).status == 200
    refused = await whole(await post(app, PATH, given | {"tools": [CALC]}))
    assert refused["error"]["message"] == "tools of type mcp are not supported by this server"
    assert refused["error"]["param"] == "tools[0].type"
