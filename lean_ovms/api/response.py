"""What the JSON answers of the generating endpoints have in common."""

from __future__ import annotations

import os
import time
from typing import Any

import orjson

from ..errors import BadRequest
from ..observability.logging import safe
from ..types import Json, Response, Usage

MAX_NOTICES = 16
MAX_NOTICE = 400
UNSUPPORTED = (
    *("logit_bias", "prompt_logprobs", "logits_processors", "prompt_embeds"),
    *("bad_words", "allowed_token_ids", "logprob_token_ids", "early_stopping", "thinking_token_budget"),
    *("priority", "repetition_detection", "mm_processor_kwargs", "media_io_kwargs", "return_prompt_text"),
    *("functions", "function_call", "audio", "web_search_options"),
)
"""Fields that the engine cannot honour and that change an answer: accepted as OVMS does, but never silently."""
_SEARCH = "web_search_options"
"""The one of them that asks for something when it is empty."""


def json(body: Any, headers: list[tuple[str, str]] | None = None, status: int = 200) -> Response:
    """A JSON response."""
    return Response(status, [("Content-Type", "application/json"), *(headers or [])], orjson.dumps(body))


def model_name(values: Json) -> str:
    """The required field. Raises BadRequest."""
    name = values["model"]
    if not name:
        raise BadRequest("model field is missing in JSON body", param="model")
    return str(name)


def warnings(body: Json, extra: list[str] | None = None) -> list[tuple[str, str]]:
    """A Warning header for every field that is not honoured (RFC 7234 section 5.5, code 299)."""
    ignored = [name for name in UNSUPPORTED if body.get(name) or (name == _SEARCH and body.get(name) == {})]
    return notices([f"{name} is not supported and was ignored" for name in ignored] + (extra or []))


def notices(texts: list[str]) -> list[tuple[str, str]]:
    """A Warning header for each text; what a header cannot hold is written as an escape, what is too long is cut."""
    plain = [safe(text, MAX_NOTICE).encode("ascii", "backslashreplace").decode() for text in texts[:MAX_NOTICES]]
    return [("Warning", '299 lean_ovms "{}"'.format(text[:MAX_NOTICE].replace('"', "'"))) for text in plain]


def usage(counts: Usage) -> Json:
    """The usage object of chat and completions. Cached prompt tokens are left out where they are not known."""
    body: Json = {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
    }
    if counts.cached_tokens is not None:
        body["prompt_tokens_details"] = {"cached_tokens": counts.cached_tokens}
    if counts.reasoning_tokens:
        body["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning_tokens}
    return body


def new_id(prefix: str) -> str:
    """A random id, as unique as 96 bits are."""
    return f"{prefix}-{os.urandom(12).hex()}"


def now() -> int:
    """Unix time in whole seconds, for `created`."""
    return int(time.time())
