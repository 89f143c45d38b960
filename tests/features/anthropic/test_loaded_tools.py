"""Tools that a conversation loads and removes: where they are described, which may be called, and errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lean_ovms.features.anthropic.api.loaded_tools import ADDED, REMOVED
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import say
from tests.features.anthropic.conftest import PARSERS, PATH

TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}|{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}{{ c.function.arguments }}){% endfor %}{% endfor %}"
)
Message = dict[str, Any]


def tool(name: str, **more: Any) -> Message:
    return {"name": name, "input_schema": {"type": "object"}, **more}


def defined(name: str) -> str:
    """Returns the text that loads a tool."""
    return f'{{"type":"function","function":{{"name":"{name}","parameters":{{"type":"object"}}}}}}'


def says(role: str, *blocks: Message) -> Message:
    return {"role": role, "content": list(blocks)}


def changed(kind: str, name: str) -> Message:
    """Returns a block of a system message about a tool of the request."""
    return {"type": kind, "tool": {"type": "tool_reference", "name": name}}


def found(*names: str) -> list[Message]:
    """Returns the call of a search, and its result."""
    call = {"type": "tool_use", "id": "t1", "name": "search", "input": {}}
    content = [{"type": "tool_reference", "tool_name": name} for name in names]
    return [says("assistant", call), says("user", {"type": "tool_result", "tool_use_id": "t1", "content": content})]


HI = {"role": "user", "content": "Hi"}
SEARCH, LATER, OTHER = tool("search"), tool("later", defer_loading=True), tool("other", defer_loading=True)
INLINE = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("inline")}}
NOW = {"type": "text", "text": "Now."}
ANY = {"tool_choice": {"type": "any"}}
CASES: list[tuple[str, dict[str, Any], list[Message], str, list[str]]] = [
    ("deferred", {"tools": [SEARCH, LATER, OTHER]}, [HI], "[search]|Hi", ["search"]),
    ("found", {"tools": [SEARCH, LATER, OTHER]}, [HI, *found("later", "gone")],
     f"[search]|Hi|(search{{}})|{defined('later')}\ngone", ["search", "later"]),
    ("found again", {"tools": [SEARCH, LATER]}, [HI, *found("later", "later")],
     f"[search]|Hi|(search{{}})|{defined('later')}\nlater", ["search", "later"]),
    ("added", {"tools": [LATER, SEARCH]}, [HI, says("system", NOW, changed("tool_addition", "later"))],
     f"[search]|Hi|Now.\n{ADDED}{defined('later')}", ["search", "later"]),
    ("removed", {"tools": [SEARCH, tool("b")]}, [HI, says("system", changed("tool_removal", "search"))],
     f"[search][b]|Hi|{REMOVED}search", ["b"]),
    ("removed and added again", {"tools": [SEARCH, tool("b")]},
     [HI, says("system", changed("tool_removal", "search")), HI, says("system", changed("tool_addition", "search"))],
     f"[search][b]|Hi|{REMOVED}search|Hi|{ADDED}{defined('search')}", ["b", "search"]),
    ("defined in a message", {"tools": [SEARCH]}, [HI, says("system", INLINE)],
     f"[search]|Hi|{ADDED}{defined('inline')}", ["search", "inline"]),
    ("without others", {}, [HI, says("system", INLINE)], f"[inline]|Hi|{ADDED}{defined('inline')}", ["inline"]),
    ("chosen by name", {"tools": [SEARCH, LATER], "tool_choice": {"type": "tool", "name": "later"}}, [HI],
     "[later]|Hi", ["later"]),
    ("none", {"tools": [SEARCH, LATER], "tool_choice": {"type": "none"}}, [HI], "|Hi", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "messages", "prompt", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
async def test_which_tools_the_model_sees_and_may_call(
    make_app: MakeApp, fields: dict[str, Any], messages: list[Message], prompt: str, expected: list[str]
) -> None:
    app, engine = await make_app(lambda *_: say("x"), **{**PARSERS, "chat_template": TEMPLATE})
    body = {"model": "m", "max_tokens": 9, "messages": messages, **fields}
    await whole(await post(app, PATH, body))
    assert engine.submitted[-1][0] == prompt
    if expected and "tool_choice" not in fields:
        await whole(await post(app, PATH, {**body, **ANY}))
        assert re.findall(r'\\"name\\": \\"(\w+)', engine.constraints[-1]) == expected


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (changed("tool_addition", "gone"), "messages.1.content.0.tool.name: 'gone' is not in tools"),
        ({"type": "tool_addition"}, "messages.1.content.0.tool must be an object with type tool_reference and name"),
        ({"type": "tool_removal", "tool": {"type": "tool_reference"}},
         "messages.1.content.0.tool must be an object with type tool_reference and name"),
        ({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "a"}}},
         "messages.1.content.0.tool.definition.input_schema: Field required"),
    ],
)  # fmt: skip
async def test_wrong_changes(make_app: MakeApp, block: Message, text: str) -> None:
    app, _ = await make_app(say("x"), **PARSERS)
    body = {"model": "m", "max_tokens": 9, "tools": [SEARCH], "messages": [HI, says("system", block)]}
    response = await post(app, PATH, body)
    assert response.status == 400
    assert (await whole(response))["error"]["message"] == text
