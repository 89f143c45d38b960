"""Maps the name by which the model knows a tool to that tool."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """The tool behind a function that the model was offered."""

    name: str
    """The name of the tool."""
    namespace: str | None = None
    """The namespace that it is in, or the label of its server; None: it is in none."""
    custom: bool = False
    """Whether it takes a text instead of arguments."""
    mcp: bool = False
    """Whether a server of --tool_server has it."""
    approval: bool = False
    """Whether the client must approve its calls."""


def function_name(name: str, namespace: str | None) -> str:
    """Returns the name under which the model knows a tool."""
    return f"{namespace}__{name}" if namespace else name
