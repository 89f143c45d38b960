"""The manifest of completions."""

from __future__ import annotations

from ...manifest import BASES, Feature, Route

FEATURE = Feature(
    name="completions",
    summary="serves OpenAI's older completions, which continue a text",
    title="OpenAI: completions",
    reference="https://platform.openai.com/docs/api-reference/completions",
    essential=True,
    needs=("chat",),
    routes=(Route("POST", "/completions", "api:handle", BASES),),
)
