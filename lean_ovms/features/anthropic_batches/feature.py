"""The manifest of Anthropic's batches."""

from __future__ import annotations

from ...manifest import BASES, Feature, Route

FEATURE = Feature(
    name="anthropic_batches",
    summary="batches of Anthropic's messages, answered within a day",
    title="Anthropic: batches",
    reference="https://docs.anthropic.com/en/api/creating-message-batches",
    needs=("anthropic", "batches"),
    routes=(
        Route("POST", "/messages/batches", "api:handle_create", BASES),
        Route("GET", "/messages/batches", "api:handle_list", BASES),
        Route("GET", "/messages/batches/{id}", "api:handle_get", BASES),
        Route("DELETE", "/messages/batches/{id}", "api:handle_delete", BASES),
        Route("POST", "/messages/batches/{id}/cancel", "api:handle_cancel", BASES),
        Route("GET", "/messages/batches/{id}/results", "api:handle_results", BASES),
    ),
)
