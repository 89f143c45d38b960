"""What the JSON answers of the generating endpoints have in common."""

from __future__ import annotations

import secrets
import time
from typing import Any

import orjson

from ..errors import BadRequest
from ..log import safe
from ..shapes import Json, Response, Usage
from .fields import Row

STREAM = (
    Row(name="model", kind="string", help="name of a served model", wrong="model field is not a string"),
    Row(name="stream", kind="bool", help="answer with server-sent events", wrong="stream field is not a boolean"),
    Row(name="stream_options", kind="object", help="include_usage, continuous_usage_stats"),
    Row(name="return_token_ids", kind="bool", help="add prompt_token_ids and token_ids"),
)
"""Rows that say how to answer."""

STREAM_OPTIONS = (
    Row(
        name="include_usage",
        kind="bool",
        help="a last chunk with the token counts",
        wrong="stream_options.include_usage is not a boolean",
    ),
    Row(
        name="continuous_usage_stats",
        kind="bool",
        help="token counts in every chunk",
        wrong="stream_options.continuous_usage_stats is not a boolean",
    ),
)

MAX_NOTICES = 16
MAX_NOTICE = 400
UNSUPPORTED = ("logit_bias", "prompt_logprobs", "logits_processors", "prompt_embeds")
"""Fields that the engine cannot honour and that change an answer: accepted as OVMS does, but never silently."""


def json(body: Any, headers: list[tuple[str, str]] | None = None, status: int = 200) -> Response:
    """A JSON response."""
    return Response(status, [("Content-Type", "application/json"), *(headers or [])], orjson.dumps(body))


def model_name(values: Json) -> str:
    """The required field. Raises BadRequest."""
    name = values["model"]
    if not name:
        raise BadRequest("model field is missing in JSON body", param="model")
    return str(name)


def stream_options(values: Json) -> tuple[bool, bool]:
    """(include_usage, continuous_usage_stats). Raises BadRequest."""
    options = values["stream_options"]
    if options is None:
        return False, False
    if not values["stream"]:
        raise BadRequest("stream_options provided, but stream not set to true", param="stream_options")
    known = {row.name for row in STREAM_OPTIONS}
    if set(options) - known:
        raise BadRequest(
            "Found unexpected stream options. Properties accepted in stream_options: " + ", ".join(sorted(known)),
            param="stream_options",
        )
    for row in STREAM_OPTIONS:
        value = options.get(row.name)
        if value is not None and not isinstance(value, bool):
            raise BadRequest(row.wrong, param=f"stream_options.{row.name}")
    continuous = bool(options.get("continuous_usage_stats"))
    return bool(options.get("include_usage")) or continuous, continuous


def warnings(body: Json, extra: list[str] | None = None) -> list[tuple[str, str]]:
    """A Warning header for every field that is not honoured (RFC 7234 section 5.5, code 299)."""
    return notices(
        [f"{name} is not supported and was ignored" for name in UNSUPPORTED if body.get(name)] + (extra or [])
    )


def notices(texts: list[str]) -> list[tuple[str, str]]:
    """A Warning header for each text; what a header cannot hold is written as an escape, what is too long is cut."""
    plain = [safe(text, MAX_NOTICE).encode("ascii", "backslashreplace").decode() for text in texts[:MAX_NOTICES]]
    return [("Warning", '299 lean_ovms "{}"'.format(text[:MAX_NOTICE].replace('"', "'"))) for text in plain]


def usage(counts: Usage) -> Json:
    """The usage object of chat and completions. Cached prompt tokens are left out: the engine does not tell."""
    body: Json = {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
    }
    if counts.reasoning_tokens:
        body["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning_tokens}
    return body


def new_id(prefix: str) -> str:
    """A random id, as unique as 96 bits are."""
    return f"{prefix}-{secrets.token_hex(12)}"


def now() -> int:
    """Unix time in whole seconds, for `created`."""
    return int(time.time())
