"""JSON Schemas of nested request values, for the OpenAPI document only. They have the rules that are checked."""

from __future__ import annotations

from ..types import Json

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
BOOLEAN: Json = {"type": "boolean"}
OBJECT: Json = {"type": "object"}
NULL: Json = {"type": "null"}


def object_of(required: Json, **optional: Json) -> Json:
    """An object with these members."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def array(items: Json, min_items: int = 0) -> Json:
    """An array of at least `min_items` items."""
    return {"type": "array", "items": items} | ({"minItems": min_items} if min_items else {})


def any_of(*schemas: Json) -> Json:
    """Any of these schemas."""
    return {"anyOf": list(schemas)}


def const(value: str) -> Json:
    """This string."""
    return {"type": "string", "const": value}


def _given(name: str, *absent: object) -> Json:
    """A rule for a body: the member is there, and none of these values."""
    return {"required": [name], "properties": {name: {"not": {"enum": list(absent)}}}}


def some_of(*names: str) -> Json:
    """A rule for a body: at least one of these members is there, and neither null nor empty."""
    return any_of(*(_given(name, None, "") for name in names))


def all_of(*names: str) -> Json:
    """A rule for a body: all these members are there, and not null."""
    return {"allOf": [_given(name, None) for name in names]}


def one_of(*names: str) -> Json:
    """A rule for a body: exactly one of these members is there, and neither null nor an empty list."""
    return {"oneOf": [_given(name, None, []) for name in names]}


_DETAIL: Json = {"enum": ["auto", "low", "high", None]}
_TEXT_PART = object_of({"type": const("text"), "text": STRING})
PART = any_of(
    _TEXT_PART,
    object_of({"type": const("refusal"), "refusal": STRING}),
    object_of({"type": const("image_url"), "image_url": any_of(STRING, object_of({"url": STRING}, detail=_DETAIL))}),
)
MESSAGE = object_of(
    {"role": STRING},
    content=any_of(STRING, array(PART), NULL),
    tool_calls=any_of(array(object_of({"function": OBJECT})), NULL),
    tool_call_id={"description": "with role tool: id of the answered tool call"},
    reasoning_content={"description": "reasoning of an assistant message"},
)
MESSAGES = array(MESSAGE, 1)
FUNCTION = object_of({"name": {"type": "string", "minLength": 1}}, description={}, parameters=OBJECT, strict={})
TOOLS = array(
    any_of(
        object_of({"function": FUNCTION}, type={"description": "function"}),
        object_of({"type": const("function"), "name": {"type": "string", "minLength": 1}}, parameters=OBJECT),
    )
)
TOOL_CHOICE = any_of(
    {"type": "string", "enum": ["none", "auto", "required"]},
    object_of({"function": object_of({"name": STRING})}, type={"description": "function"}),
    object_of({"type": const("function"), "name": STRING}),
    object_of({"type": const("allowed_tools")}, allowed_tools=OBJECT, mode={"enum": ["auto", "required"]}, tools={}),
)
ANTHROPIC_TOOL = object_of(
    {"name": {"type": "string", "minLength": 1}, "input_schema": OBJECT}, type={"enum": ["custom", None]}
)
ANTHROPIC_MESSAGES = array(
    object_of({"role": {"enum": ["user", "assistant", "system"]}, "content": any_of(STRING, array(_TEXT_PART))}), 1
)
TOKENS = array({"type": "integer", "minimum": 0, "maximum": 4294967295})
PROMPT = any_of(
    {"type": "string", "minLength": 1},
    array({"type": "string", "minLength": 1}, 1),
    TOKENS | {"minItems": 1},
    array(TOKENS | {"minItems": 1}, 1),
)
_TEXTS_OF = array(object_of({"text": STRING}))
_INPUT_PART = any_of(
    object_of({"type": {"enum": ["input_text", "output_text", "text"]}, "text": STRING}),
    object_of({"type": const("refusal"), "refusal": STRING}),
    object_of({"type": const("input_image"), "image_url": any_of(STRING, object_of({"url": STRING}))}, file_id=NULL),
)
_SAID = (
    object_of(
        {"role": {"type": "string", "minLength": 1}, "content": any_of(STRING, array(_INPUT_PART, 1))},
        type={"enum": ["message", None]},
    ),
    object_of({"type": const("function_call"), "call_id": STRING, "name": STRING, "arguments": STRING}),
    object_of({"type": const("function_call"), "id": STRING, "name": STRING, "arguments": STRING}, call_id=STRING),
    object_of({"type": const("function_call_output"), "output": any_of(STRING, array(_INPUT_PART))}, call_id=STRING),
)
INPUT_ITEM = any_of(
    *_SAID,
    object_of({"type": const("reasoning")}, summary=_TEXTS_OF, content=_TEXTS_OF),
    object_of({"type": const("item_reference"), "id": {"type": "string", "minLength": 1}}),
)
INPUT = any_of({"type": "string", "minLength": 1}, array(INPUT_ITEM, 1))
JUDGED = any_of({"type": "string", "minLength": 1}, array(any_of(*_SAID), 1))
"""The input of decisions."""
TEXTS = any_of(STRING, array(STRING, 1))
CONVERSATION = any_of({"type": "string", "minLength": 1}, object_of({"id": {"type": "string", "minLength": 1}}))
LENGTH = {"type": "integer", "minimum": 1, "maximum": 4294967295}
