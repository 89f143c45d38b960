"""What the model knows a tool by, and which tool that is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """The tool behind a function that the model was offered. custom: it takes text. mcp: a server of --tool_server
    has it, whose label is the namespace; approval: the client must approve its calls."""

    name: str
    namespace: str | None = None
    custom: bool = False
    mcp: bool = False
    approval: bool = False


def function_name(name: str, namespace: str | None) -> str:
    """The name under which the model knows a tool."""
    return f"{namespace}__{name}" if namespace else name
