"""Converts requests from ASGI's form and headers of responses to it, for HTTP and WebSockets."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ...transports.cycle import FRAMING_HEADERS
from ...types import Request, Response

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_LINE_END = re.compile(r"[\r\n\0]")


def response_headers(response: Response) -> list[tuple[bytes, bytes]]:
    """Converts the response's own headers to ASGI's form. Raises ValueError if one cannot be sent."""
    return [header(name, value) for name, value in response.headers if name.lower() not in FRAMING_HEADERS]


def header(name: str, value: str) -> tuple[bytes, bytes]:
    """Converts a header to ASGI's form. Raises ValueError for line breaks, by which headers could be injected."""
    if _LINE_END.search(value):
        raise ValueError("illegal header value")
    return name.lower().encode("ascii"), value.encode("latin-1", "replace")


def request_of(scope: Scope, headers: dict[str, str], body: bytes) -> Request:
    """Makes a Request from the host's scope. Its path is relative to the path at which the app is mounted."""
    root, path = scope.get("root_path", ""), scope["path"]
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    host, port = scope.get("client") or ("", 0)
    peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(scope.get("method", "GET"), path, query, headers, body, peer)
