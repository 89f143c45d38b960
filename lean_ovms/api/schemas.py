"""JSON schemas of what a row cannot say: values with an inside, and answers. For the OpenAPI document only.

Of requests they say no more than what is checked; of answers what a client may rely on (contract section 5; OpenAI's
reference). tests/api/test_openapi.py holds real answers to them.
"""

from __future__ import annotations

from ..types import Json

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
BOOLEAN: Json = {"type": "boolean"}
OBJECT: Json = {"type": "object"}
NULL: Json = {"type": "null"}


def thing(required: Json, **optional: Json) -> Json:
    """An object with these members."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def array(items: Json, least: int = 0) -> Json:
    """An array."""
    return {"type": "array", "items": items} | ({"minItems": least} if least else {})


def either(*schemas: Json) -> Json:
    """One of these."""
    return {"anyOf": list(schemas)}


def named(name: str) -> Json:
    """A schema of the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: str) -> Json:
    """This text."""
    return {"type": "string", "const": value}


# --- requests

PART = thing({"type": STRING}, text={"description": "of the type text"})
MESSAGE = thing(
    {"role": STRING},
    content=either(STRING, array(PART), NULL),
    tool_calls=either(array(thing({"function": OBJECT})), NULL),
    tool_call_id={"description": "of the role tool: the call that this answers"},
    reasoning_content={"description": "what an assistant thought, as it was answered"},
)
MESSAGES = array(MESSAGE, 1)
FUNCTION = thing({"name": {"type": "string", "minLength": 1}}, description={}, parameters=OBJECT, strict={})
TOOLS = array(
    either(
        thing({"function": FUNCTION}, type={"description": "function"}),
        thing({"type": const("function"), "name": {"type": "string", "minLength": 1}}, parameters=OBJECT),
    )
)
TOOL_CHOICE = either(
    {"type": "string", "enum": ["none", "auto", "required"]},
    thing({"function": thing({"name": STRING})}, type={"description": "function"}),
    thing({"type": const("function"), "name": STRING}),
    thing({"type": const("allowed_tools")}, allowed_tools=OBJECT, mode={"enum": ["auto", "required"]}, tools={}),
)
TOKENS = array({"type": "integer", "minimum": 0, "maximum": 4294967295})
PROMPT = either(
    {"type": "string", "minLength": 1},
    array({"type": "string", "minLength": 1}, 1),
    TOKENS | {"minItems": 1},
    array(TOKENS | {"minItems": 1}, 1),
)
INPUT = either({"type": "string", "minLength": 1}, array(OBJECT, 1))
TEXTS = either(STRING, array(STRING, 1))
CONVERSATION = either({"type": "string", "minLength": 1}, thing({"id": {"type": "string", "minLength": 1}}))
LENGTH = {"type": "integer", "minimum": 1, "maximum": 4294967295}

# --- answers

USAGE = thing({"prompt_tokens": INTEGER, "completion_tokens": INTEGER, "total_tokens": INTEGER})
FINISH = {"type": "string", "enum": ["stop", "length", "tool_calls"]}
CALL = thing({"id": STRING, "type": const("function"), "function": thing({"name": STRING, "arguments": STRING})})
_ENVELOPE = {"id": STRING, "created": INTEGER, "model": STRING, "system_fingerprint": STRING}
_CHAT_MESSAGE = thing(
    {"role": const("assistant"), "content": STRING, "tool_calls": array(CALL)}, reasoning_content=STRING
)
_DELTA = thing({}, role=STRING, content=either(STRING, NULL), reasoning_content=STRING, tool_calls=array(OBJECT))
_CHOICE = {"index": INTEGER, "logprobs": either(OBJECT, NULL)}


def _choices(**said: Json) -> Json:
    return array(thing({**_CHOICE, **said}, stop_reason=either(STRING, INTEGER), token_ids=TOKENS))


def _listed(item: Json) -> Json:
    ids = {"first_id": either(STRING, NULL), "last_id": either(STRING, NULL), "has_more": BOOLEAN}
    return thing({"object": const("list"), "data": array(item), **ids})


_STATUS = thing({"error_code": STRING, "error_message": STRING})
_VERSION = thing({"version": STRING, "state": STRING, "status": _STATUS})

ANSWERS: dict[str, Json] = {
    "Error": thing(
        {
            "error": thing(
                {"message": STRING, "type": STRING, "param": either(STRING, NULL), "code": either(STRING, NULL)}
            )
        }
    ),
    "ChatCompletion": thing(
        {
            **_ENVELOPE,
            "object": const("chat.completion"),
            "choices": _choices(message=_CHAT_MESSAGE, finish_reason=FINISH),
            "usage": USAGE,
        }
    ),
    "ChatCompletionChunk": thing(
        {
            **_ENVELOPE,
            "object": const("chat.completion.chunk"),
            "choices": _choices(delta=_DELTA, finish_reason=either(FINISH, NULL)),
        },
        usage=either(USAGE, NULL),
    ),
    "Completion": thing(
        {
            **_ENVELOPE,
            "object": const("text_completion"),
            "choices": _choices(text=STRING, finish_reason=either(FINISH, NULL)),
        },
        usage=either(USAGE, NULL),
    ),
    "Response": thing(
        {
            "id": STRING,
            "object": const("response"),
            "created_at": NUMBER,
            "model": STRING,
            "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
            "output": array(thing({"type": STRING})),
            "error": either(OBJECT, NULL),
            "incomplete_details": either(OBJECT, NULL),
        },
        usage=either(OBJECT, NULL),
    ),
    "ResponseEvent": thing({"type": STRING, "sequence_number": INTEGER}),
    "InputTokens": thing({"object": const("response.input_tokens"), "input_tokens": INTEGER}),
    "Items": _listed(thing({"id": STRING, "type": STRING})),
    "Item": thing({"id": STRING, "type": STRING}),
    "Conversation": thing({"id": STRING, "object": const("conversation"), "created_at": INTEGER, "metadata": OBJECT}),
    "Deleted": thing({"id": STRING, "object": STRING, "deleted": BOOLEAN}),
    "Model": thing({"id": STRING, "object": const("model"), "created": INTEGER, "owned_by": STRING}),
    "Models": thing({"object": const("list"), "data": array(named("Model"))}),
    "Tokens": thing(
        {"tokens": either(TOKENS, array(TOKENS))},
        count=INTEGER,
        max_model_len=INTEGER,
        token_strs=either(array(STRING), NULL),
    ),
    "Text": thing({"prompt": STRING}),
    "TokenizerInfo": thing({"chat_template": either(STRING, NULL), "model_max_length": INTEGER}),
    "Version": thing({"version": STRING}),
    "ModelStates": {
        "type": "object",
        "additionalProperties": thing({"model_version_status": array(_VERSION)}),
    },
}
"""By their names in the document."""
