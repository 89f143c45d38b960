"""The manifest of decisions."""

from __future__ import annotations

from ...manifest import BASES, Feature, Route

FEATURE = Feature(
    name="decisions",
    summary="answers questions about an input with a probability for each option",
    title="Decisions",
    reference="https://platform.openai.com/docs/api-reference/decisions",
    needs=("completions", "responses", "chat"),
    routes=(Route("POST", "/decisions", "api:handle", BASES), Route("POST", "/systemone", "systemone:handle", BASES)),
)
