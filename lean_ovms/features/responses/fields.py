"""The request fields that only POST …/responses has, and those that it refuses.

The rules are those of https://platform.openai.com/docs/api-reference/responses/create, and the error texts OVMS's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...api.fields import UINT32_MAX, Field, one_of
from ...api.generation.common_fields import (
    INCLUDE_OBFUSCATION,
    INCLUDE_USAGE,
    KEEP_ALIVE,
    LOGPROBS,
    MODEL,
    REQUEST_ID,
    RESPONSE_FORMAT,
    STREAM,
    STRUCTURED,
    TEMPLATE_KWARGS,
    TIMINGS,
    TOKEN_IDS,
    TOOLS,
    TOP_LOGPROBS,
    token_limit,
)
from ...api.generation.sampling import SAMPLING, GenerationFields
from ...api.response import MAX_REQUEST_ID
from ...api.schemas import some_of
from ...api.stored_objects import METADATA
from ...errors import BadRequest
from ...types import Json
from ..chat.request import SPOKEN_FIELDS
from .schemas import CONVERSATION, INPUT

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
CONTEXTS = ("auto", "current_turn", "all_turns")
"""Whose reasoning the chat template gets: auto and all_turns: of every turn; templates leave out some themselves."""
INCLUDABLE = (
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""The values that OpenAI allows for `include`. Only the first two have an effect: the others are about tools that this
server does not have, or about images of inputs, which items contain in any case."""

TEXT_FORMAT = {"type": "text"}

MAX_ECHOED = 1 << 20


def _echoed(name: str) -> Field:
    """Returns a string field that is only stored and repeated in the response."""

    def read(value: str) -> str:
        if len(value) > MAX_ECHOED:
            raise BadRequest(
                f"{name} has more than {MAX_ECHOED} characters", param=name, code="string_above_max_length"
            )
        return value

    return Field(name, "string", "returned unchanged", read=read, schema={"maxLength": MAX_ECHOED})


def _include(value: list[Any]) -> list[str]:
    for word in value:
        if word not in INCLUDABLE:
            raise BadRequest(f"include: {str(word)[:60]!r} must be one of: {', '.join(INCLUDABLE)}", param="include")
    return value


def _conversation(value: Any) -> str:
    name = value.get("id") if isinstance(value, dict) else value
    if not isinstance(name, str) or not name:
        raise BadRequest("conversation must be an id, or an object with one", param="conversation")
    return name


def _reasoning(value: Json) -> Json:
    effort = value.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise BadRequest("reasoning.effort is not a string", param="reasoning.effort")
    one_of(effort, "reasoning.effort", EFFORTS)
    summary = value.get("summary", value.get("generate_summary"))
    one_of(summary, "reasoning.summary", ("auto", "concise", "detailed"))
    context = one_of(value.get("context"), "reasoning.context", CONTEXTS)
    return {"effort": effort, "summary": summary} | ({} if context is None else {"context": context})


def _tools(value: Any) -> Any:
    """Drops members that are null from tools: OpenAI's clients send null for unset `parameters` and `strict`."""
    if not isinstance(value, list):
        return value
    return [{k: v for k, v in tool.items() if v is not None} if isinstance(tool, dict) else tool for tool in value]


def _text(value: Json) -> Json:
    form = value.get("format") or TEXT_FORMAT
    if not isinstance(form, dict):
        raise BadRequest("text.format is not an object", param="text.format")
    verbosity = one_of(value.get("verbosity"), "text.verbosity", ("low", "medium", "high"))
    return {"format": form} if verbosity is None else {"format": form, "verbosity": verbosity}


FIELDS = (
    Field("input", "any", "a string, or items: messages, reasoning, calls and their outputs, and references",
        schema=INPUT),
    Field("instructions", "string", "system message before the conversation; not stored for later turns"),
    Field("previous_response_id", "string", "id of the stored response that this request continues"),
    Field("conversation", "any", "stored conversation that this request continues, and to which the response is added",
        read=_conversation, schema=CONVERSATION),
    Field("store", "bool", "store the response, so that it can be read and continued", default=True),
    Field("background", "bool", "answer at once, and generate in the background; needs store", default=False),
    STREAM,
    Field("stream_options", "object", "include_obfuscation; token counts are always included",
        fields=(INCLUDE_OBFUSCATION, INCLUDE_USAGE)),
    replace(token_limit("max_output_tokens", "maximum number of generated tokens, including reasoning"),
        schema={"minimum": 1}),
    replace(TOOLS[0], read=_tools),
    *TOOLS[1:],
    Field("max_tool_calls", "uint", "maximum number of calls of MCP tools in this response, at most --max_tool_calls",
        high=UINT32_MAX),
    Field("reasoning", "object",
        "effort sets enable_thinking and reasoning_effort for the chat template; context current_turn "
        "leaves out the reasoning before the user's last message", read=_reasoning),
    Field("text", "object", "format is text, json_object or json_schema; verbosity is passed to the chat template",
        read=_text),
    RESPONSE_FORMAT,
    Field("truncation", "string", "auto leaves out the oldest items of an input that is too long",
        choices=("auto", "disabled"), outside="truncation should be either 'auto' or 'disabled'"),
    Field("include", "array", "message.output_text.logprobs, reasoning.encrypted_content", read=_include,
        schema={"items": {"enum": list(INCLUDABLE)}}),
    LOGPROBS,
    TOP_LOGPROBS,
    *SPOKEN_FIELDS,
    METADATA,
    _echoed("user"),
    _echoed("safety_identifier"),
    _echoed("prompt_cache_key"),
    _echoed("prompt_cache_retention"),
    Field("service_tier", "string", "accepted without effect: there is only one"),
    TEMPLATE_KWARGS,
)  # fmt: skip

REFUSED = {
    "prompt": "stored prompt templates are not supported; send instructions and input",
    "context_management": "context management is not supported: use POST …/responses/compact, or send truncation: auto",
    "moderation": "moderation is not supported",
    "previous_input_messages": "earlier messages in the model's own form are not supported; send them in input",
    "chat_template": "chat_template is not supported in requests here; start the server with --chat_template",
}
"""Fields that would change the answer and cannot be honoured."""


def _fit_for_a_path(value: str) -> str:
    """Checks that an id can be part of a URL's path, since clients request ids without escaping them."""
    if not _IN_PATH.fullmatch(value):
        text = f"request_id must have 1 to {MAX_REQUEST_ID} letters, digits, dots, dashes or underscores"
        raise BadRequest(text, param="request_id")
    return value


_IN_PATH = re.compile(rf"[\w.-]{{1,{MAX_REQUEST_ID}}}", re.ASCII)

_RESPONSE_ID = replace(REQUEST_ID, read=_fit_for_a_path, schema={"pattern": f"^[A-Za-z0-9_.-]{{1,{MAX_REQUEST_ID}}}$"})

ALL_FIELDS = GenerationFields((
    *(MODEL, *TOKEN_IDS, *TIMINGS, KEEP_ALIVE, _RESPONSE_ID, *FIELDS, *STRUCTURED),
    *(row for row in SAMPLING if row.name != "max_tokens"),
))  # fmt: skip
"""All that is read. max_tokens and max_completion_tokens are not fields of this API, as in OVMS."""
SOME_INPUT = some_of("input", "previous_response_id", "conversation")
