"""Forms as clients send them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lean_ovms.types import Request

BOUNDARY = "0123456789abcdef"
FORM = f"multipart/form-data; boundary={BOUNDARY}"

Part = tuple[str, "str | bytes | tuple[str, bytes]"]
"""A name with a text, bytes, or a file's name and bytes."""


def encoded(parts: Iterable[Part], boundary: str = BOUNDARY) -> bytes:
    """Returns the body."""
    out = []
    for name, value in parts:
        file = ""
        if isinstance(value, tuple):
            file, value = f'; filename="{value[0]}"\r\nContent-Type: application/octet-stream', value[1]
        data = value.encode() if isinstance(value, str) else value
        out += [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode(), data, b"\r\n"]
    return b"".join(out) + f"--{boundary}--\r\n".encode()


def form_request(path: str, parts: Sequence[Part] = (), body: bytes | None = None, **headers: str) -> Request:
    """Returns a request with these parts, or with this body."""
    sent = {"content-type": FORM, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Request("POST", path, headers=sent, body=encoded(parts) if body is None else body)
