"""Request fields that the endpoints of pooling models share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...api import schemas
from ...api.fields import INT64_MAX, Field, FieldSet, RouteDoc, Values
from ...api.generation.common_fields import (
    ADD_GENERATION_PROMPT,
    CHAT_TEMPLATE,
    CONTINUE_FINAL_MESSAGE,
    KEEP_ALIVE,
    MESSAGES,
    REQUEST_ID,
    TEMPLATE_KWARGS,
)
from ...api.generation.common_fields import MODEL as TEXT_MODEL
from ...api.generation.sampling import SAMPLING
from ...errors import BadRequest
from ...types import Json

MAX_DIMENSIONS = 1 << 20
PROMPT_STRING, MULTIMODAL_DATA = "prompt_string", "multimodal_data"
"""The members of an object that llama.cpp takes as an input: its text, and the images in it."""

_ID = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXTS_OR_TOKENS = schemas.any_of(
    schemas.STRING, schemas.array(schemas.STRING, 1), schemas.array(_ID, 1), schemas.array(schemas.array(_ID, 1), 1)
)
TEXT_IN_OBJECT = schemas.any_of(
    schemas.object_of({"content": schemas.any_of(schemas.STRING, schemas.array(schemas.TEXT_PART, 1))}, role=False),
    schemas.object_of({PROMPT_STRING: schemas.STRING}, **{MULTIMODAL_DATA: False}),
    schemas.object_of({"text": schemas.STRING}) | {"additionalProperties": False},
)
"""A text in an object, as in llama.cpp, at OpenRouter and at Jina."""
_IMAGE = schemas.object_of({"image": schemas.STRING}) | {"additionalProperties": False}
"""An image among the inputs, as at Jina."""
_TEXTS = schemas.any_of(schemas.STRING, TEXT_IN_OBJECT)
_INPUT = schemas.any_of(
    *TEXTS_OR_TOKENS["anyOf"],
    TEXT_IN_OBJECT,
    schemas.array(schemas.any_of(_TEXTS, _IMAGE), 1),
    schemas.TEXT_MESSAGES,
    schemas.array(schemas.TEXT_MESSAGES, 1),
)


def _direction(value: str) -> str:
    if value.lower() not in ("left", "right"):
        raise BadRequest("truncation_direction should be either Left or Right", param="truncation_direction")
    return value.lower()


MODEL = replace(TEXT_MODEL, help="name of a served model; optional if only one model serves this endpoint")
PRIORITY = Field(
    "priority",
    "int",
    "among waiting requests, those with the lowest number are computed first",
    default=0,
    low=-INT64_MAX,
    high=INT64_MAX,
)
COMMON = (
    MODEL,
    REQUEST_ID,
    KEEP_ALIVE,
    PRIORITY,
    Field("user", "string", "accepted without effect"),
    Field("cache_salt", "string", "(vLLM) accepted without effect: results are not cached"),
)
"""Fields of every endpoint."""

TRUNCATION = (
    Field("truncate_prompt_tokens", "int",
        "number of tokens of an input to keep, including special tokens; -1 for as many as fit; if absent, a "
        "longer input is an error", low=-1, high=INT64_MAX, schema=schemas.NOT_ZERO),
    replace(SAMPLING.named("truncation_side"), help="side that is cut off: left or right", default="right"),
)  # fmt: skip
TEI_TRUNCATION = (
    Field("truncate", "bool", "(text-embeddings-inference) cut inputs that are too long"),
    Field("truncation_direction", "string", "(text-embeddings-inference) side that is cut off: Left or Right",
        read=_direction, schema={"enum": ["Left", "Right", "left", "right"]}),
)  # fmt: skip
"""The fields for truncation of text-embeddings-inference, https://huggingface.github.io/text-embeddings-inference/."""
PADDING = Field(
    "padding",
    "string",
    "(vLLM) accepted without effect: padding never changes a result",
    choices=("max_length", "do_not_pad"),
    outside="padding should be either max_length or do_not_pad",
)
USE_ACTIVATION = Field(
    "use_activation",
    "bool",
    "normalize vectors, and apply softmax or sigmoid to scores and classes; by default as the model's files say",
)
NORMALIZE = Field("normalize", "bool", "another name of use_activation")
TOKENIZING = (
    *TRUNCATION,
    Field("add_special_tokens", "bool", "let the tokenizer add its special tokens (default true; false for messages)"),
    PADDING,
)
CONVERSATION = (
    MESSAGES,
    replace(ADD_GENERATION_PROMPT, default=False,
        help="end the rendered messages with the beginning of the assistant's message"),
    CONTINUE_FINAL_MESSAGE,
    TEMPLATE_KWARGS,
    CHAT_TEMPLATE,
)  # fmt: skip
"""Messages instead of an input, for models with a chat template."""

INPUT = Field(
    "input",
    "any",
    "a string, an array of strings or token ids, an array of arrays of token ids, or messages; a string may be an "
    "object with prompt_string, or with content, which is a string or parts of type text",
    schema=_INPUT,
)
DIMENSIONS = Field(
    "dimensions",
    "int",
    "number of dimensions to keep, for models trained for that (Matryoshka)",
    low=1,
    high=MAX_DIMENSIONS,
)
PROMPTS = (
    Field("prompt_name", "string", "name of the model's prompt that is put before each input"),
    Field(
        "input_type",
        "string",
        "(Cohere) other name of prompt_name, with Cohere's values search_query and search_document",
    ),
)
INPUTS = (*COMMON, INPUT, *TOKENIZING, USE_ACTIVATION, *CONVERSATION)
"""Fields of the endpoints that take inputs one by one."""
ONE_INPUT = schemas.one_of("input", "messages")
"""A rule for their bodies: input or messages."""


def vectors_doc(summary: str, body: FieldSet) -> RouteDoc:
    """Makes the description of an endpoint whose response has vectors, as JSON or bytes."""
    return RouteDoc(summary, body=body, media=("application/octet-stream",), rules=ONE_INPUT)


def activation(values: Values) -> bool | None:
    """Returns use_activation or one of its aliases, or None if none is set. Raises BadRequest if they differ."""
    found: bool | None = agreed(values, "use_activation", "normalize", "normalized")
    return found


def agreed(values: Values, *names: str) -> Any:
    """Returns the value of a field that has several names, or None if none is set. Raises BadRequest if they differ."""
    given = [name for name in names if values.get(name) is not None]
    for name in given[1:]:
        if values[name] != values[given[0]]:
            raise BadRequest(f"{given[0]} and {name} contradict each other", param=name)
    return values[given[0]] if given else None


def tei_truncation(values: Values) -> Json:
    """Translates text-embeddings-inference's truncate and truncation_direction to vLLM's fields."""
    return truncation(values, bool(values["truncate"]), values["truncation_direction"])


def truncation(values: Values, cut: bool, side: str | None) -> Json:
    """Returns vLLM's fields for the truncation that a request asks for by fields of another server.

    Args:
        values: The request's fields. A number of tokens in truncate_prompt_tokens stays as it is.
        cut: Whether inputs that are too long are to be cut.
        side: The side that is cut off, "left" or "right"; None if the request does not say.
    """
    own = values.get("truncate_prompt_tokens") is not None
    return {
        **({"truncate_prompt_tokens": -1} if cut and not own else {}),
        **({"truncation_side": side} if side else {}),
    }
