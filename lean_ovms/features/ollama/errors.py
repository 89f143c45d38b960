"""Errors in Ollama's form: https://docs.ollama.com/api/errors."""

from __future__ import annotations

from ...errors import RequestError, with_param

SCHEMA = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
"""The JSON Schema of the error object."""


def ollama_error(error: RequestError, request_id: str = "") -> dict[str, str]:
    """Returns Ollama's error object, a message that begins with the parameter's name. It does not contain an id."""
    return {"error": with_param(error)}
