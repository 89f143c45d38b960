"""A small MCP server for tests, on stdin and stdout."""

from __future__ import annotations

import asyncio
import os

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("tests", log_level="CRITICAL")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def fail(reason: str) -> str:
    """Fails."""
    raise ToolError(reason)


@server.tool()
def write(count: int) -> str:
    """Returns that many characters."""
    return "x" * count


@server.tool()
async def wait() -> str:
    """Never returns."""
    await asyncio.Event().wait()
    return ""


@server.tool()
def leave() -> str:
    """Ends the server."""
    os._exit(1)


if __name__ == "__main__":
    server.run()
