"""The options of tools of MCP servers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config.options import Options, option

_tools = partial(option, group="tools")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class McpOptions(Options):
    """Which servers there are, and how much responses may use them."""

    tool_server: str = _tools(
        "",
        "MCP servers whose tools responses may use (lean_ovms/features/mcp/README.md): NAME=URL, "
        "or NAME=COMMAND of one that is started for a response and reached by its stdin; "
        "several are separated by blanks; it needs the extra mcp",
        several=True,
        private=True,
    )
    max_tool_calls: int = _tools(32, "most calls of MCP tools in a response", low=1)
    max_tool_sessions: int = _tools(
        16,
        "most responses that are connected to tool servers at a time, three quarters of them of one client; further "
        "ones wait, at most 30 s",
        low=1,
    )
    max_tool_output: int = _tools(32768, "most characters of a tool's output; the rest is cut off", low=100)
    tool_timeout_s: float = _tools(
        60.0, "seconds in which a tool server must list its tools, or answer a call", low=0.1
    )

    def check(self, config: Any) -> None:
        """Checks the form of the servers. Raises StartError."""
        if self.tool_server:
            from .servers import tool_servers  # late: few servers have tools

            tool_servers(self.tool_server)
