"""The request fields of POST …/messages under Anthropic's names, and their translation to those of chat.

https://docs.anthropic.com/en/api/messages. The fields of OVMS and vLLM for sampling and structured output are accepted
as well. A field that would change the answer and cannot be honoured is refused.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ...api import schemas
from ...api.fields import UINT32_MAX, Field, Values, one_of, whole
from ...api.generation.common_fields import KEEP_ALIVE, MODEL, STREAM, STRUCTURED, TEMPLATE_KWARGS, TIMINGS, token_limit
from ...api.generation.sampling import INT32_MAX, MAX_STOPS, SAMPLING, STOPS, GenerationFields
from ...errors import BadRequest
from ...types import Json

THINKING = ("enabled", "disabled", "adaptive", "between_tools")
DISPLAYS = ("summarized", "omitted", "updates")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
BUDGET = "thinking_token_budget"
"""The sampling field that limits reasoning, where the engine has it."""

_STOP = SAMPLING.named("stop")


def _stop_sequences(value: Any) -> tuple[str, ...] | None:
    assert _STOP.read is not None
    try:
        found: tuple[str, ...] | None = _STOP.read(value)
    except BadRequest as error:
        raise BadRequest(error.message.replace("stop array", "stop_sequences"), param="stop_sequences") from None
    return found


def _thinking(value: Json) -> Json:
    if value.get("type") is None:
        raise BadRequest("thinking.type: Field required", param="thinking.type")
    one_of(value["type"], "thinking.type", THINKING)
    one_of(value.get("display"), "thinking.display", DISPLAYS)
    budget = whole(value.get("budget_tokens"))
    if budget is not None and (type(budget) is not int or budget < 1):
        raise BadRequest("thinking.budget_tokens must be a positive integer", param="thinking.budget_tokens")
    return {**value, "budget_tokens": None if budget is None else min(budget, INT32_MAX)}


def _output_config(value: Json) -> Json:
    one_of(value.get("effort"), "output_config.effort", EFFORTS)
    if value.get("format") is not None:
        _format(value["format"], "output_config.format")
    return value


def _format(value: Any, param: str) -> Json:
    if not isinstance(value, dict):
        raise BadRequest(f"{param} is not an object", param=param)
    if value.get("type") != "json_schema" or not isinstance(value.get("schema"), dict):
        raise BadRequest(f"{param} must be of type json_schema with a schema", param=param)
    return value


_THINKING = schemas.object_of(
    {"type": {"enum": list(THINKING)}},
    display={"enum": [*DISPLAYS, None]},
    budget_tokens={"type": ["integer", "null"], "minimum": 1},
)
_ALONE: Json = {"disable_parallel_tool_use": {"type": ["boolean", "null"]}}
_TOOL_CHOICE = schemas.any_of(
    schemas.object_of({"type": {"enum": ["auto", "any", "none"]}}, **_ALONE),
    schemas.object_of({"type": schemas.const("tool"), "name": schemas.STRING}, **_ALONE),
)
_FORMAT = schemas.object_of({"type": schemas.const("json_schema"), "schema": schemas.OBJECT})
_OUTPUT_CONFIG: Json = {
    "properties": {"effort": {"enum": [*EFFORTS, None]}, "format": schemas.any_of(_FORMAT, schemas.NULL)}
}


_EMPTY: dict[str, Json] = {
    "array": {"maxItems": 0},
    "object": {"maxProperties": 0},
    "any": {"enum": [None, False, 0, "", [], {}]},
}


def _refused(name: str, kind: str, why: str, code: str | None = None) -> Field:
    """Declares a field that cannot be honoured and would change the answer: a 400 unless it is empty."""

    def read(value: Any) -> Any:
        if value:
            raise BadRequest(f"{name}: {why}", param=name, code=code)
        return value

    return Field(name, kind, f"must be empty: {why}", read=read, schema=_EMPTY[kind])


NO_THREADS = "thread_unsupported_request"
"""Anthropic's code, on which its tool runner sends the whole conversation."""

