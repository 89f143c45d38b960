"""Errors in Cohere's form, which its clients read: https://docs.cohere.com/reference/errors."""

from __future__ import annotations

from typing import Any

from ...errors import RequestError, with_param

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The id of the request"},
        "message": {"type": "string"},
        "error": {"type": "object", "description": "The same error in OpenAI's form"},
    },
    "required": ["message", "error"],
}
"""The JSON Schema of the error object."""


def cohere_error(error: RequestError, request_id: str = "") -> dict[str, Any]:
    """Returns the error object: Cohere's message, which names the parameter, and OpenAI's object for other clients."""
    return {**({"id": request_id} if request_id else {}), "message": with_param(error), **error.body()}
