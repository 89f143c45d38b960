"""Input items: the messages that they become, how they are stored, and what is rejected."""

from __future__ import annotations

import time
from typing import Any

import openai.types.responses as types
import orjson
import pydantic
import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.chat.foreign import NO_RESULT
from lean_ovms.features.responses.items import MAX_ITEMS, read_input, to_messages, without_logprobs
from lean_ovms.types import Json

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x":1}'}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
OUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
USER = {"role": "user", "content": "hi"}
SHELL = {"type": "local_shell_call", "id": "l1", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}}
LISTED = '{"type":"exec","command":["ls"]}'
URL = "data:image/png;base64,AAAA"


def says(role: str, *texts: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def asks(*parts: Json) -> Json:
    """Returns a message of a user with these parts."""
    return {"role": "user", "content": list(parts)}


def replies(content: str, *calls: Json, thought: str = "") -> Json:
    """Returns what an assistant said, thought and called, as chat has it."""
    more = {"reasoning_content": thought} if thought else {}
    return {"role": "assistant", "content": content, **more, **({"tool_calls": list(calls)} if calls else {})}


def called(call_id: str, name: str, arguments: str) -> Json:
    function = {"name": name, "arguments": orjson.loads(arguments)}
    return replies("", {"id": call_id, "type": "function", "function": function})


def answered(call_id: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


GIVEN: list[tuple[Any, list[Json]]] = [
    ("hi", [USER]),
    ([USER], [USER]),
    ([{"type": "message", **USER}], [USER]),
    ([says("user", "hi")], [USER]),
    ([says("user", "a", "b")], [asks({"type": "text", "text": "a"}, {"type": "text", "text": "b"})]),
    ([{"role": "developer", "content": "x"}, USER], [{"role": "developer", "content": "x"}, USER]),
    ([USER, CALL, OUT], [USER, replies("", CALLED), RESULT]),
    ([says("assistant", "I look."), CALL, OUT], [replies("I look.", CALLED), RESULT]),
    ([THOUGHT, CALL, OUT, THOUGHT, says("assistant", "It is 42.")],
     [replies("", CALLED, thought="hm"), RESULT, replies("It is 42.", thought="hm")]),
    ([CALL, says("assistant", "So.")], [replies("So.", CALLED)]),
    ([CALL, CALL, OUT], [replies("", CALLED, CALLED), RESULT]),
    ([says("assistant", "a"), says("assistant", "b")], [replies("a"), replies("b")]),
    ([THOUGHT, THOUGHT], [replies("", thought="hm\nhm")]),
    ([says("assistant", "a"), THOUGHT, CALL], [replies("a"), replies("", CALLED, thought="hm")]),
    ([{**THOUGHT, "summary": []}, USER], [USER]),
    ([{**THOUGHT, "content": [{"type": "reasoning_text", "text": "all"}]}, USER], [replies("", thought="all"), USER]),
    ([{**OUT, "output": [{"type": "input_text", "text": "42"}]}], [RESULT]),
    ([{"type": "function_call", "id": "c1", "name": "f", "arguments": '{"x":1}'}, OUT], [replies("", CALLED), RESULT]),
    ([asks({"type": "input_image", "image_url": URL})],
     [asks({"type": "image_url", "image_url": {"url": URL, "detail": "auto"}})]),
    ([asks({"type": "input_image", "image_url": URL, "file_id": "file_1"})],
     [asks({"type": "image_url", "image_url": {"url": URL, "detail": "auto"}})]),
    ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], [replies("No.")]),
]  # fmt: skip
FOREIGN: list[tuple[list[Json], list[Json]]] = [
    ([{"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}],
     [called("w", "web_search", '{"type":"search","query":"q"}'), answered("w", NO_RESULT)]),
    ([{"type": "file_search_call", "id": "f", "queries": ["q"], "results": [{"filename": "n", "text": "t"}]}],
     [called("f", "file_search", '{"queries":["q"]}'), answered("f", '[{"filename":"n","text":"t"}]')]),
    ([{"type": "code_interpreter_call", "id": "i", "code": "1+1", "container_id": "x",
       "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": URL}]}],
     [called("i", "code_interpreter", '{"code":"1+1"}'),
      answered("i", '[{"type":"logs","logs":"2"},{"type":"image","url":"[image/png]"}]')]),
    ([{"type": "image_generation_call", "id": "p", "result": "AAAA", "revised_prompt": "a cat"}],
     [called("p", "image_generation", '{"revised_prompt":"a cat"}'),
      answered("p", "The picture is not part of the conversation.")]),
    ([SHELL, {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"}],
     [called("c1", "local_shell", LISTED), answered("c1", "a.txt")]),
    ([SHELL, {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}],
     [called("c1", "local_shell", LISTED), answered("c1", "a.txt")]),
    ([SHELL], [called("c1", "local_shell", LISTED), answered("c1", NO_RESULT)]),
    ([{"type": "computer_call", "id": "k", "call_id": "c2", "action": {"type": "wait"}},
      {"type": "computer_call_output", "call_id": "c2", "output": {"type": "x", "image_url": URL}}],
     [called("c2", "computer", '{"type":"wait"}'),
      answered("c2", [{"type": "image_url", "image_url": {"url": URL}}])]),
    ([{"type": "program", "id": "g", "call_id": "c3", "code": "f()", "fingerprint": "z"},
      {"type": "program_output", "id": "o", "call_id": "c3", "result": "3", "status": "completed"}],
     [called("c3", "program", '{"code":"f()"}'), answered("c3", "3")]),
    ([{"type": "additional_tools", "role": "developer", "tools": []}], []),
]  # fmt: skip
"""Items that other providers write."""


@pytest.mark.parametrize(("given", "messages"), [*GIVEN, *FOREIGN])
def test_items_become_messages(given: Any, messages: list[Json]) -> None:
    assert to_messages(read_input(given)) == messages


def test_an_item_of_a_type_that_begins_like_those_of_mcp_tools_is_a_call_of_another_provider() -> None:
    call, answer = to_messages(read_input([{"type": "mcp_search_call", "id": "x1", "query": "cats", "output": "Two."}]))
    assert call["tool_calls"][0]["function"] == {"name": "mcp_search", "arguments": {"query": "cats"}}
    assert (answer["role"], answer["content"]) == ("tool", "Two.")


def test_items_are_kept_as_openai_lists_them() -> None:
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(types.ResponseItem)
    kept = read_input([USER, says("assistant", "x"), THOUGHT, CALL, OUT, {"id": "msg_1", **says("user", "y")}])
    for item in kept:
        adapter.validate_python(item)
    assert [item["id"].partition("_")[0] for item in kept] == ["msg", "msg", "rs", "fc", "fco", "msg"]
    assert (kept[2]["id"], kept[5]["id"]) == ("rs_1", "msg_1")
    assert read_input(kept) == kept, "reading what was kept changes nothing"
    reference = {"type": "item_reference", "id": "msg_1"}
    assert read_input([{"id": "msg_1"}, reference]) == [reference, reference]
    picture = {"type": "image_generation_call", "id": "p", "status": "completed", "result": "AAAA", "size": "1x1"}
    assert read_input([picture]) == [{name: value for name, value in picture.items() if name != "result"}]


def test_what_later_turns_read_has_no_log_probabilities() -> None:
    spoken, said = ({"type": "output_text", "text": "x", **more} for more in ({}, {"logprobs": [{"token": "x"}]}))
    message, call = {"type": "message", "content": [spoken, said]}, {"type": "function_call", "logprobs": 1}
    assert without_logprobs([message, call]) == [message | {"content": [spoken, said | {"logprobs": []}]}, call]


def test_no_content_and_no_arguments_come_back_from_clients() -> None:
    for role in ("user", "assistant", "system", "developer"):
        for content in (None, []):
            [item] = read_input([{"type": "message", "role": role, "content": content}])
            assert to_messages([item]) == [{"role": role, "content": []}]
    for call in ({**CALL, "arguments": None}, {name: value for name, value in CALL.items() if name != "arguments"}):
        [message] = to_messages(read_input([call]))
        assert message["tool_calls"][0]["function"]["arguments"] == ""
    for given in ({"input": None}, {}):
        [item] = read_input([{"type": "custom_tool_call", "call_id": "c1", "name": "f", **given}])
        assert item["input"] == ""


MCP_CALL = {"type": "mcp_call", "server_label": "x", "name": "f", "arguments": "{}"}
UNREADABLE: list[tuple[Any, str]] = [
    ("x", "input array items must be objects"),
    ({}, "input item role is missing or invalid"),
    ({"content": "x"}, "input item role is missing or invalid"),
    ({"role": 1, "content": "x"}, "input item role is missing or invalid"),
    ({"role": "user"}, "input item is missing required content field"),
    ({"role": "user", "content": 1}, "input item content must be a string or array"),
    ({"role": "user", "content": ["x"]}, "input content items must be objects"),
    ({"role": "user", "content": [{}]}, "input content item type is missing or invalid"),
    ({"role": "user", "content": [{"type": "input_text"}]}, "input_text requires a valid text field"),
    ({"role": "assistant", "content": [{"type": "output_text", "text": 1}]}, "output_text requires a valid text"),
    ({"role": "user", "content": [{"type": "video"}]}, "unsupported input content item type: video"),
    ({"role": "user", "content": [{"type": "input_file", "filename": "f"}]}, "input_file requires one of"),
    ({"role": "user", "content": [{"type": "input_audio"}]}, "input_audio does not have data field"),
    ({"role": "user", "content": [{"type": "input_image"}]}, "input_image requires image_url field"),
    ({"role": "user", "content": [{"type": "input_image", "file_id": 1}]}, "file_id is not a string"),
    ({"role": "user", "content": [{"type": "input_image", "image_url": {}}]}, "image_url.url is missing or invalid"),
    ({"role": "user", "content": [{"type": "input_image", "image_url": 1}]}, "must be a string or object"),
    ({**CALL, "call_id": None}, "missing required call_id (or id) field"),
    ({**CALL, "name": None}, "missing required name field"),
    ({**CALL, "arguments": {}}, "missing required arguments field"),
    ({**OUT, "output": None}, "output must be a string or an array"),
    ({**OUT, "output": {"a": 1}}, "output must be a string or an array"),
    ({**THOUGHT, "summary": "hm"}, "reasoning.summary must be an array"),
    ({**THOUGHT, "content": [{"text": 1}]}, "reasoning.content must be an array of objects with a text"),
    ({"type": "compaction", "encrypted_content": None}, "encrypted_content"),
    ({"type": "compaction_trigger"}, "input item type 'compaction_trigger' is not supported"),
    ({"type": "web_search_call", "id": 1}, "web_search_call.id is not a string"),
    ({"type": 7}, "input item type '7' is not supported"),
    (
        {"type": "mcp_list_tools", "server_label": "x", "tools": [{"name": "f", "input_schema": {}}] * 1001},
        "1000 tools",
    ),
    ({**MCP_CALL, "approval_request_id": ["mcpr_1"]}, "approval_request_id is not a string"),
    ({"type": "mcp_approval_response", "approval_request_id": "x", "approve": False, "reason": {}}, "reason is not a"),
    *(
        ({"type": "mcp_list_tools", "server_label": "x", "tools": tools}, "tools must be objects")
        for tools in (5, ["f"])
    ),
    ({"type": "item_reference"}, "item_reference requires a valid id field"),
    ({"type": "item_reference", "id": ""}, "item_reference requires a valid id field"),
]


def test_what_cannot_be_read_is_refused_with_its_place() -> None:
    for item, words in UNREADABLE:
        with pytest.raises(BadRequest) as caught:
            read_input([USER, item])
        assert words in caught.value.message
        assert caught.value.param is not None
        assert caught.value.param.startswith("input[1]")


# --- many items


TEXT = "x" * 1000
SECONDS = 1.0
"""CPU time for all items, ten times of what is needed. Copying all texts for each item would take 18 s."""


def reasoning(text: str) -> Json:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


@pytest.mark.parametrize("role", ["reasoning", "user", "assistant"])
def test_many_items_take_little_time(role: str) -> None:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": TEXT}
    said = {"type": "message", "id": "msg_1", "role": role, "content": [part]}
    items = [reasoning(TEXT) if role == "reasoning" else said] * (MAX_ITEMS - 1)
    items.append({"type": "compaction", "id": "cmp_1", "encrypted_content": "lean_ovms-summary-1:All."})
    start = time.process_time()
    to_messages(items[::-1] if role != "user" else items)
    assert time.process_time() - start < SECONDS
    assert to_messages([reasoning(text) for text in "abc"])[0]["reasoning_content"] == "a\nb\nc"
