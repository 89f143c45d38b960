"""Declares tools that are not plain functions, as requests, conversations and the model know them.

Tools of type mcp are a part of the API: their items are read even if this server does not run the tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...types import Json

KIND, LISTING, CALL = "mcp", "mcp_list_tools", "mcp_call"
APPROVAL_REQUEST, APPROVAL_RESPONSE = "mcp_approval_request", "mcp_approval_response"
SEARCH, SEARCH_CALL, SEARCH_OUTPUT = "tool_search", "tool_search_call", "tool_search_output"
SHOWN = ("type", "server_label", "server_description", "allowed_tools", "require_approval")
"""The members of a tool that the response repeats, not headers, token and URL, which may hold secrets."""

MAX_LISTED = 1000
"""The most tools of one MCP server."""


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """The tool of the request that the model is offered as a function."""

    name: str
    """The name of the tool."""
    namespace: str | None = None
    """The namespace of the tool, or the label of its MCP server; None if it has neither."""
    custom: bool = False
    """Whether it is a custom tool, which takes a text instead of arguments."""
    search: bool = False
    """Whether it is the client's search for further tools."""
    mcp: bool = False
    """Whether it is a tool of an MCP server that --tool_server names."""
    approval: bool = False
    """Whether the client must approve each call."""


def function_name(name: str, namespace: str | None) -> str:
    """Returns the name of the function that the model is offered for a tool."""
    return f"{namespace}__{name}" if namespace else name


class ServerTool(Protocol):
    """A tool of type mcp in a request: an MCP server with its tools."""

    @property
    def label(self) -> str:
        """The name of the server in the request."""

    @property
    def server(self) -> object:
        """The MCP server, by identity: two tools of a request may name the same one."""


def error_text(error: Json | str) -> str:
    """Returns the text that the model is shown for an error of a call."""
    if isinstance(error, str):
        return error
    blocks = error.get("content")
    texts = (
        [str(block.get("text", "")) for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    )
    return "\n".join(texts) or str(error.get("message", "the call failed"))
