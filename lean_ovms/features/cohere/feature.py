"""The manifest of Cohere's API."""

from __future__ import annotations

from ...manifest import BASES, EVERYWHERE, ErrorForm, Feature, Route

FEATURE = Feature(
    name="cohere",
    summary="serves Cohere's API: chat, and embeddings of texts and images",
    title="Cohere",
    reference="https://docs.cohere.com/reference",
    needs=("chat", "pooling"),
    flags="flags.txt",
    routes=(
        Route("POST", "/v2/chat", "api.chat:handle", EVERYWHERE),
        Route("POST", "/cohere/v2/chat", "api.chat:handle"),
        Route("POST", "/v2/embed", "api.embed:handle", EVERYWHERE, serves="embeddings"),
        Route("POST", "/embed", "api.embed:handle", BASES),
    ),
    error_forms=(
        ErrorForm(
            name="CohereError",
            body="errors:cohere_error",
            schema="errors:SCHEMA",
            paths=(
                "/cohere/",
                *(f"{base}/v2/{task}/" for base in EVERYWHERE for task in ("chat", "embed", "rerank")),
                *(f"{base}/embed/" for base in BASES),
            ),
        ),
    ),
)
