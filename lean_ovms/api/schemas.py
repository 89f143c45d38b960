"""JSON Schemas of nested request values and of responses, for the OpenAPI document only.

Request schemas contain the checked rules; response schemas the guaranteed members (OpenAI's
reference). tests/api/test_openapi.py validates real responses against them.
"""

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


def ref(name: str) -> Json:
    """A schema of the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: str) -> Json:
    """This string."""
    return {"type": "string", "const": value}


# --- requests


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

# --- responses

USAGE = object_of({"prompt_tokens": INTEGER, "completion_tokens": INTEGER, "total_tokens": INTEGER})
FINISH = {"type": "string", "enum": ["stop", "length", "tool_calls", "function_call"]}
CALL = object_of(
    {"id": STRING, "type": const("function"), "function": object_of({"name": STRING, "arguments": STRING})}
)
_OLD_CALL = object_of({"name": STRING, "arguments": STRING})
_ENVELOPE = {"id": STRING, "created": INTEGER, "model": STRING, "system_fingerprint": STRING}
_CHAT_MESSAGE = object_of(
    {"role": STRING, "content": STRING, "tool_calls": array(CALL)},
    reasoning_content=STRING,
    reasoning=STRING,
    function_call=_OLD_CALL,
)
_DELTA = object_of(
    {},
    role=STRING,
    content=any_of(STRING, NULL),
    reasoning_content=STRING,
    reasoning=STRING,
    tool_calls=array(OBJECT),
    function_call=OBJECT,
)
_CHOICE = {"index": INTEGER, "logprobs": any_of(OBJECT, NULL)}


_PROMPT_LOGPROBS = array(any_of(OBJECT, NULL))


def _choices(**members: Json) -> Json:
    optional = {"stop_reason": any_of(STRING, INTEGER), "token_ids": TOKENS, "prompt_logprobs": _PROMPT_LOGPROBS}
    return array(object_of({**_CHOICE, **members}, **optional))


def _listed(item: Json) -> Json:
    ids = {"first_id": any_of(STRING, NULL), "last_id": any_of(STRING, NULL), "has_more": BOOLEAN}
    return object_of({"object": const("list"), "data": array(item), **ids})


_POOLING_USAGE = object_of({"prompt_tokens": INTEGER, "total_tokens": INTEGER}, completion_tokens=INTEGER)


def _results(**members: Json) -> Json:
    """The list of results of an endpoint of vLLM's pooling models."""
    item = object_of({"index": INTEGER, **members})
    head = {"id": STRING, "object": const("list"), "created": INTEGER, "model": STRING}
    return object_of({**head, "data": array(item), "usage": _POOLING_USAGE})


_VECTOR = any_of(array(NUMBER), STRING)
_META = object_of({"api_version": object_of({"version": STRING}), "billed_units": OBJECT})
_BY_TYPE = object_of(
    {},
    float=array(array(NUMBER)),
    base64=array(STRING),
    **{name: array(array(INTEGER)) for name in ("int8", "uint8", "binary", "ubinary")},
)


def _cohere(vectors: Json, response_type: str) -> Json:
    """A response of Cohere's embed."""
    head = {"id": STRING, "embeddings": vectors, "texts": array(STRING), "meta": _META}
    return object_of({**head, "response_type": const(response_type)})


_STATUS = object_of({"error_code": STRING, "error_message": STRING})
_VERSION = object_of({"version": STRING, "state": STRING, "status": _STATUS})

