"""The manifest of completions."""

from __future__ import annotations

from ...manifest import BASES, Feature, Route

FEATURE = Feature(
    name="completions",
    summary="continues texts, as OpenAI's older completions do",
    title="OpenAI: completions",
    reference="https://platform.openai.com/docs/api-reference/completions",
    essential=True,
    needs=("chat",),
    routes=(Route("POST", "/completions", "api:handle", BASES),),
)
