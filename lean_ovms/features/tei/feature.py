"""The manifest of text-embeddings-inference's API."""

from __future__ import annotations

from ...manifest import Feature, Route

FEATURE = Feature(
    name="tei",
    summary="serves embeddings, similarities and labels in the format of Hugging Face's text-embeddings-inference",
    title="text-embeddings-inference",
    reference="https://huggingface.github.io/text-embeddings-inference",
    needs=("pooling",),
    routes=(
        Route("POST", "/embed", "api:handle"),
        Route("POST", "/predict", "scores:handle_predict"),
        Route("POST", "/similarity", "scores:handle_similarity"),
    ),
)
