"""The manifest of text-embeddings-inference's API."""

from __future__ import annotations

from ...manifest import ErrorForm, Feature, Route

FEATURE = Feature(
    name="tei",
    summary="serves embeddings, similarities and labels in the format of Hugging Face's text-embeddings-inference",
    title="text-embeddings-inference",
    reference="https://huggingface.github.io/text-embeddings-inference",
    needs=("pooling",),
    routes=(
        Route("POST", "/", "root:handle"),
        Route("POST", "/embed", "api:handle"),
        Route("POST", "/embed_all", "api:handle_all"),
        Route("POST", "/embed_sparse", "api:handle_sparse", serves="sparse"),
        Route("POST", "/decode", "info:handle_decode"),
        Route("GET", "/info", "info:handle", auth="models"),
        Route("POST", "/predict", "scores:handle_predict"),
        Route("POST", "/similarity", "scores:handle_similarity"),
    ),
    error_forms=(
        ErrorForm(
            name="TeiError",
            body="errors:tei_error",
            schema="errors:SCHEMA",
            paths=("/embed/", "/embed_all/", "/embed_sparse/", "/decode/", "/info/", "/predict/", "/similarity/"),
        ),
    ),
)
