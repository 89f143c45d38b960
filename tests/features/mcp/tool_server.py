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


@server.prompt()
def explain(topic: str) -> str:
    """Explains a topic."""
    return f"Explain {topic} in one sentence."


@server.resource("notes://today", mime_type="text/plain")
def today() -> str:
    """What is to be done today."""
    return "Feed the cat."


@server.resource("notes://picture", mime_type="image/png")
def picture() -> bytes:
    """No text."""
    return b"\x89PNG"


if __name__ == "__main__":
    server.run()
