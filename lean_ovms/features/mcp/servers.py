"""Parses --tool_server, the list of MCP servers whose tools requests may use."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache

from ...errors import StartError

LABEL = re.compile(r"[A-Za-z][\w-]{0,63}", re.ASCII)
_NEXT = re.compile(r"\s+(?=[A-Za-z][\w-]*=)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToolServer:
    """An MCP server."""

    url: str
    """The URL; "" if the server is started by `command`, and connected by its stdin and stdout."""
    command: tuple[str, ...] = ()
    """The words of the command."""


@cache
def tool_servers(text: str) -> dict[str, ToolServer]:
    """Parses NAME=URL and NAME=COMMAND, separated by blanks. Returns the servers by their names. Raises StartError."""
    found: dict[str, ToolServer] = {}
    for part in _NEXT.split(text.strip()) if text.strip() else ():
        name, equals, rest = part.partition("=")
        if not (equals and LABEL.fullmatch(name)):
            raise _invalid(f"{part[:60]!r} is not of the form NAME=URL or NAME=COMMAND")
        if name in found:
            raise _invalid(f"the name {name!r} is used twice")
        if rest.startswith(("http://", "https://")):
            found[name] = ToolServer(rest)
            continue
        try:
            words = tuple(shlex.split(rest))
        except ValueError as error:
            raise _invalid(f"the command of {name!r} cannot be read: {error}") from None
        if not words or "://" in words[0]:
            raise _invalid(f"{name!r} needs the URL of an HTTP server, or a command")
        found[name] = ToolServer("", words)
    return found


def _invalid(problem: str) -> StartError:
    return StartError(f"--tool_server: {problem}")