_LLAMA_COMPLETION = {"type": "object", "properties": {"content": STRING, "stop": BOOLEAN, "timings": OBJECT}}
ANSWERS: dict[str, Json] = {
    "Error": object_of(
        {
            "error": object_of(
                {"message": STRING, "type": STRING, "param": any_of(STRING, NULL), "code": any_of(STRING, NULL)}
            )
        }
    ),
    "ChatCompletion": object_of(
        {
            **_ENVELOPE,
            "object": const("chat.completion"),
            "choices": _choices(message=_CHAT_MESSAGE, finish_reason=FINISH),
            "usage": USAGE,
        },
        prompt_logprobs=_PROMPT_LOGPROBS,
    ),
    "ChatCompletionChunk": object_of(
        {
            **_ENVELOPE,
            "object": const("chat.completion.chunk"),
            "choices": _choices(delta=_DELTA, finish_reason=any_of(FINISH, NULL)),
        },
        usage=any_of(USAGE, NULL),
    ),
    "Completion": object_of(
        {
            **_ENVELOPE,
            "object": const("text_completion"),
            "choices": _choices(text=STRING, finish_reason=any_of(FINISH, NULL)),
        },
        usage=any_of(USAGE, NULL),
    ),
    "Response": object_of(
        {
            "id": STRING,
            "object": const("response"),
            "created_at": NUMBER,
            "model": STRING,
            "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
            "output": array(object_of({"type": STRING})),
            "error": any_of(OBJECT, NULL),
            "incomplete_details": any_of(OBJECT, NULL),
        },
        usage=any_of(OBJECT, NULL),
    ),
    "ResponseEvent": object_of({"type": STRING, "sequence_number": INTEGER}),
    "InputTokens": object_of({"object": const("response.input_tokens"), "input_tokens": INTEGER}),
    "Compaction": object_of(
        {
            "id": STRING,
            "object": const("response.compaction"),
            "created_at": NUMBER,
            "output": array(object_of({"id": STRING, "type": STRING})),
            "usage": OBJECT,
        }
    ),
    "CohereMessage": object_of({"id": STRING, "finish_reason": STRING, "message": OBJECT, "usage": OBJECT}),
    "CohereEvent": object_of({"type": STRING}),
    "Decision": object_of(
        {
            "model": STRING,
            "answers": array(
                object_of({"type": {"enum": ["predicate", "choice", "score"]}, "name": any_of(STRING, NULL)})
            ),
            "usage": OBJECT,
        }
    ),
    "Items": _listed(object_of({"id": STRING, "type": STRING})),
    "Item": object_of({"id": STRING, "type": STRING}),
    "Conversation": object_of(
        {"id": STRING, "object": const("conversation"), "created_at": INTEGER, "metadata": OBJECT}
    ),
    "Deleted": object_of({"id": STRING, "object": STRING, "deleted": BOOLEAN}),
    "Embeddings": _results(object=const("embedding"), embedding=_VECTOR),
    "EmbeddingsByType": _cohere(_BY_TYPE, "embeddings_by_type"),
    "EmbeddingsFloats": any_of(_cohere(array(array(NUMBER)), "embeddings_floats"), ref("EmbeddingsByType")),
    "Rerank": any_of(
        object_of(
            {
                "id": STRING,
                "model": STRING,
                "results": array(
                    object_of({"index": INTEGER, "relevance_score": NUMBER}, document=object_of({"text": STRING}))
                ),
                "usage": _POOLING_USAGE,
                "meta": _META,
            }
        ),
        array(object_of({"index": INTEGER, "score": NUMBER}, text=STRING)),
    ),
    "Vectors": array(array(NUMBER)),
    "Scores": _results(object=const("score"), score=NUMBER),
    "Classes": _results(label=any_of(STRING, NULL), probs=array(NUMBER), num_classes=INTEGER),
    "Pooled": _results(object=const("pooling"), data=any_of(_VECTOR, array(array(NUMBER)))),
    "Transcription": object_of(
        {"text": STRING, "usage": object_of({"type": const("duration"), "seconds": NUMBER}), "language": STRING},
        task={"enum": ["transcribe", "translate"]},
        duration=NUMBER,
        language_name=STRING,
        segments=array(object_of({"id": INTEGER, "start": NUMBER, "end": NUMBER, "text": STRING})),
        words=array(object_of({"word": STRING, "start": NUMBER, "end": NUMBER})),
        logprobs=array(object_of({"token": STRING, "logprob": NUMBER, "bytes": array(INTEGER)})),
    ),
    "TranscriptionEvent": object_of(
        {
            "id": STRING,
            "object": {"enum": ["transcription.chunk", "translation.chunk"]},
            "created": INTEGER,
            "model": STRING,
            "choices": array(object_of({"delta": object_of({"content": STRING}), "index": INTEGER})),
        },
        type={"enum": ["transcript.text.delta", "transcript.text.done"]},
        delta=STRING,
        text=STRING,
        logprobs=array(OBJECT),
        usage=OBJECT,
    ),
    "SpeechEvent": object_of({"type": {"enum": ["speech.audio.delta", "speech.audio.done"]}}),
    "Voices": object_of(
        {"object": const("list"), "voices": array(STRING), "data": array(object_of({"id": STRING, "model": STRING}))}
    ),
    "AnthropicError": object_of(
        {
            "type": const("error"),
            "error": object_of({"type": STRING, "message": STRING}),
            "request_id": any_of(STRING, NULL),
        }
    ),
    "AnthropicMessage": object_of(
        {
            "id": STRING,
            "type": const("message"),
            "role": const("assistant"),
            "model": STRING,
            "content": array(object_of({"type": {"enum": ["text", "thinking", "tool_use"]}})),
            "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
            "stop_sequence": any_of(STRING, NULL),
            "usage": object_of({"input_tokens": INTEGER, "output_tokens": INTEGER}),
        }
    ),
    "AnthropicEvent": object_of({"type": STRING}),
    "AnthropicTokens": object_of({"input_tokens": INTEGER}),
    "Model": object_of(
        {
            **dict.fromkeys(("id", "owned_by", "root", "task"), STRING),
            **dict.fromkeys(("input_modalities", "output_modalities"), array(STRING)),
            "object": const("model"),
            "created": INTEGER,
        }
    ),
    "Models": object_of({"object": const("list"), "data": array(ref("Model"))}),
    "Tokens": object_of(
        {"tokens": any_of(TOKENS, array(TOKENS), array(object_of({"id": INTEGER}, piece=any_of(STRING, TOKENS))))},
        count=INTEGER,
        max_model_len=INTEGER,
        token_strs=any_of(array(STRING), NULL),
    ),
    "Text": object_of({"prompt": STRING}, content=STRING),
    "TokenizerInfo": object_of({"chat_template": any_of(STRING, NULL), "model_max_length": INTEGER}),
    "ServerInfo": object_of({"version": STRING, "options": OBJECT, "models": OBJECT, "load": OBJECT}),
    "Health": object_of({"status": const("ok")}),
    "Version": object_of({"version": STRING}),
    "Load": object_of({"server_load": INTEGER}),
    "Any": {},
    "Sleeping": object_of({"is_sleeping": BOOLEAN}),
    "Success": object_of({"success": BOOLEAN}),
    "LlamaCompletion": any_of(_LLAMA_COMPLETION, array(_LLAMA_COMPLETION)),
    "LlamaProps": object_of({"build_info": STRING, "default_generation_settings": OBJECT}, chat_template=STRING),
    "LlamaSlots": array(object_of({"id": INTEGER, "n_ctx": INTEGER, "is_processing": BOOLEAN})),
    "LlamaAdapters": array(object_of({"id": INTEGER, "path": STRING, "scale": NUMBER})),
    "LlamaEmbeddings": array(object_of({"index": INTEGER, "embedding": array(array(NUMBER))})),
    "ModelStates": {
        "type": "object",
        "additionalProperties": object_of({"model_version_status": array(_VERSION)}),
    },
}
"""Response schemas by their names in the document."""
