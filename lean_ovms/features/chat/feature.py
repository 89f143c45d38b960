"""The manifest of chat completions."""

from __future__ import annotations

from ...manifest import EVERYWHERE, Feature, Route

FEATURE = Feature(
    name="chat",
    summary="serves OpenAI's chat completions",
    title="OpenAI: chat completions",
    reference="https://platform.openai.com/docs/api-reference/chat",
    essential=True,
    routes=(
        Route("POST", "/chat/completions", "api:handle", EVERYWHERE, model="TextModel"),
        Route("POST", "/chat/completions/input_tokens", "api:handle_input_tokens", EVERYWHERE),
    ),
)
