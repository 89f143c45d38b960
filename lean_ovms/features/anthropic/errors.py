"""Errors in Anthropic's form: https://docs.anthropic.com/en/api/errors."""

from __future__ import annotations

import re
from typing import Any

from ...errors import TOO_LONG, RequestError, with_param

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""The error types by status. Other statuses below 500 are an invalid_request_error, the rest an api_error."""
SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["type", "message"],
        },
        "request_id": {},
    },
    "required": ["type", "error", "request_id"],
}
"""The JSON Schema of the error object."""

PROMPT_COUNTS = re.compile(r"Number of prompt tokens: (\d+) .*model max length: (\d+)")
"""Matches the message of errors.prompt_too_long, with the size of the prompt and the limit in tokens."""


def anthropic_error(error: RequestError, request_id: str = "") -> dict[str, Any]:
    """Returns Anthropic's error object. It has no member for the parameter, so the message begins with its name.

    Clients read the code in `details`, for example to send a request again without a field that is not supported.
    """
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = {"details": {"error_code": error.code}} if error.code else {}
    message = _too_long(error) if error.code == TOO_LONG else with_param(error)
    shown = {"type": kind, "message": message, **details}
    return {"type": "error", "error": shown, "request_id": request_id or None}


def _too_long(error: RequestError) -> str:
    """Returns Anthropic's text for a prompt that is too long.

    Claude Code and LangChain recognize it, and learn from it by how much they have to shorten the conversation.
    """
    counts = PROMPT_COUNTS.match(error.message)  # the engine process sends nothing else
    return f"prompt is too long: {f'{counts[1]} tokens > {counts[2]} maximum' if counts else error.message}"
