"""The manifest of Cohere's API."""

from __future__ import annotations

from ...manifest import BASES, EVERYWHERE, Feature, Route

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
)