TOOL = schemas.object_of({"name": schemas.SOME_TEXT, "input_schema": schemas.OBJECT}, type={"enum": ["custom", None]})
"""A tool of the client."""
MESSAGES = schemas.array(
    schemas.object_of({
        "role": {"enum": ["user", "assistant", "system"]},
        "content": schemas.any_of(schemas.STRING, schemas.array(schemas.TEXT_PART), schemas.NULL),
    }),
    1,
)  # fmt: skip
"""A conversation; blocks have more kinds."""


FIELDS = (
    replace(token_limit("max_tokens", "maximum number of generated tokens"), required=True, low=1,
        outside=f"max_tokens must be from 1 to {UINT32_MAX}"),
    Field("messages", "array",
        "the conversation: objects with role, and with content as a string or blocks; an assistant message at the end "
        "is continued",
        required=True, schema=MESSAGES),
    Field("system", "any", "system prompt, as a string or text blocks",
        schema=schemas.any_of(schemas.STRING, schemas.array(schemas.TEXT_PART))),
    Field("tools", "array",
        "tools of the client: objects with name, description, input_schema, strict and defer_loading; "
        "server tools are not supported",
        schema=schemas.array(TOOL)),
    Field("tool_choice", "object",
        "type is auto, any, tool (with a name) or none; disable_parallel_tool_use allows at most one call",
        schema=_TOOL_CHOICE),
    Field("stop_sequences", "array", f"up to {MAX_STOPS} strings that end the output", read=_stop_sequences,
        schema=STOPS),
    Field("thinking", "object",
        "type sets enable_thinking for the chat template; display omitted leaves out the reasoning of "
        "the answer, whose signature then contains it", read=_thinking, schema=_THINKING),
    Field("output_config", "object",
        "format is a json_schema with a schema; effort sets reasoning_effort for the chat template",
        read=_output_config,
        schema=_OUTPUT_CONFIG),
    Field("output_format", "object", "older name of output_config.format",
        read=partial(_format, param="output_format"), schema=_FORMAT),
    Field("metadata", "object", "accepted without effect"),
    Field("service_tier", "string", "accepted without effect"),
    Field("speed", "string", "accepted without effect"),
    Field("inference_geo", "string", "accepted without effect"),
    Field("cache_control", "object", "accepted without effect, also in blocks: equal prefixes are cached without it"),
    Field("context_management", "object", "accepted without effect; edits other than those of thinking give a warning"),
    _refused("mcp_servers", "array", "this endpoint does not connect to MCP servers; send their tools in tools"),
    _refused("container", "any", "this server does not run code"),
    _refused("compaction", "object", "this endpoint does not compact conversations; ask for a summary in a message"),
    _refused("thread", "object", "conversations are not stored; send the whole conversation", NO_THREADS),
    TEMPLATE_KWARGS,
)  # fmt: skip

_OTHERWISE = {"max_tokens", "stop", "include_stop_str_in_output", "n", "best_of", "use_beam_search", "length_penalty"}
"""Sampling fields that have another name here, or that make several answers of which a message holds one."""

ALL_FIELDS = GenerationFields((
    *(MODEL, STREAM, *FIELDS, *TIMINGS, KEEP_ALIVE, *STRUCTURED),
    *(field for field in SAMPLING if field.name not in _OTHERWISE),
))  # fmt: skip


def template_variables(values: Values) -> Json:
    """Returns the variables of the chat template: the client's own, and those that thinking and effort set."""
    found = {}
    if (thinking := values["thinking"]) is not None:
        found["enable_thinking"] = thinking["type"] != "disabled"
    if (effort := (values["output_config"] or {}).get("effort")) is not None:
        found["reasoning_effort"] = effort
    return found | (values["chat_template_kwargs"] or {})


def warnings(values: Values) -> list[str]:
    """Returns warnings about fields that are accepted but have no effect."""
    found = []
    edits = (values["context_management"] or {}).get("edits")
    kinds = [str(edit.get("type")) for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []
    if any(not kind.startswith("clear_thinking") for kind in kinds):
        found.append("context_management is not supported; the conversation was used as it was sent")
    return found
