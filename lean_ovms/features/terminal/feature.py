"""The manifest of chats in the terminal."""

from __future__ import annotations

from ...manifest import Command, Feature

FEATURE = Feature(
    name="terminal",
    summary="chats with a model in the terminal, or answers one prompt there",
    commands=(
        Command(
            "run",
            "MODEL [PROMPT]",
            "start a model and chat with it in the terminal, or answer one prompt",
            "run:main",
            example="lean_ovms run OpenVINO/Qwen3-8B-int4-ov        a chat with it in the terminal",
        ),
        Command("chat", "[URL] [MODEL] [PROMPT]", "the same with a server that runs already", "chat:main"),
    ),
)
