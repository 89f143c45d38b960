"""The manifest of responses and conversations."""

from __future__ import annotations

from ...config.server import WebSocketOptions
from ...manifest import BASES, EVERYWHERE, Feature, Route, StartRow
from .options import ResponseOptions

FEATURE = Feature(
    name="responses",
    summary="OpenAI's Responses API: stored and background responses, conversations",
    title="OpenAI: responses and conversations",
    reference="https://platform.openai.com/docs/api-reference/responses",
    packages=("cryptography", "psycopg"),
    options=ResponseOptions,
    libraries=(WebSocketOptions,),
    start=StartRow(prepare="api.create:prepare", options=("response_store", "reasoning_key_file")),
    routes=(
        Route("POST", "/responses/compact", "api.compact:handle", EVERYWHERE),
        Route("POST", "/conversations", "api.conversations:handle_create", BASES),
        Route("GET", "/conversations/{id}", "api.conversations:handle_get", BASES),
        Route("POST", "/conversations/{id}", "api.conversations:handle_update", BASES),
        Route("DELETE", "/conversations/{id}", "api.conversations:handle_delete", BASES),
        Route("GET", "/conversations/{id}/items", "api.conversations:handle_items", BASES),
        Route("POST", "/conversations/{id}/items", "api.conversations:handle_add_items", BASES),
        Route("GET", "/conversations/{id}/items/{id}", "api.conversations:handle_item", BASES),
        Route("DELETE", "/conversations/{id}/items/{id}", "api.conversations:handle_delete_item", BASES),
        Route("POST", "/responses", "api.create:handle_create", EVERYWHERE, serves="chat"),
        Route("POST", "/responses/input_tokens", "api.create:handle_input_tokens", EVERYWHERE),
        Route("GET", "/responses/{id}", "api.stored:handle_get", BASES),
        Route("DELETE", "/responses/{id}", "api.stored:handle_delete", BASES),
        Route("POST", "/responses/{id}/cancel", "api.stored:handle_cancel", BASES),
        Route("GET", "/responses/{id}/input_items", "api.stored:handle_input_items", BASES),
        Route("GET", "/responses", "api.websocket:handle", EVERYWHERE),
    ),
)
