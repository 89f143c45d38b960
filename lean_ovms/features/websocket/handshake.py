"""The opening handshake of RFC 6455, section 4.2."""

from __future__ import annotations

import base64
import binascii
import hashlib

from ...types import Request

PROTOCOL = "websocket"
"""The name of the protocol in the Upgrade header."""
VERSION = "13"
"""The version of WebSocket."""
PROTOCOLS_HEADER = "sec-websocket-protocol"
"""The header with the subprotocols that the client offers, separated by commas."""
KEY_SUBPROTOCOL = "openai-insecure-api-key."
"""The prefix of the subprotocol in which OpenAI's clients send an API key when a browser opens a WebSocket."""
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16
"""The number of bytes in a Sec-WebSocket-Key."""


def is_complete(request: Request) -> bool:
    """Returns whether a request with this Upgrade header has everything else that the opening handshake needs."""
    headers = request.headers
    return (
        request.method == "GET"
        and headers.get("sec-websocket-version", "") == VERSION
        and _is_key(headers.get("sec-websocket-key", ""))
    )


def mark(request: Request) -> None:
    """Marks a request that may open a WebSocket. A browser sends its API key as a subprotocol, not as a header."""
    request.upgrade = PROTOCOL
    keys = (name for name in offered(request) if name.startswith(KEY_SUBPROTOCOL))
    request.api_key = next(keys, "").removeprefix(KEY_SUBPROTOCOL)


def offered(request: Request) -> list[str]:
    """Returns the subprotocols that a client offers."""
    return [name.strip() for name in request.headers.get(PROTOCOLS_HEADER, "").split(",")]


def _is_key(key: str) -> bool:
    """Returns whether a text is the base64 encoding of 16 bytes."""
    try:
        return len(base64.b64decode(key.encode("latin-1"), validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def accept_key(key: str) -> str:
    """Returns Sec-WebSocket-Accept for a Sec-WebSocket-Key. SHA-1 is prescribed, and protects nothing here."""
    digest = hashlib.sha1(key.encode("latin-1") + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()
