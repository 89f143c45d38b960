"""The fields of Ollama's generating endpoints, and their translation to OpenAI's chat and completions.

https://docs.ollama.com/api/chat, https://docs.ollama.com/modelfile for the options. The sampling defaults are the
model's, as in all APIs here, not Ollama's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from ...api import schemas
from ...api.fields import UINT32_MAX, Field, FieldSet, Values, read
from ...api.generation.common_fields import KEEP_ALIVE, LOGPROBS, MODEL, STREAM
from ...api.generation.sampling import SAMPLING, GenerationFields, token_ids
from ...errors import BadRequest
from ...observability.logging import safe
from ...types import Json
from ..sampler_chain import fields as sampler_chain

LEVELS = ("high", "medium", "low", "max")
MAX_TOP_LOGPROBS = 20
SAMPLER_OPTIONS = ("num_keep", "tfs_z", "penalize_newline")
"""Options that would change the text, but are not supported; a Warning header names them."""
RUNNER_OPTIONS = (
    *("num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap", "use_mlock", "low_vram", "f16_kv"),
    *("logits_all", "vocab_only", "draft_num_predict"),
)
"""Options about loading a model, which are options of the server here."""
SAME = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop", "seed")
LIMIT = (("max_tokens", "num_predict"),)
"""The limit of generated tokens in chat and here, for errors."""
RENAMED = {"repeat_penalty": "repetition_penalty"}
SAMPLERS = ("repeat_last_n", "typical_p", "mirostat", "mirostat_tau", "mirostat_eta")
"""Options of llama.cpp's samplers, which are fields of every endpoint here."""


def _format(value: Any) -> Json | None:
    if value in ("", "json"):
        return {"type": "json_object"} if value else None
    if not isinstance(value, dict):
        raise BadRequest('format must be "json" or a JSON schema', param="format")
    return {"type": "json_schema", "json_schema": {"schema": value}}


def _think(value: Any) -> bool | str:
    if not isinstance(value, bool) and value not in LEVELS:
        raise BadRequest(f"think must be true, false or one of: {', '.join(LEVELS)}", param="think")
    return value  # type: ignore[no-any-return]


def read_images(value: list[Any]) -> list[str]:
    """Returns images if they are strings; their content is checked when they are loaded. Raises BadRequest."""
    if not all(isinstance(image, str) for image in value):
        raise BadRequest("images must be an array of strings in base64", param="images")
    return value


def _shared(name: str, ollama_name: str = "") -> Field:
    """Returns a field of completions. It is only checked here, and read from the translated body."""
    return replace(SAMPLING.named(name), name=ollama_name or name, read=None)


