"""The manifest of tools of MCP servers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option
from ...manifest import BASES, SERVER_TOOLS, ErrorForm, Feature, PageRow, PartRow, Route, StartRow

_tools = partial(option, group="tools")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class McpOptions(Options):
    """The options of MCP servers, and limits of their use by responses."""

    tool_server: str = _tools(
        "",
        "MCP servers whose tools responses may use (lean_ovms/features/mcp/README.md), separated by spaces: "
        "NAME=URL, or NAME=COMMAND, which is started for a response and reached by its stdin; needs the extra mcp",
        several=True,
        private=True,
    )
    max_tool_calls: int = _tools(32, "maximum number of calls of MCP tools in a response", low=1)
    max_tool_sessions: int = _tools(
        16,
        "maximum number of responses connected to tool servers at a time, three quarters of them of one client; "
        "others wait for up to 30 s",
        low=1,
    )
    max_tool_output: int = _tools(
        32768, "maximum number of characters of a tool's output; the rest is cut off", low=100
    )
    tool_timeout_s: float = _tools(
        60.0, "seconds within which a tool server must list its tools, or answer a call", low=0.1
    )

    def check(self, config: Any) -> None:
        """Checks the syntax of the list of servers. Raises StartError."""
        if self.tool_server:
            from .servers import tool_servers  # late, because few servers have tools

            tool_servers(self.tool_server)


ONLY = ("tool_server",)
FEATURE = Feature(
    name="mcp",
    summary="calls tools of MCP servers for responses and chat clients, and is an MCP server itself",
    title="Tools of MCP servers",
    needs=("responses",),
    extra="mcp",
    packages=("mcp", "httpx2"),
    options=McpOptions,
    flags="flags.txt",
    routes=(
        Route("POST", "/mcp", "server:handle"),
        Route("GET", "/tool_servers", "api:handle_list", BASES),
        Route("POST", "/tool_servers/call", "api:handle_call", BASES, changes=True, by_one=True),
        Route("POST", "/tool_servers/prompt", "api:handle_prompt", BASES, changes=True, by_one=True),
        Route("POST", "/tool_servers/resource", "api:handle_resource", BASES, changes=True, by_one=True),
    ),
    error_forms=(ErrorForm(name="McpError", body="server:rpc_error", schema="server:ERROR_SCHEMA", paths=("/mcp/",)),),
    page=(
        PageRow("tool_servers", "/v1/tool_servers", ONLY),
        PageRow("call_tool", "/v1/tool_servers/call", ONLY),
        PageRow("read_prompt", "/v1/tool_servers/prompt", ONLY),
        PageRow("read_resource", "/v1/tool_servers/resource", ONLY),
    ),
    parts=(PartRow(seam=SERVER_TOOLS, make="loop:McpTools", options=("tool_server",)),),
    start=StartRow(prepare="loop:prepare", options=("tool_server",)),
)
