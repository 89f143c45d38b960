"""Tools: which ones the model is offered, what it must call, and the end of an answer after its calls.

The fields are `tools`, `tool_choice` and `parallel_tool_calls`. Requests without them do not import this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import BadRequest
from ...models.generation import CallArguments, Generation, WrappedStream
from ...types import Delta, Json, Text, ToolCallStart
from ...types.push import Sink


def read_tools(tools: Any, choice: Any) -> tuple[list[Json], str | Json]:
    """Returns the tools that tool_choice leaves, in OpenAI's nested form, and the choice itself.

    "none" leaves no tools, a named function that one, and allowed_tools those that it lists. Raises BadRequest.
    """
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice)
    if not isinstance(tools, list | None):
        raise BadRequest("Tools are not an array", param="tools")
    found = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise BadRequest("tool_choice should be either 'none' or 'auto' or 'required'", param="tool_choice")
        if choice == "required" and not found:
            raise BadRequest("tool_choice is required, but no tools are given", param="tool_choice")
        return ([] if choice == "none" else found), choice
    if choice is None:
        return found, "auto"
    if not isinstance(choice, dict):
        raise BadRequest("tool_choice is not a valid JSON object or string", param="tool_choice")
    name = _named(choice)
    kept = [tool for tool in found if tool["function"]["name"] == name]
    if not kept:
        raise BadRequest(f"tool_choice names {name!r}, which is not in tools", param="tool_choice")
    return kept, {"type": "function", "function": {"name": name}}


def _allowed(tools: Any, choice: Json) -> tuple[list[Json], str | Json]:
    """Returns the tools and the choice for a tool_choice of the type "allowed_tools".

    OpenAI nests "mode" and "tools" under "allowed_tools" in chat; the Responses API has them at the top level.
    """
    inner = choice.get("allowed_tools", choice)
    mode, listed = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise BadRequest(
            "tool_choice of type allowed_tools needs a mode (auto or required) and tools", param="tool_choice"
        )
    names = {_named(tool) for tool in listed if isinstance(tool, dict)}
    found, _ = read_tools(tools, None)
    kept = [tool for tool in found if tool["function"]["name"] in names]
    if names - {tool["function"]["name"] for tool in kept} or not kept:
        raise BadRequest("tool_choice allows a tool that is not in tools", param="tool_choice")
    return kept, mode


def _tool(tool: Any, param: str) -> Json:
    """Returns one tool in OpenAI's nested form. The flat form of the Responses API is accepted too."""
    if not isinstance(tool, dict):
        raise BadRequest("Tool is not a JSON object", param=param)
    if "function" in tool:
        function = tool["function"]
        if not isinstance(function, dict):
            raise BadRequest("Function is not a valid JSON object", param=param)
        function = _members(function)
    else:
        if not isinstance(tool.get("type"), str):
            raise BadRequest("Tool type is missing or invalid", param=param)
        if tool["type"] != "function":
            raise BadRequest("Only function tools are supported", param=param)
        function = _members({key: value for key, value in tool.items() if key != "type"})
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRequest("Function object does not contain a valid name field", param=f"{param}.function.name")
    if "parameters" in function and not isinstance(function["parameters"], dict):
        raise BadRequest("Function parameters are not a valid JSON object", param=f"{param}.function.parameters")
    return {**(tool if "function" in tool else {}), "type": "function", "function": function}


def _members(function: Json) -> Json:
    """Returns the members that say something: neither null nor `strict: false`, which is the default.

    Clients of the Responses API have to send `strict`. Templates would show it to models that have not seen it in
    training, and the same tools would be another prompt than in the other APIs.
    """
    return {k: v for k, v in function.items() if v is not None and not (k == "strict" and v is False)}


def _named(choice: Json) -> str:
    function = choice.get("function")
    if function is None:
        name = choice.get("name")
        if not isinstance(name, str):
            raise BadRequest("tool_choice.name is not a valid string", param="tool_choice")
        return name
    if not isinstance(function, dict):
        raise BadRequest("tool_choice.function is not a valid JSON object", param="tool_choice")
    if not isinstance(function.get("name"), str):
        raise BadRequest("tool_choice.function.name is not a valid string", param="tool_choice")
    return str(function["name"])


class LimitedCalls(WrappedStream):
    """A stream of deltas that stops each choice after its tool calls, and ends once all choices have ended."""

    def __init__(self, generation: Generation, choices: int, *, one: bool, only: bool) -> None:
        """Wraps a started generation.

        Args:
            generation: The generation.
            choices: The number of its choices.
            one: Whether a choice stops before its second call.
            only: Whether a choice stops at text after a call.
        """
        super().__init__(generation)
        self._running = set(range(choices))
        self._called: set[int] = set()
        self._arguments = [CallArguments() for _ in range(choices)]
        self._one = one
        self._only = only

    async def push_to(self, sink: Sink[list[Delta]]) -> None:
        await self._stream.push_to(Sink(partial(self._push, sink.push), sink.paused))

    def _push(self, push: Callable[[list[Delta]], object], deltas: list[Delta]) -> None:
        deltas = [self._cut(delta) for delta in deltas if delta.index in self._running]
        self._running -= {delta.index for delta in deltas if delta.finish is not None}
        push(deltas)
        if not self._running:
            self.finish("stop")

    def _cut(self, delta: Delta) -> Delta:
        for place, event in enumerate(delta.events):
            if isinstance(event, ToolCallStart):
                self._called.add(delta.index)
                over = self._one and event.index > 0
            else:
                over = self._only and isinstance(event, Text) and delta.index in self._called
            if over:
                broken = self._arguments[delta.index].broken()
                return replace(delta, events=delta.events[:place], finish="stop", stop=None, broken_call=broken)
            self._arguments[delta.index].add(event)
        return delta
