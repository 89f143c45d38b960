"""JSON Schemas of request values, used only to document the API. They state the same rules that the code checks."""

from __future__ import annotations

from ..types import Json
from .fields import Field

_TYPES = {"bool": "boolean", "int": "integer", "uint": "integer"} | {
    kind: kind for kind in ("number", "string", "object", "array")
}
_BOUNDS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}

STRING: Json = {"type": "string"}
SOME_TEXT: Json = {"type": "string", "minLength": 1}
NUMBER: Json = {"type": "number"}
BOOLEAN: Json = {"type": "boolean"}
OBJECT: Json = {"type": "object"}
NULL: Json = {"type": "null"}
JSON_TEXT: Json = {"type": "string", "contentMediaType": "application/json"}


def object_of(required: Json, **optional: Json | bool) -> Json:
    """Returns the schema of an object with these members. An optional member whose schema is False is forbidden."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def array(items: Json, min_items: int = 0) -> Json:
    """Returns the schema of an array with at least `min_items` items."""
    return {"type": "array", "items": items} | ({"minItems": min_items} if min_items else {})


def any_of(*schemas: Json) -> Json:
    """Returns a schema that is satisfied by any of the given ones."""
    return {"anyOf": list(schemas)}


def const(value: str) -> Json:
    """Returns the schema of a string with exactly this value."""
    return {"type": "string", "const": value}


def _given(name: str, *absent: object) -> Json:
    """Returns a rule for a body: the member is present, and has none of these values."""
    return {"required": [name], "properties": {name: {"not": {"enum": list(absent)}}}}


def some_of(*names: str) -> Json:
    """Returns a rule for a body: at least one of these members is present, and neither null nor empty."""
    return any_of(*(_given(name, None, "") for name in names))


def all_of(*names: str) -> Json:
    """Returns a rule for a body: all these members are present, and not null."""
    return {"allOf": [_given(name, None) for name in names]}


def one_of(*names: str) -> Json:
    """Returns a rule for a body: exactly one of these members is present, and neither null nor an empty list."""
    return {"oneOf": [_given(name, None, []) for name in names]}


_DETAIL: Json = {"enum": ["auto", "low", "high", None]}
TEXT_PART = object_of({"type": const("text"), "text": STRING})
IMAGE_PART = object_of(
    {"type": const("image_url"), "image_url": any_of(STRING, object_of({"url": STRING}, detail=_DETAIL))}
)
_TEXT_PARTS = (TEXT_PART, object_of({"type": const("refusal"), "refusal": STRING}))
AUDIO_PART = object_of({"type": const("input_audio"), "input_audio": object_of({"data": STRING}, format=STRING)})
_PART = any_of(
    *_TEXT_PARTS,
    AUDIO_PART,
    object_of({"type": const("audio_url"), "audio_url": any_of(STRING, object_of({"url": STRING}))}),
    IMAGE_PART,
    object_of({"type": const("video_url"), "video_url": any_of(STRING, object_of({"url": STRING}))}),
    *(
        object_of({"type": const("file"), "file": object_of({name: STRING}, filename=STRING)})
        for name in ("file_data", "file_id", "file_url")
    ),
)


ROLE: Json = {"enum": ["system", "developer", "user", "assistant", "tool"]}
"""Roles of messages; a chat template may know more."""


def _messages(part: Json) -> Json:
    message = object_of(
        {"role": {"enum": [*ROLE["enum"], "function"]}},
        content=any_of(STRING, array(any_of(STRING, part)), NULL),
        tool_calls=any_of(array(object_of({"function": object_of({"name": STRING})})), NULL),
        tool_call_id={"description": "id of the tool call that a message of the role tool answers"},
        reasoning_content={"description": "reasoning of an assistant message"},
    )
    return array(message, 1)


MESSAGES = _messages(_PART)
TEXT_MESSAGES = _messages(any_of(*_TEXT_PARTS))
"""The messages of a chat whose model reads text only."""
FUNCTION = object_of({"name": SOME_TEXT}, description={}, parameters=any_of(OBJECT, NULL), strict={})
TOOLS = array(
    any_of(
        object_of({"function": FUNCTION}, type={"description": "function"}),
        object_of({"type": const("function"), "name": SOME_TEXT}, parameters=any_of(OBJECT, NULL)),
    )
)
TOOL_CHOICE = any_of(
    {"type": "string", "enum": ["none", "auto", "required"]},
    object_of({"function": object_of({"name": STRING})}, type={"description": "function"}),
    object_of({"type": const("function"), "name": STRING}),
    object_of({"type": const("allowed_tools")}, allowed_tools=OBJECT, mode={"enum": ["auto", "required"]}, tools={}),
)
TOKENS = array({"type": "integer", "minimum": 0, "maximum": 4294967295})
PROMPT = any_of(SOME_TEXT, array(SOME_TEXT, 1), TOKENS | {"minItems": 1}, array(TOKENS | {"minItems": 1}, 1))
TEXTS = any_of(STRING, array(STRING, 1))
VOICE = any_of(STRING, object_of({"id": STRING}))
NOT_ZERO: Json = {"not": {"const": 0}}


def field_schema(field: Field, *, nullable: bool = True) -> Json:
    """Returns the JSON Schema (2020-12) of a field; if nullable, null is allowed, as if the field were absent."""
    found: Json = dict(field.schema or {})
    if field.kind in _TYPES:
        found["type"] = _TYPES[field.kind]
    if field.choices:
        found["enum"] = list(field.choices)
    for ours, theirs in _BOUNDS.items():
        if (bound := getattr(field, ours)) is not None:
            found[theirs] = bound
    if field.kind == "uint":
        found.setdefault("minimum", 0)
    if field.fields and field.kind == "object":
        found["properties"] = {member.name: field_schema(member) for member in field.fields}
        found.setdefault("additionalProperties", False)
    if nullable and not field.required:
        found = _or_null(found)
    default = field.default if field.builtin is None else field.builtin
    return found | {"description": field.help} | ({} if default is None else {"default": default})


def _or_null(found: Json) -> Json:
    nullable = {"anyOf": [*found["anyOf"], {"type": "null"}]} if "anyOf" in found else {}
    if "type" in found:
        nullable |= {"type": [found["type"], "null"]} | ({"enum": [*found["enum"], None]} if "enum" in found else {})
    return found | nullable
