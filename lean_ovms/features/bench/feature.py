"""The manifest of a small load."""

from __future__ import annotations

from ...manifest import Command, Feature

FEATURE = Feature(
    name="bench",
    summary="measures a running server with a small load",
    commands=(Command("bench", "[URL] [MODEL]", "measure a running server with a small load", "command:main"),),
)
