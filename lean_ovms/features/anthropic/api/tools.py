"""Anthropic's `tools` and `tool_choice` in the form of chat. Knows no model."""

from __future__ import annotations

from typing import Any

from ....errors import BadRequest
from ....types import Json

CHOICES = ("auto", "any", "tool", "none")


def read_tools(tools: list[Any] | None) -> list[Json] | None:
    """Returns client tools as functions. Raises BadRequest for a tool that the server would have to run."""
    return None if tools is None else [_tool(tool, f"tools.{place}") for place, tool in enumerate(tools)]


def _tool(tool: Any, param: str) -> Json:
    if not isinstance(tool, dict):
        raise BadRequest(f"{param}: a tool is an object", param=param)
    kind = tool.get("type") or "custom"
    if kind != "custom":
        raise BadRequest(
            f"{param}.type: {str(kind)[:60]!r} is run by Anthropic's servers or has a schema known to its models only; "
            "this server offers the client's own tools (name, description, input_schema)",
            param=f"{param}.type",
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise BadRequest(f"{param}.name: Field required", param=f"{param}.name")
    if not isinstance(tool.get("input_schema"), dict):
        raise BadRequest(f"{param}.input_schema: Field required", param=f"{param}.input_schema")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def read_choice(choice: Json | None) -> tuple[str | Json | None, bool | None]:
    """Returns tool_choice as in chat, and parallel_tool_calls, None if the client does not say. Raises BadRequest."""
    if choice is None:
        return None, None
    kind, alone = choice.get("type"), choice.get("disable_parallel_tool_use")
    if kind not in CHOICES:
        raise BadRequest(f"tool_choice.type must be one of: {', '.join(CHOICES)}", param="tool_choice.type")
    if alone is not None and not isinstance(alone, bool):
        text = "tool_choice.disable_parallel_tool_use accepts values true or false"
        raise BadRequest(text, param="tool_choice.disable_parallel_tool_use")
    several = None if alone is None else not alone
    if kind != "tool":
        return {"any": "required"}.get(kind, kind), several
    if not isinstance(choice.get("name"), str):
        raise BadRequest("tool_choice.name: Field required", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice["name"]}}, several