OPTIONS = FieldSet((
    _shared("temperature"),
    Field("top_k", "int", "number of likeliest tokens to sample from; 0 or less for all", high=UINT32_MAX),
    _shared("top_p"),
    _shared("min_p"),
    _shared("seed"),
    Field("num_predict", "int", "maximum number of generated tokens; 0 or less for as many as fit", high=UINT32_MAX),
    _shared("stop"),
    _shared("repetition_penalty", "repeat_penalty"),
    _shared("presence_penalty"),
    _shared("frequency_penalty"),
    *(replace(sampler_chain.FIELDS.named(name), default=None) for name in SAMPLERS),
    Field("num_ctx", "int", "accepted without effect: the context length is the model's, or --max_model_len"),
    *(Field(name, "any", "ignored with a warning") for name in SAMPLER_OPTIONS),
    *(Field(name, "any", "accepted without effect") for name in RUNNER_OPTIONS),
))  # fmt: skip
_INTEGERS = frozenset(field.name for field in OPTIONS if field.kind in ("int", "uint"))
STREAMED = replace(STREAM, default=True, help="stream JSON objects, one per line; false returns a single object")
COMMON = (
    replace(MODEL, help="name of a served model, with or without :latest; optional if only one model generates text"),
    STREAMED,
    Field("format", "any", '"json", or a JSON schema that the text matches', read=_format,
          schema=schemas.any_of({"enum": ["", "json"]}, schemas.OBJECT)),
    Field("options", "object", "sampling parameters under Ollama's names", fields=OPTIONS, schema={
        "additionalProperties": True}),
    Field("think", "any",
          "sets enable_thinking for the chat template, and a level also sets reasoning_effort; only for models that "
          "can think", read=_think, schema=schemas.any_of(schemas.BOOLEAN, {"enum": list(LEVELS)})),
    KEEP_ALIVE,
    replace(LOGPROBS, help="return the log probability of each generated token"),
    Field("top_logprobs", "int",
        "with logprobs, return this many of the likeliest tokens for each generated one", low=0,
          high=MAX_TOP_LOGPROBS, default=0),
    Field("truncate", "bool",
          "leave out the oldest messages of a conversation that is too long; false makes it an error",
          default=True),
    Field("shift", "bool", "accepted without effect: generation ends at the end of the context"),
)  # fmt: skip
_ARGUMENTS = schemas.object_of({"function": schemas.object_of({"name": schemas.STRING}, arguments=schemas.OBJECT)})
_MESSAGE = schemas.object_of(
    {"role": schemas.ROLE},
    content=schemas.any_of(schemas.STRING, schemas.NULL),
    thinking=schemas.any_of(schemas.STRING, schemas.NULL),
    images=schemas.any_of(schemas.array(schemas.STRING), schemas.NULL),
    tool_calls=schemas.any_of(schemas.array(_ARGUMENTS), schemas.NULL),
)
CHAT = FieldSet((
    *COMMON,
    Field("messages", "array",
          "the conversation: objects with role, content, images, thinking, tool_calls, tool_name and tool_call_id; if "
          "it is "
          "empty, the model is loaded, or unloaded with keep_alive 0", schema={"items": _MESSAGE}),
    Field("tools", "array", "functions that the model may call", schema=schemas.TOOLS),
))  # fmt: skip
GENERATE = FieldSet((
    *COMMON,
    Field("prompt", "string", "message of the user; if it is empty, the model is loaded, or unloaded with keep_alive 0",
          default=""),
    Field("suffix", "string", "text after the gap; the model fills the gap between prompt and suffix", default=""),
    Field("system", "string", "system message", default=""),
    Field("raw", "bool", "send the prompt to the model without applying the chat template", default=False),
    Field("images", "array", "images in base64", read=read_images, schema={"items": schemas.STRING}),
    Field("context", "array",
        "token ids of earlier turns, from the last object of an earlier answer",
        read=partial(token_ids, param="context"), schema=schemas.TOKENS),
    Field("template", "string", "refused: the model's chat template is used", default="", schema={"enum": [""]}),
))  # fmt: skip
AS_CHAT = GenerationFields((MODEL, STREAM, KEEP_ALIVE, *SAMPLING))
"""The fields of the body that `translated` returns."""


def _truncated(name: str, value: Any) -> Any:
    """Returns the value of an option; a number with a fraction is cut off where Ollama's option is an integer."""
    cut = isinstance(value, float) and name in _INTEGERS and math.isfinite(value)
    return int(value) if cut else value


def translated(values: Values, model: str, keep_alive: Any) -> tuple[Json, list[str]]:
    """Returns the body of the equivalent request for chat completions, without its prompt, and warnings for the client.

    Args:
        values: The fields of the body, by Ollama's names.
        model: The name under which the model is served.
        keep_alive: The value of keep_alive as it was sent.

    Raises:
        BadRequest: An option is not valid.
    """
    given: Json = values["options"] or {}
    options = read(OPTIONS, {name: _truncated(name, value) for name, value in given.items()})
    body = {name: options[name] for name in SAME} | {name: options[ollama] for ollama, name in RENAMED.items()}
    if (most := options["num_predict"]) is not None and most > 0:
        body["max_tokens"] = most
    if (top_k := options["top_k"]) is not None:
        body["top_k"] = top_k if top_k > 0 else -1
    body |= {name: options[name] for name in SAMPLERS if options[name] is not None}
    body |= {"model": model, "stream": values["stream"], "keep_alive": keep_alive}
    body["include_stop_str_in_output"] = False
    without_effect = [name for name in given if name in SAMPLER_OPTIONS or name not in OPTIONS.names]
    return body, [f"options.{safe(name, 40)} has no effect" for name in without_effect]


def template_variables(think: bool | str | None) -> Json:
    """Returns the variables for the chat template that `think` sets."""
    if think is None:
        return {}
    return {"enable_thinking": bool(think)} | ({"reasoning_effort": think} if isinstance(think, str) else {})
