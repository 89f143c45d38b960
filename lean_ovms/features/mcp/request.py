"""Reads tools of type mcp, and converts the tools of MCP servers that the operator allows to functions for the model.

https://platform.openai.com/docs/guides/tools-connectors-mcp. A tool is offered to the model as LABEL__NAME, as a tool
of a namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import BadRequest, NotFound
from ...types import Json
from ..responses.tool_forms import (
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
    CALL,
    KIND,
    SEARCH_CALL,
    ToolOrigin,
    function_name,
)
from .servers import LABEL, ToolServer

OF_CLIENT = ("function_call", "custom_tool_call", SEARCH_CALL, APPROVAL_REQUEST)
"""Items that the client has to answer."""
NOT_HERE = ("connector_id", "tunnel_id")
"""Members of a tool with which OpenAI finds servers that this server does not know."""
_HEADER = re.compile(
    r"(?!(?:host|connection|upgrade|te)\Z|accept|content-|transfer-|mcp-)[\w!#$%&'*+.^`|~-]{1,256}", re.I | re.A
)
_VALUE = re.compile(r"[\t\x20-\x7e]{0,8192}")


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of type mcp in a request: a server whose tools the model may call."""

    label: str
    """The name that the request gives the server."""
    server: ToolServer
    """The allowed server."""
    headers: dict[str, str]
    """The headers that are sent to the server."""
    allowed: Json | None
    """The filter of the tools that are offered to the model; None for all tools."""
    unattended: Json | None
    """The filter of the tools that are called without approval; None for no tool."""

    def is_allowed(self, tool: Json) -> bool:
        """Returns whether a tool of the server is offered to the model."""
        return self.allowed is None or _matches(self.allowed, tool)

    def needs_approval(self, tool: Json) -> bool:
        """Returns whether the client must approve calls of a tool."""
        return self.unattended is None or not _matches(self.unattended, tool)


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of all servers of a request, as functions for the model."""

    functions: list[Json] = field(default_factory=list)
    """The functions, as in the field `tools` of a request."""
    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    """The tool of each function, by the function's name."""

    @classmethod
    def of(cls, tools: Iterable[McpTool], listings: Mapping[str, Json]) -> Offered:
        """Makes the functions for the tools in lists of tools, which are given by label."""
        found = cls()
        for tool in tools:
            for one in filter(tool.is_allowed, listings[tool.label]["tools"]):
                name = function_name(one["name"], tool.label)
                described = {"description": one["description"]} if one.get("description") else {}
                found.functions.append(
                    {"type": "function", "name": name, **described, "parameters": one["input_schema"]}
                )
                found.origins[name] = ToolOrigin(one["name"], tool.label, mcp=True, approval=tool.needs_approval(one))
        return found

    def choice(self, choice: Any) -> Any:
        """Replaces tools that tool_choice names by their server by the names of their functions."""
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") == KIND:
            return {"type": "allowed_tools", "mode": "required", "tools": self._named([choice])}
        if not isinstance(choice.get("tools"), list):
            return choice
        servers = [one for one in choice["tools"] if isinstance(one, dict) and one.get("type") == KIND]
        tools = [one for one in choice["tools"] if not isinstance(one, dict) or one.get("type") != KIND]
        return {**choice, "tools": tools + self._named(servers)}

    def _named(self, servers: Sequence[Json]) -> list[Json]:
        """Returns the functions of the tools that a client names: one by its name, or all of a server."""
        named = {
            (one["server_label"], one.get("name"))
            for one in servers
            if isinstance(one.get("server_label"), str) and isinstance(one.get("name"), str | None)
        }
        return [
            {"type": "function", "name": function}
            for function, origin in self.origins.items()
            if not named.isdisjoint({(origin.namespace, origin.name), (origin.namespace, None)})
        ]


