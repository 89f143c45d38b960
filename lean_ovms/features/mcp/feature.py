"""The manifest of tools of MCP servers."""

from __future__ import annotations

from ...manifest import BASES, SERVER_TOOLS, Feature, PageRow, PartRow, Route, StartRow
from .options import McpOptions

ONLY = ("tool_server",)
FEATURE = Feature(
    name="mcp",
    summary="calls the tools of MCP servers while it generates a response, and for clients that chat",
    title="Tools of MCP servers",
    needs=("responses",),
    extra="mcp",
    packages=("mcp", "httpx2"),
    options=McpOptions,
    flags="flags.txt",
    routes=(
        Route("GET", "/tool_servers", "api:handle_list", BASES),
        Route("POST", "/tool_servers/call", "api:handle_call", BASES, changes=True),
        Route("POST", "/tool_servers/prompt", "api:handle_prompt", BASES, changes=True),
        Route("POST", "/tool_servers/resource", "api:handle_resource", BASES, changes=True),
    ),
    page=(
        PageRow("tool_servers", "/v1/tool_servers", ONLY),
        PageRow("call_tool", "/v1/tool_servers/call", ONLY),
        PageRow("read_prompt", "/v1/tool_servers/prompt", ONLY),
        PageRow("read_resource", "/v1/tool_servers/resource", ONLY),
    ),
    parts=(PartRow(seam=SERVER_TOOLS, make="tools:McpTools", options=("tool_server",)),),
    start=StartRow(prepare="tools:prepare", options=("tool_server",)),
)
