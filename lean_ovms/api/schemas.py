"""JSON Schemas of nested request values, for the OpenAPI document only. They have the rules that are checked."""

from __future__ import annotations

from ..types import Json

STRING: Json = {"type": "string"}
SOME_TEXT: Json = {"type": "string", "minLength": 1}
NUMBER: Json = {"type": "number"}
BOOLEAN: Json = {"type": "boolean"}
OBJECT: Json = {"type": "object"}
NULL: Json = {"type": "null"}
JSON_TEXT: Json = {"type": "string", "contentMediaType": "application/json"}


def object_of(required: Json, **optional: Json | bool) -> Json:
    """An object with these members; one whose schema is False may not be there."""
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
TEXT_PART = object_of({"type": const("text"), "text": STRING})
_CONTENT = any_of(STRING, array(any_of(STRING, TEXT_PART), 1))
TEXT_OF_PAIR = any_of(STRING, object_of({"content": _CONTENT}))
"""A text that a pooling model reads."""
_IMAGE_PART = object_of(
    {"type": const("image_url"), "image_url": any_of(STRING, object_of({"url": STRING}, detail=_DETAIL))}
)
TEXT_AND_IMAGES = any_of(TEXT_OF_PAIR, object_of({"content": array(any_of(TEXT_PART, _IMAGE_PART), 1)}))
"""An input of Cohere's embeddings."""
DOCUMENT = any_of(
    STRING, object_of({"content": _CONTENT}, text=False), object_of({"text": STRING}, title=any_of(STRING, NULL))
)
"""A document to rank."""
_TEXT_PARTS = (TEXT_PART, object_of({"type": const("refusal"), "refusal": STRING}))
_AUDIO_PART = object_of({"type": const("input_audio"), "input_audio": object_of({"data": STRING}, format=STRING)})
_PART = any_of(
    *_TEXT_PARTS,
    _AUDIO_PART,
    object_of({"type": const("audio_url"), "audio_url": any_of(STRING, object_of({"url": STRING}))}),
    _IMAGE_PART,
    object_of({"type": const("video_url"), "video_url": any_of(STRING, object_of({"url": STRING}))}),
)


ROLE: Json = {"enum": ["system", "developer", "user", "assistant", "tool"]}
"""Roles of messages; a chat template may know more."""


def _messages(part: Json) -> Json:
    message = object_of(
        {"role": {"enum": [*ROLE["enum"], "function"]}},
        content=any_of(STRING, array(part), NULL),
        tool_calls=any_of(array(object_of({"function": object_of({"name": STRING})})), NULL),
        tool_call_id={"description": "with role tool: id of the answered tool call"},
        reasoning_content={"description": "reasoning of an assistant message"},
    )
    return array(message, 1)


MESSAGES = _messages(_PART)
TEXT_MESSAGES = _messages(any_of(*_TEXT_PARTS))
"""Messages without images."""
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
_TEXTS_OF = array(object_of({"text": STRING}))
_INPUT_PART = any_of(
    object_of({"type": {"enum": ["input_text", "output_text", "text"]}, "text": STRING}),
    object_of({"type": const("refusal"), "refusal": STRING}),
    object_of({"type": const("input_image"), "image_url": any_of(STRING, object_of({"url": STRING}))}, file_id=NULL),
    _AUDIO_PART,
)
_CALL = {"type": const("function_call"), "name": STRING}
_ARGUMENTS = any_of(STRING, NULL)
_OUTPUT: Json = {"output": any_of(STRING, array(_INPUT_PART))}
_CALL_ID = any_of(STRING, NULL)
_SAID = (
    object_of({"role": ROLE, "content": any_of(STRING, array(_INPUT_PART), NULL)}, type={"enum": ["message", None]}),
    object_of({**_CALL, "call_id": STRING}, arguments=_ARGUMENTS),
    object_of({**_CALL, "id": STRING}, call_id=_CALL_ID, arguments=_ARGUMENTS),
    object_of({"type": const("function_call_output"), **_OUTPUT}, call_id=_CALL_ID),
)
_MCP_CALL = {"server_label": STRING, "name": STRING, "arguments": STRING}
_LISTED = object_of({"name": STRING, "input_schema": OBJECT})
INPUT_ITEM = any_of(
    *_SAID,
    object_of({"type": const("custom_tool_call"), "call_id": STRING, "name": STRING, "input": STRING}),
    object_of({"type": const("custom_tool_call_output"), **_OUTPUT}, call_id=_CALL_ID),
    object_of({"type": const("reasoning")}, summary=any_of(_TEXTS_OF, NULL), content=any_of(_TEXTS_OF, NULL)),
    object_of({"type": const("mcp_list_tools"), "server_label": STRING, "tools": array(_LISTED)}),
    object_of({"type": {"enum": ["mcp_call", "mcp_approval_request"]}, **_MCP_CALL}),
    object_of({"type": const("mcp_approval_response"), "approval_request_id": STRING, "approve": BOOLEAN}),
    object_of({"type": const("item_reference"), "id": SOME_TEXT}),
    object_of({"id": SOME_TEXT}, type=NULL, role=NULL),
)
INPUT = any_of(SOME_TEXT, array(INPUT_ITEM, 1))
JUDGED = any_of(SOME_TEXT, array(any_of(*_SAID), 1))
"""The input of decisions."""
TEXTS = any_of(STRING, array(STRING, 1))
CONVERSATION = any_of(SOME_TEXT, object_of({"id": SOME_TEXT}))
VOICE = any_of(STRING, object_of({"id": STRING}))
NOT_ZERO: Json = {"not": {"const": 0}}
LENGTH = {"type": "integer", "minimum": 1, "maximum": 4294967295}
