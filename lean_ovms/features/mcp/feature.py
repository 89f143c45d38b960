"""The manifest of tools of MCP servers."""

from __future__ import annotations

from ...manifest import SERVER_TOOLS, Feature, PartRow, StartRow
from .options import McpOptions

FEATURE = Feature(
    name="mcp",
    summary="calls the tools of MCP servers while it generates a response",
    needs=("responses",),
    extra="mcp",
    packages=("mcp", "httpx2"),
    options=McpOptions,
    flags="flags.txt",
    parts=(PartRow(seam=SERVER_TOOLS, make="tools:McpTools", options=("tool_server",)),),
    start=StartRow(prepare="tools:prepare", options=("tool_server",)),
)
