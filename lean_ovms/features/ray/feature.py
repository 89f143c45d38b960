"""The manifest of replicas on a Ray cluster."""

from __future__ import annotations

from ...manifest import Feature

FEATURE = Feature(
    name="ray",
    summary="runs replicas of the server on a Ray cluster",
    needs=("chat", "asgi", "metrics", "replicas"),
    extra="ray",
    packages=("ray", "starlette"),
)
