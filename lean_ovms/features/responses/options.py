"""The options of responses, their store and their tools."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...config.options import Options, option
from ...errors import WrongOptions

_responses = partial(option, group="responses")
_tools = partial(option, group="tools")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ResponseOptions(Options):
    """Where responses are stored, how many there may be, and which tools they may use."""

    # --- responses
    response_store: str = _responses(
        "",
        "where responses are stored: a SQLite file, or postgresql://... if several machines share them; empty: in "
        "memory",
        private=True,
    )
    response_store_strict: bool = _responses(
        False, "do not start with a damaged store file; false: it is renamed, and a new one begins"
    )
    response_store_max_age_s: float = _responses(
        2592000.0,
        "delete a response, or a conversation that is not used, after this many seconds (the default is 30 days); 0: "
        "never",
        low=0,
    )
    response_store_max_count: int = _responses(
        10000, "most stored responses, and as many conversations; the oldest are deleted", low=1
    )
    response_store_max_mb: int = _responses(
        256, "largest size of the store in MB; the oldest entries are deleted", low=1, high=1 << 20
    )
    reasoning_key_file: str = _responses(
        "",
        "file with the keys of sealed reasoning (reasoning.encrypted_content), a line each; the first seals, all open"
        " (lean_ovms/features/responses/README.md); empty: a random key, until the server stops",
    )

    # --- tools
    tool_server: str = _tools(
        "",
        "MCP servers whose tools responses may use (lean_ovms/features/responses/README.md): NAME=URL, "
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

    # --- realtime
    max_response_websockets: int = option(64, "most open WebSockets of /responses; more: 429", group="realtime", low=1)

    def check(self, config: Any) -> None:
        """Raises WrongOptions for a store without a directory, and StartError for servers of tools that are none."""
        store = self.response_store
        if store and "://" not in store and not Path(store).absolute().parent.is_dir():
            raise WrongOptions(f"--response_store {store}: there is no directory {Path(store).absolute().parent}")
        if self.tool_server:
            from .tool_servers import tool_servers  # late: few servers have tools

            tool_servers(self.tool_server)
