"""The manifest of coding agents that are started for a server."""

from __future__ import annotations

from ...manifest import Command, Feature

FEATURE = Feature(
    name="launch",
    summary="starts a coding agent such as Claude Code, Codex or opencode with the settings for this server",
    commands=(Command("launch", "AGENT [URL]", "start a coding agent that uses a running server", "command:main"),),
)
