"""Errors in the form of text-embeddings-inference: https://huggingface.github.io/text-embeddings-inference/."""

from __future__ import annotations

from ...errors import RequestError, with_param

SCHEMA = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
    "required": ["error", "error_type"],
}
"""The JSON Schema of the error object."""
KINDS = {413: "Validation", 429: "Overloaded", 503: "Unhealthy"}
"""The types of errors by their status, where they are not those of all errors above or below 500."""


def tei_error(error: RequestError, request_id: str = "") -> dict[str, str]:
    """Returns the error object, a message that begins with the parameter's name, and a type. It contains no id."""
    kind = KINDS.get(error.status, "Validation" if error.status < 500 else "Backend")
    return {"error": with_param(error), "error_type": kind}
