"""The manifest of the list of models."""

from __future__ import annotations

from ...manifest import BASES, EVERYWHERE, Feature, Route

FEATURE = Feature(
    name="models",
    summary="lists the served models, as OpenAI's API does",
    title="OpenAI: models",
    reference="https://platform.openai.com/docs/api-reference/models",
    essential=True,
    routes=(
        Route("GET", "/models", "api:handle_list", EVERYWHERE, auth="models"),
        Route("GET", "/models/{id}", "api:handle_one", BASES, auth="models"),
    ),
)
