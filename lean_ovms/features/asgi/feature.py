"""The manifest of the server under an ASGI host."""

from __future__ import annotations

from ...manifest import Feature

FEATURE = Feature(
    name="asgi",
    summary="runs the server under an ASGI host such as uvicorn, or mounted in an application",
    needs=("websocket",),
)
