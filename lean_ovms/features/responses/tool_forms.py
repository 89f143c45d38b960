"""Declares tools that are no plain functions as requests, conversations and the model know them.

Those of type mcp are a part of the API: their items are read whether or not the server runs the tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...types import Json

KIND, LISTING, CALL = "mcp", "mcp_list_tools", "mcp_call"
APPROVAL_REQUEST, APPROVAL_RESPONSE = "mcp_approval_request", "mcp_approval_response"
SHOWN = ("type", "server_label", "server_description", "allowed_tools", "require_approval")
"""What the response repeats of a tool: no headers, no token and no URL, which may hold secrets."""


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


class ServerTool(Protocol):
    """A tool of type mcp in a request."""

    @property
    def label(self) -> str:
        """The name of the server in the request."""

    @property
    def server(self) -> object:
        """The server, which equals itself alone."""


def error_text(error: Json | str) -> str:
    """Returns what the model sees of an error of a call."""
    if isinstance(error, str):
        return error
    blocks = error.get("content")
    texts = (
        [str(block.get("text", "")) for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    )
    return "\n".join(texts) or str(error.get("message", "the call failed"))
