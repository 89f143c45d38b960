"""Tools of MCP servers for responses: the part at the seam of tools that the server runs."""

from __future__ import annotations

import asyncio

from ...api.services import Services
from ...config import Config
from ...errors import WrongOptions, install_command
from ...types import Json
from ..responses.request import ResponsesRequest
from ..responses.store import Context
from .feature import McpOptions
from .loop import ToolLoop, offer_tools, sessions_of
from .request import McpTool, read_mcp_tool
from .servers import tool_servers
from .sessions import imported


class McpTools:
    """A `features.responses.server_tools.ServerTools`."""

    def __init__(self, config: Config) -> None:
        """Knows the servers of the options."""
        self._servers = tool_servers(config.of(McpOptions).tool_server)

    def read(self, tool: Json, param: str) -> McpTool:
        """Implements ServerTools."""
        return read_mcp_tool(tool, param, self._servers)

    async def start(self, parsed: ResponsesRequest, context: Context, services: Services) -> ToolLoop:
        """Implements ServerTools."""
        return await ToolLoop.start(parsed, context, services)

    async def with_tools(self, parsed: ResponsesRequest, context: Context, services: Services) -> ResponsesRequest:
        """Implements ServerTools."""
        sessions = sessions_of(parsed, services)
        try:
            parsed, _, _ = await offer_tools(parsed, context.items, sessions)
        finally:
            sessions.close()
        return parsed


async def prepare(_: Services) -> None:
    """Imports the package, so that the server does not start without it. Raises WrongOptions."""
    try:
        await asyncio.to_thread(imported)
    except ImportError:
        raise WrongOptions(f"--tool_server needs the package mcp: {install_command('mcp')}") from None
