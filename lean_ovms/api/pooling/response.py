"""Responses of pooling models: OpenAI's list of results, and the counts of tokens."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from ...types import Json, Response
from ..response import json_bytes

ENTRY_BYTES = 64
"""Bytes of a score in a response, without its text."""


def usage(prompt_tokens: int) -> Json:
    """Returns the usage object; nothing is generated."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def json_list(envelope: Json, items: Iterable[bytes], counts: Json, headers: list[tuple[str, str]]) -> Response:
    """Returns {"id", "object": "list", "created", "model", "data": items, "usage": counts}; items are JSON already."""
    head = orjson.dumps({"id": envelope["id"], "object": "list", **envelope})
    parts = [head[:-1], b',"data":']
    for item in items:  # one copy of long vectors, not two
        parts += (b",", item)
    parts[2:3] = [b"["]
    body = b"".join((*parts, b'],"usage":', orjson.dumps(counts), b"}"))
    return json_bytes(body, headers)


def bare_list(items: Iterable[bytes], headers: list[tuple[str, str]]) -> Response:
    """Returns a list and nothing around it; items are JSON already."""
    return json_bytes(b"[%b]" % b",".join(items), headers)


def shortest(value: float) -> float:
    """Returns a score with seven digits, which is as exact as float32."""
    return float(f"{value:.7g}")
