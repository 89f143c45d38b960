"""The opening handshake of RFC 6455, section 4.2, over HTTP/1.1."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping

from .response_head import tokens

VERSION = "13"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16


def asks_for_websocket(method: str, headers: Mapping[str, str]) -> bool:
    """Returns whether these are the head of a complete opening handshake. headers: with lower-case names."""
    return (
        method == "GET"
        and "websocket" in tokens(headers.get("upgrade", ""))
        and "upgrade" in tokens(headers.get("connection", ""))
        and headers.get("sec-websocket-version", "") == VERSION
        and is_key(headers.get("sec-websocket-key", ""))
    )


def is_key(key: str) -> bool:
    """Returns whether it is the base64 of 16 bytes."""
    try:
        return len(base64.b64decode(key.encode("latin-1"), validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def accept_key(key: str) -> str:
    """Returns Sec-WebSocket-Accept for a Sec-WebSocket-Key: SHA-1 is the protocol's choice and protects nothing."""
    digest = hashlib.sha1(key.encode("latin-1") + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()
