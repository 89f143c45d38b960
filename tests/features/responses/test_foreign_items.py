"""Items that other providers write: what the model gets, and what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from lean_ovms.features.chat.foreign import NO_RESULT
from lean_ovms.features.responses.items import read_input, to_messages
from lean_ovms.types import Json

SHELL = {"type": "local_shell_call", "id": "l1", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}}
LISTED = '{"type":"exec","command":["ls"]}'
URL = "data:image/png;base64,AAAA"


def called(call_id: str, name: str, arguments: str) -> Json:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def answered(call_id: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        (
            [{"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}],
            [called("w", "web_search", '{"type":"search","query":"q"}'), answered("w", NO_RESULT)],
        ),
        (
            [{"type": "file_search_call", "id": "f", "queries": ["q"], "results": [{"filename": "n", "text": "t"}]}],
            [called("f", "file_search", '{"queries":["q"]}'), answered("f", '[{"filename":"n","text":"t"}]')],
        ),
        (
            [
                {
                    "type": "code_interpreter_call",
                    "id": "i",
                    "code": "1+1",
                    "container_id": "x",
                    "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": URL}],
                }
            ],
            [
                called("i", "code_interpreter", '{"code":"1+1"}'),
                answered("i", '[{"type":"logs","logs":"2"},{"type":"image","url":"[image/png]"}]'),
            ],
        ),
        (
            [{"type": "image_generation_call", "id": "p", "result": "AAAA", "revised_prompt": "a cat"}],
            [
                called("p", "image_generation", '{"revised_prompt":"a cat"}'),
                answered("p", "The picture is not part of the conversation."),
            ],
        ),
        (
            [SHELL, {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"}],
            [called("c1", "local_shell", LISTED), answered("c1", "a.txt")],
        ),
        (
            [SHELL, {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}],
            [called("c1", "local_shell", LISTED), answered("c1", "a.txt")],
        ),
        ([SHELL], [called("c1", "local_shell", LISTED), answered("c1", NO_RESULT)]),
        (
            [
                {"type": "computer_call", "id": "k", "call_id": "c2", "action": {"type": "wait"}},
                {"type": "computer_call_output", "call_id": "c2", "output": {"type": "x", "image_url": URL}},
            ],
            [
                called("c2", "computer", '{"type":"wait"}'),
                answered("c2", [{"type": "image_url", "image_url": {"url": URL}}]),
            ],
        ),
        (
            [
                {"type": "program", "id": "g", "call_id": "c3", "code": "f()", "fingerprint": "z"},
                {"type": "program_output", "id": "o", "call_id": "c3", "result": "3", "status": "completed"},
            ],
            [called("c3", "program", '{"code":"f()"}'), answered("c3", "3")],
        ),
        ([{"type": "additional_tools", "role": "developer", "tools": []}], []),
    ],
)
def test_what_the_model_sees(items: list[Json], messages: list[Json]) -> None:
    assert to_messages(read_input(items)) == messages


def test_a_picture_is_not_kept_and_all_else_is() -> None:
    item = {"type": "image_generation_call", "id": "p", "status": "completed", "result": "AAAA", "size": "1x1"}
    [kept] = read_input([item])
    assert kept == {name: value for name, value in item.items() if name != "result"}
