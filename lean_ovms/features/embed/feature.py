"""The manifest of the server inside a Python program."""

from __future__ import annotations

from ...manifest import Feature

FEATURE = Feature(
    name="embed",
    summary="runs the server inside a Python program, with sockets or without",
    needs=("asgi", "websocket"),
)
