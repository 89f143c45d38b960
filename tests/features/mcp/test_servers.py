"""--tool_server: names of MCP servers, and where they are."""

from __future__ import annotations

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.errors import StartError
from lean_ovms.features.mcp.feature import McpOptions
from lean_ovms.features.mcp.servers import ToolServer, tool_servers


def servers(argv: list[str], environ: dict[str, str]) -> dict[str, ToolServer]:
    """Returns the servers of a command line."""
    return tool_servers(parse(argv, environ).of(McpOptions).tool_server)


def test_the_option_is_repeated_or_has_several_servers() -> None:
    argv = ["--tool_server", "docs=https://x/mcp?a=b", "--tool-server", "files=npx -y 'my server' --a=b \"KEY=v\""]
    found = servers(argv, {})
    assert found == {
        "docs": ToolServer("https://x/mcp?a=b"),
        "files": ToolServer("", ("npx", "-y", "my server", "--a=b", "KEY=v")),
    }
    given = {"LEAN_OVMS_TOOL_SERVER": "a=http://x b=http://y"}
    assert servers([], given) == tool_servers("  a=http://x  b=http://y ")
    assert tool_servers("") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("npx", "NAME=URL"),
        ("1a=http://x", "NAME=URL"),
        ("a=", "needs the URL"),
        ("a=ftp://x", "needs the URL"),
        ("a='x", "cannot be read"),
        ("a=x a=y", "given twice"),
    ],
)
def test_what_is_wrong_stops_the_start(text: str, problem: str) -> None:
    with pytest.raises(StartError, match=f"--tool_server: .*{problem}"):
        parse(["--tool_server", text], {})
