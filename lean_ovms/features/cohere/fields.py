"""The request fields of POST /v2/chat under Cohere's names, and their translation to those of chat.

https://docs.cohere.com/reference/chat. The sampling fields of OVMS and vLLM are accepted as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from ...api import schemas
from ...api.fields import Field, Values, whole
from ...api.generation.common_fields import KEEP_ALIVE, LOGPROBS, MESSAGES, MODEL, STREAM, TEMPLATE_KWARGS
from ...api.generation.sampling import INT32_MAX, MAX_STOPS, SAMPLING, GenerationFields
from ...errors import BadRequest, errors_of
from ...types import Json

CHOICES = {"REQUIRED": "required", "NONE": "none"}
BUDGET = "thinking_token_budget"


def _thinking(value: Json) -> Json:
    if value.get("type") not in ("enabled", "disabled"):
        raise BadRequest("thinking.type must be one of: enabled, disabled", param="thinking.type")
    budget = whole(value.get("token_budget"))
    if budget is not None and (type(budget) is not int or budget < 1):
        raise BadRequest("thinking.token_budget must be a positive integer", param="thinking.token_budget")
    return {**value, "token_budget": None if budget is None else min(budget, INT32_MAX)}


def _documents(value: list[Any]) -> list[Json]:
    """Converts documents to the form that chat templates read. Raises BadRequest."""
    return [_document(one, f"documents[{place}]") for place, one in enumerate(value)]


def _document(value: Any, param: str) -> Json:
    if isinstance(value, str):
        return {"text": value}
    data = value.get("data") if isinstance(value, dict) else None
    if isinstance(data, str):
        data = {"text": data}
    if not isinstance(data, dict):
        raise BadRequest(f"{param} must be a string or an object with data", param=param)
    return data | ({"id": value["id"]} if isinstance(value.get("id"), str) else {})


def _renamed(name: str, known: str, text: str) -> Field:
    """Returns a field of chat under another name, which its errors have as well."""
    field = SAMPLING.named(known)

    def read_renamed(value: Any) -> Any:
        with errors_of(name):
            return field.read(value) if field.read else value

    outside = field.outside.replace(known, name)
    return replace(field, name=name, help=text, default=None, outside=outside, read=field.read and read_renamed)


_OTHERWISE = {"stop", "top_k", "top_p", "n", "best_of", "use_beam_search", "length_penalty", "early_stopping"}
"""Sampling fields that this API lacks: it has other names for some, and the others make several answers."""

_DOCUMENT = schemas.any_of(schemas.STRING, schemas.object_of({"data": schemas.any_of(schemas.STRING, schemas.OBJECT)}))

FIELDS = GenerationFields((
    MODEL,
    STREAM,
    replace(MESSAGES, required=True, help=
        "the conversation: objects with role, content, tool_calls, tool_plan and tool_call_id"),
    Field("tools", "array", "functions that the model may call", schema=schemas.TOOLS),
    Field("strict_tools", "bool", "true makes calls follow the schemas of the tools", default=False),
    Field("tool_choice", "string",
        "REQUIRED: the model must call a tool; NONE: it must not", choices=tuple(CHOICES), read=CHOICES.__getitem__,
        outside=f"tool_choice must be one of: {', '.join(CHOICES)}"),
    Field("documents", "array",
        "strings or objects with data, for chat templates that support retrieval", read=_documents,
        schema={"items": _DOCUMENT}),
    Field("citation_options", "object", "accepted without effect: answers have no citations"),
    Field("safety_mode", "string", "accepted without effect: there are no safety modes"),
    Field("response_format", "object", "type is text or json_object, which may have a json_schema"),
    Field("thinking", "object",
        "type is enabled or disabled and sets enable_thinking for the chat template; token_budget limits the reasoning",
        read=_thinking, schema=schemas.object_of(
            {"type": {"enum": ["enabled", "disabled"]}}, token_budget={"type": ["integer", "null"], "minimum": 1}
        )),
    _renamed("stop_sequences", "stop", f"up to {MAX_STOPS} strings that end the output"),
    _renamed("k", "top_k", "number of likeliest tokens to sample from; 0 for all"),
    _renamed("p", "top_p", "probability mass for nucleus sampling"),
    LOGPROBS,
    TEMPLATE_KWARGS,
    KEEP_ALIVE,
    *(field for field in SAMPLING if field.name not in _OTHERWISE),
))  # fmt: skip


def named_as_chat(values: Values) -> Json:
    """Returns the values of fields that have another name or form in chat, under their names in chat."""
    found = {"top_k": values["k"], "top_p": values["p"], "stop": values["stop_sequences"]}
    found["include_stop_str_in_output"] = bool(values["include_stop_str_in_output"])
    if (form := values["response_format"]) is not None and form.get("type") == "json_object":
        schema = form.get("json_schema", form.get("schema"))
        found["response_format"] = {"type": "json_object"} | ({} if schema is None else {"schema": schema})
    if (budget := (values["thinking"] or {}).get("token_budget")) is not None:
        found[BUDGET] = budget
    return found


def tools(values: Values) -> list[Any] | None:
    """Converts the tools to chat's form."""
    given: list[Any] | None = values["tools"]
    return [_strict(tool) for tool in given or ()] if values["strict_tools"] else given


def messages(values: Values) -> list[Any]:
    """Converts messages to chat's form. Raises BadRequest, but most errors are found when they are read as chat's."""
    if not isinstance(values["messages"], list):
        raise BadRequest("messages must be an array", param="messages")
    return list(map(_message, values["messages"]))


def template_variables(values: Values) -> Json:
    """Returns the variables of the chat template: the client's own, and those that other fields set."""
    found: Json = {}
    if values["documents"]:
        found["documents"] = values["documents"]
    if values["thinking"] is not None:
        found["enable_thinking"] = values["thinking"]["type"] == "enabled"
    return found | (values["chat_template_kwargs"] or {})


def _strict(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return tool | {"function": function | {"strict": True}} if isinstance(function, dict) else tool


def _message(value: Any) -> Any:
    """Converts a message to chat's form."""
    if not isinstance(value, dict):
        return value
    message = dict(value)
    thoughts = [value["tool_plan"]] if isinstance(value.get("tool_plan"), str) else []
    content = value.get("content")
    if isinstance(content, list):
        thoughts += [part["thinking"] for part in content if _is(part, "thinking", str)]
        message["content"] = [_part(part) for part in content if not _is(part, "thinking", str)]
    if thoughts and value.get("role") == "assistant":
        message["reasoning_content"] = "\n".join(thoughts)
    return message


def _is(part: Any, kind: str, of: type) -> bool:
    return isinstance(part, dict) and part.get("type") == kind and isinstance(part.get(kind), of)


def _part(part: Any) -> Any:
    """Converts a content part to chat's form; a document becomes its JSON text."""
    if not _is(part, "document", dict):
        return part
    data = part["document"].get("data")
    return {"type": "text", "text": data if isinstance(data, str) else orjson.dumps(data).decode()}
