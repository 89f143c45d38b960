"""JSON Schemas of texts and documents for pooling models, for the OpenAPI document only."""

from __future__ import annotations

from ...api.schemas import NULL, STRING, TEXT_PART, any_of, array, object_of

_CONTENT = any_of(STRING, array(any_of(STRING, TEXT_PART), 1))
TEXT_OF_PAIR = any_of(STRING, object_of({"content": _CONTENT}))
"""A text that a pooling model reads."""
DOCUMENT = any_of(
    STRING, object_of({"content": _CONTENT}, text=False), object_of({"text": STRING}, title=any_of(STRING, NULL))
)
"""A document to rank."""
