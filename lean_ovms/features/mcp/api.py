"""GET …/tool_servers and POST …/tool_servers/call, /prompt and /resource: access to the MCP servers of --tool_server.

They are for clients that make the calls of a chat themselves, such as the web page, and have no connections to MCP
servers. Each request has connections of its own, so a server that is started by a command keeps no state between calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from ...api.fields import Field, FieldSet, RouteDoc, Values, read
from ...api.response import json
from ...api.services import Services
from ...errors import BadRequest, NotFound
from ...types import Json, Request, Response
from ..responses.tool_forms import ToolOrigin, error_text
from .feature import McpOptions
from .request import McpTool
from .servers import ToolServer, tool_servers
from .sessions import ListingFailed, ToolFailed, ToolServers, ToolSessions, all_pages, list_tools, shortened, text_of

if TYPE_CHECKING:
    from mcp import Client

SERVER = Field("server", "string", "name of a server in --tool_server", required=True)
NAME = Field("name", "string", "its name on that server", required=True)
CALL = FieldSet((SERVER, NAME, Field("arguments", "object", "arguments of the tool")))
PROMPT = FieldSet((SERVER, NAME, Field("arguments", "object", "arguments of the prompt, as strings")))
RESOURCE = FieldSet((SERVER, Field("uri", "string", "its URI on that server", required=True)))


@RouteDoc("The MCP servers of --tool_server with their tools, prompts and resources", errors=(429, 503))
async def handle_list(request: Request, services: Services) -> Response:
    servers = _servers(services)
    sessions = _sessions(services, servers)
    try:
        found = await asyncio.gather(*(_describe(sessions, name) for name in servers))
    finally:
        sessions.close()
    return json({"object": "list", "data": found})


@RouteDoc("Call a tool, and return its output", body=CALL, errors=(404, 429, 503))
async def handle_call(request: Request, services: Services) -> Response:
    values = await services.parse_body(request, lambda body, _: read(CALL, body))

    async def call(sessions: ToolSessions, server: str) -> Json:
        origin = ToolOrigin(values["name"], server, mcp=True)
        try:
            output = await sessions.call(origin, orjson.dumps(values["arguments"] or {}).decode())
        except ToolFailed as failed:
            return {"output": error_text(failed.error), "is_error": True}
        return {"output": output, "is_error": False}

    return await _with_server(values, services, call)


@RouteDoc("The messages of a prompt", body=PROMPT, errors=(404, 424, 429, 503))
async def handle_prompt(request: Request, services: Services) -> Response:
    values = await services.parse_body(request, lambda body, _: read(PROMPT, body))
    arguments = {name: str(value) for name, value in (values["arguments"] or {}).items()}
    most = services.config.of(McpOptions).max_tool_output

    async def ask(client: Client) -> Json:
        found = await client.get_prompt(values["name"], arguments)
        return {
            "messages": [{"role": one.role, "content": shortened(text_of(one.content), most)} for one in found.messages]
        }

    return await _with_server(values, services, lambda sessions, server: _asked(sessions, server, ask))


@RouteDoc("The text of a resource", body=RESOURCE, errors=(404, 424, 429, 503))
async def handle_resource(request: Request, services: Services) -> Response:
    values = await services.parse_body(request, lambda body, _: read(RESOURCE, body))
    most = services.config.of(McpOptions).max_tool_output

    async def ask(client: Client) -> Json:
        found = await client.read_resource(values["uri"])
        return {"texts": [getattr(one, "text", None) for one in found.contents]}

    async def read_text(sessions: ToolSessions, server: str) -> Json:
        texts = (await _asked(sessions, server, ask))["texts"]
        if None in texts:
            raise BadRequest("the resource is not text", param="uri")
        return {"text": shortened("\n".join(texts), most)}

    return await _with_server(values, services, read_text)


def _servers(services: Services) -> Mapping[str, ToolServer]:
    return tool_servers(services.config.of(McpOptions).tool_server)


def _sessions(services: Services, servers: Mapping[str, ToolServer]) -> ToolSessions:
    """Makes the connections of one request, which are opened later, and which the caller has to close."""
    tools = [McpTool(name, server, {}, None, None) for name, server in servers.items()]
    return ToolSessions(services.get(ToolServers), tools)


async def _with_server(
    values: Values, services: Services, work: Callable[[ToolSessions, str], Awaitable[Json]]
) -> Response:
    """Does work with the server that a body names, and returns its result as a response. Raises RequestError."""
    servers, name = _servers(services), values["server"]
    if name not in servers:
        raise NotFound(f"--tool_server does not name a server {name!r}", param="server")
    sessions = _sessions(services, servers)
    try:
        return json(await work(sessions, name))
    finally:
        sessions.close()


async def _asked(sessions: ToolSessions, server: str, ask: Callable[[Client], Awaitable[Json]]) -> Json:
    try:
        return await sessions.ask(server, ask)
    except ToolFailed as failed:
        raise ListingFailed(f"The MCP server {server!r} failed: {failed}", code="mcp_request_failed") from None


async def _describe(sessions: ToolSessions, name: str) -> Json:
    """Describes a server: its tools, prompts and resources, or the error if they cannot be listed."""
    try:
        found: Json = await sessions.ask(name, _offers)
        error = None
    except ToolFailed as failed:
        found, error = {"tools": [], "prompts": [], "resources": []}, str(failed)
    return {"name": name, **found, "error": error}


async def _offers(client: Client) -> Json:
    able = client.server_capabilities
    return {
        "tools": await list_tools(client) if able.tools else [],
        "prompts": await _prompts(client) if able.prompts else [],
        "resources": await _resources(client) if able.resources else [],
    }


async def _prompts(client: Client) -> list[Json]:
    found = await all_pages(client.list_prompts, "prompts")
    return [
        {"name": one.name, "description": one.description, "arguments": [_argument(row) for row in one.arguments or ()]}
        for one in found
    ]


def _argument(row: Any) -> Json:
    return {"name": row.name, "description": row.description, "required": bool(row.required)}


async def _resources(client: Client) -> list[Json]:
    found = await all_pages(client.list_resources, "resources")
    return [
        {"uri": str(one.uri), "name": one.name, "description": one.description, "mime_type": one.mime_type}
        for one in found
    ]
