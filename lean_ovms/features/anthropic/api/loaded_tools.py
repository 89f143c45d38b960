"""Tools that a conversation loads, or removes, after it has begun.

A tool with `defer_loading` is not described at the beginning of the prompt. The conversation loads it by a reference in
the result of the client's own tool search, or by a system message, and its definition becomes a text at that place. So
the beginning of the prompt stays as it was, and the prefix cache has it:
https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ....errors import BadRequest
from ....types import Json

REFERENCE, ADDITION, REMOVAL = "tool_reference", "tool_addition", "tool_removal"
ADDED = "This tool can be called from now on:\n"
REMOVED = "This tool can no longer be called: "


class LoadedTools:
    """The functions of a request, and those that its model may call after the last message."""

    def __init__(self, tools: list[Any] | None, read: Callable[[Any, str], Json]) -> None:
        """Reads the tools of a body; those that are not deferred may be called. Raises BadRequest.

        Args:
            tools: The client's tools.
            read: Converts one of them to a function of chat; its second argument is the tool's path in the body.
        """
        self._read = read
        found = [(tool, read(tool, f"tools.{place}")) for place, tool in enumerate(tools or ())]
        self.first = [function for tool, function in found if tool.get("defer_loading") is not True]
        """The functions that are described at the beginning of the prompt."""
        self._all: dict[str, Json] = {}
        for place, (_, function) in enumerate(found):
            if self._all.setdefault(name := function["function"]["name"], function) is not function:
                raise BadRequest(f"tools.{place}.name: {name[:100]!r} is not unique", param=f"tools.{place}.name")
        self._callable = {function["function"]["name"]: function for function in self.first}
        self._shown: dict[str, Json] = {}  # the functions whose definitions are texts of the conversation

    def callable(self, chosen: Any) -> list[Json]:
        """Returns the functions that may be called, among them the one that tool_choice names, in chat's form."""
        if isinstance(chosen, dict) and (named := self._all.get(chosen["function"]["name"])) is not None:
            return [named]
        return list(self._callable.values())

    def described(self, offered: list[Json]) -> list[Json]:
        """Returns the functions for the beginning of the prompt if the model is offered these ones.

        If all are deferred, the prompt begins with those that are offered, since templates without any function do not
        say how one is called.
        """
        everything = {tool["function"]["name"] for tool in offered} == self._callable.keys()
        return self.first if self.first and everything else offered

    def load(self, messages: list[Any]) -> list[Any]:
        """Loads and removes functions as the messages say, and returns them with texts in place of the blocks about
        this. Raises BadRequest."""
        return [self._message(message, f"messages.{place}") for place, message in enumerate(messages)]

    def _message(self, message: Any, param: str) -> Any:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list) or message.get("role") == "assistant":
            return message
        return {**message, "content": [self._block(b, f"{param}.content.{i}") for i, b in enumerate(content)]}

    def _block(self, block: Any, param: str) -> Any:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result" and isinstance(block.get("content"), list):
            return {
                **block,
                "content": [self._block(b, f"{param}.content.{i}") for i, b in enumerate(block["content"])],
            }
        if kind == REFERENCE and isinstance(name := block.get("tool_name"), str) and name in self._all:
            return _text(self._definition(name))
        if kind == ADDITION:
            return _text(ADDED + self._added(block.get("tool"), f"{param}.tool"))
        if kind == REMOVAL:
            name = _name(block.get("tool"), f"{param}.tool")
            self._callable.pop(name, None)
            return _text(REMOVED + name)
        return block

    def _added(self, tool: Any, param: str) -> str:
        """Loads a tool that is referred to or defined, and returns its definition."""
        if isinstance(tool, dict) and tool.get("type") == "tool_definition":
            function = self._read(tool.get("definition"), f"{param}.definition")
            name = function["function"]["name"]
            self._all[name] = function
        elif (name := _name(tool, param)) not in self._all:
            raise BadRequest(f"{param}.name: {name!r} is not in tools", param=f"{param}.name")
        return self._definition(name)

    def _definition(self, name: str) -> str:
        """Loads a function. Returns its definition, or only its name if an earlier text has the definition."""
        function = self._callable[name] = self._all[name]
        if self._shown.get(name) is function:
            return name
        self._shown[name] = function
        return orjson.dumps(function).decode()


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _name(tool: Any, param: str) -> str:
    """Returns the name in a reference to a tool. Raises BadRequest."""
    if not isinstance(tool, dict) or tool.get("type") != REFERENCE or not isinstance(tool.get("name"), str):
        raise BadRequest(f"{param} must be an object with type {REFERENCE} and name", param=param)
    return str(tool["name"])
