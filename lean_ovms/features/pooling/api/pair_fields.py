"""Request fields that rerank and score share, for the two texts of a pair and how they are truncated."""

from __future__ import annotations

from typing import Any

from ....api.fields import INT64_MAX, Field, Values
from ....api.generation.common_fields import TEMPLATE_KWARGS, template_kwargs
from ....api.schemas import NULL, STRING, TEXT_PART, any_of, array, object_of
from ....errors import BadRequest
from ....types import Json
from .. import fields as shared
from .inputs import check_count, content_text

_CONTENT = any_of(STRING, array(any_of(STRING, TEXT_PART), 1))
TEXT_OF_PAIR = any_of(STRING, object_of({"content": _CONTENT}))
"""A text that a pooling model reads."""
DOCUMENT = any_of(
    STRING, object_of({"content": _CONTENT}, text=False), object_of({"text": STRING}, title=any_of(STRING, NULL))
)
"""A document to rank."""


def _limit(name: str, of: str) -> Field:
    text = f"{name} must be a non-negative integer"
    return Field(name, "uint", f"maximum number of tokens kept of {of}; 0 for all", high=INT64_MAX, wrong=text)


CUTTING = (
    *shared.TRUNCATION,
    shared.PADDING,
    _limit("max_tokens_per_doc", "a document"),
    _limit("max_tokens_per_query", "a query"),
)
PAIR_FIELDS = (
    *shared.COMMON,
    *CUTTING,
    shared.USE_ACTIVATION,
    Field("instruction", "string", "task description for a generative reranker, such as Qwen3-Reranker"),
    TEMPLATE_KWARGS,
)
"""Fields of both endpoints."""


def limits(values: Values) -> Json:
    """Returns the fields of ScoreRequest that truncation, instruction and template fields set. Raises BadRequest."""
    kwargs = template_kwargs(values)
    instruction = values["instruction"] if values["instruction"] is not None else kwargs.get("instruction", "")
    if not isinstance(instruction, str):
        raise BadRequest("chat_template_kwargs.instruction is not a string", param="chat_template_kwargs")
    return {
        "max_query": values["max_tokens_per_query"] or 0,
        "max_document": values["max_tokens_per_doc"] or 0,
        "instruction": instruction,
        "template_kwargs": kwargs,
    }


def side(value: Any, name: str, most: int) -> list[str]:
    """Returns the texts of one side of pairs: a string, an object with content, or a list. Raises BadRequest."""
    if not isinstance(value, list):
        return [content_text(value, name)]
    check_count(len(value), most, name)
    return [content_text(item, f"{name}[{i}]") for i, item in enumerate(value)]