def after_first(choice: Any) -> Any:
    """Returns tool_choice for the generations after the first one, in which no call is required."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {**choice, "mode": "auto"}
    return "auto" if choice != "none" else choice


def read_mcp_tool(tool: Json, param: str, servers: Mapping[str, ToolServer]) -> McpTool:
    """Reads a tool of type mcp in a request.

    Args:
        tool: The object in the request.
        param: The path of this object in the body, for errors.
        servers: The servers that the request may name by their labels; it may also name one by its URL.

    Raises:
        BadRequest: The object is not valid, or names a server that the operator does not allow.
    """
    label, url = tool.get("server_label"), tool.get("server_url")
    if not isinstance(label, str) or not LABEL.fullmatch(label):
        text = "server_label must begin with a letter, and consist of up to 64 letters, digits, dashes and underscores"
        raise BadRequest(text, param=f"{param}.server_label")
    for name in NOT_HERE:
        if tool.get(name):
            raise BadRequest(f"{name} is not supported: name a server of --tool_server", param=f"{param}.{name}")
    if url is None:
        server, name = servers.get(label), "server_label"
    else:
        server, name = next((one for one in servers.values() if one.url and one.url == url), None), "server_url"
    if server is None:
        text = f"{name} is not an MCP server that this server may use; its operator can allow it with --tool_server"
        raise BadRequest(text, param=f"{param}.{name}", code="tool_server_not_allowed")
    approval = tool.get("require_approval", "always")
    if isinstance(approval, dict):
        unattended = _filter(approval["never"], f"{param}.require_approval.never") if approval.get("never") else None
    elif approval in ("always", "never"):
        unattended = {} if approval == "never" else None
    else:
        raise BadRequest("require_approval must be always, never or an object", param=f"{param}.require_approval")
    allowed = tool.get("allowed_tools")
    return McpTool(
        label,
        server,
        _headers(tool, param),
        None if allowed is None else _filter(allowed, f"{param}.allowed_tools"),
        unattended,
    )


def _headers(tool: Json, param: str) -> dict[str, str]:
    given, token = tool.get("headers") or {}, tool.get("authorization")
    if not isinstance(given, dict):
        raise BadRequest("headers is not an object", param=f"{param}.headers")
    if token is not None and not isinstance(token, str):
        raise BadRequest("authorization is not a string", param=f"{param}.authorization")
    headers = dict(given)
    if token:  # takes precedence over a header of this name, which may be in lower case
        headers = {name: value for name, value in given.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {token}"
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise BadRequest(f"the header {name[:60]!r} is not allowed", param=f"{param}.headers")
    return headers


def _filter(value: Any, param: str) -> Json:
    """Reads a list of names, or an object with tool_names and read_only. Raises BadRequest."""
    given = {"tool_names": value} if isinstance(value, list) else value
    names: Any = given.get("tool_names") if isinstance(given, dict) else 0
    read_only = given.get("read_only") if isinstance(given, dict) else 0
    is_list = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
    if not is_list or not (read_only is None or isinstance(read_only, bool)):
        raise BadRequest("must be a list of names, or an object with tool_names and read_only", param=param)
    return {"tool_names": None if names is None else frozenset(names), "read_only": read_only}


def _matches(wanted: Json, tool: Json) -> bool:
    names, read_only = wanted.get("tool_names"), wanted.get("read_only")
    reads = bool((tool.get("annotations") or {}).get("readOnlyHint"))
    return (names is None or tool["name"] in names) and read_only in (None, reads)


def approved(items: Sequence[Json], answers: Sequence[Json], offered: Offered) -> list[Json]:
    """Returns the requests for approval that were granted and whose calls have not been made.

    Args:
        items: The items of the conversation, those of this request included.
        answers: The items of this request only, among them the client's answers.
        offered: The tools that the model may call.

    Raises:
        NotFound: An answer does not belong to a request for approval in this conversation.
        BadRequest: An approved tool is not among those that are offered.
    """
    requests = {item["id"]: item for item in items if item["type"] == APPROVAL_REQUEST}
    called = {item.get("approval_request_id") for item in items if item["type"] == CALL}
    found: dict[str, Json] = {}
    for answer in answers:
        if answer["type"] == APPROVAL_RESPONSE:
            name = answer["approval_request_id"]
            if name not in requests:
                raise NotFound(f"this conversation has no approval request {name[:100]!r}")
            if answer["approve"] and name not in called:
                found[name] = requests[name]
            elif not answer["approve"]:
                found.pop(name, None)  # the last of several answers counts
    for item in found.values():
        if function_name(item["name"], item["server_label"]) not in offered.origins:
            raise BadRequest(f"the approved tool {item['name'][:100]!r} is not in tools", param="tools")
    return list(found.values())


def execution_error(text: str) -> Json:
    """Returns the error of a failed call, in a form that lets the model correct it."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
