"""The fields of Ollama's generating endpoints, in the words of OpenAI's chat and completions.

https://docs.ollama.com/api/chat, https://docs.ollama.com/modelfile for the options. Defaults of sampling are the
model's, as everywhere here, and not Ollama's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import BadRequest
from ...observability.logging import safe
from ...types import Json
from .. import schemas
from ..fields import UINT32_MAX, Field, FieldSet, Values, read
from ..generation.common_fields import KEEP_ALIVE, LOGPROBS, MODEL, STREAM
from ..generation.sampling import SAMPLING, GenerationFields
from ..generation.structured_output import RESPONSE_FORMAT

LEVELS = ("high", "medium", "low", "max")
MAX_TOP_LOGPROBS = 20
OF_SAMPLERS = (
    *("num_keep", "repeat_last_n", "typical_p", "tfs_z", "mirostat", "mirostat_tau", "mirostat_eta"),
    "penalize_newline",
)
"""Options that would change the text; a Warning header names them."""
OF_RUNNERS = (
    *("num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap", "use_mlock", "low_vram", "f16_kv"),
    *("logits_all", "vocab_only", "draft_num_predict"),
)
"""Options that say how a model is loaded, which are those of the server here."""
SAME = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop")
RENAMED = {"repeat_penalty": "repetition_penalty"}


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
    """Checks images; what is in the texts is checked when they are loaded. Raises BadRequest."""
    if not all(isinstance(image, str) for image in value):
        raise BadRequest("images must be texts in base64", param="images")
    return value


def _like(theirs: str, name: str = "") -> Field:
    """Returns a field of completions; it is only checked here, and read with the translated body."""
    return replace(SAMPLING[SAMPLING.places[theirs]], name=name or theirs, read=None)


OPTIONS = FieldSet((
    _like("temperature"),
    Field(name="top_k", kind="int", high=UINT32_MAX, help="number of likeliest tokens to sample from; 0 or less: all"),
    _like("top_p"),
    _like("min_p"),
    Field(name="seed", kind="int", high=UINT32_MAX, help="seed of the random generator; below 0: random"),
    Field(name="num_predict", kind="int", high=UINT32_MAX,
          help="maximum number of generated tokens; 0 or less: as many as fit"),
    _like("stop"),
    _like("repetition_penalty", "repeat_penalty"),
    _like("presence_penalty"),
    _like("frequency_penalty"),
    Field(name="num_ctx", kind="int", help="no effect: the context is the model's, or --max_model_len"),
    *(Field(name=name, kind="any", help="no effect, but a Warning header") for name in OF_SAMPLERS),
    *(Field(name=name, kind="any", help="no effect") for name in OF_RUNNERS),
))  # fmt: skip
STREAMED = replace(STREAM, default=True, help="a stream of JSON objects, one in a line; false: one object")
OPTIONS_FIELD = Field(
    name="options",
    kind="object",
    help="sampling, under Ollama's names",
    fields=OPTIONS,
    schema={"additionalProperties": True},
)
IMAGES = Field(name="images", kind="array", help="images in base64", read=read_images, schema={"items": schemas.STRING})
COMMON = (
    replace(MODEL, help="name of a served model, with or without :latest; optional if only one generates text"),
    STREAMED,
    Field(name="format", kind="any", help='"json", or a JSON schema that the text matches', read=_format,
          schema=schemas.any_of({"enum": ["", "json"]}, schemas.OBJECT)),
    OPTIONS_FIELD,
    Field(name="think", kind="any", read=_think, schema=schemas.any_of(schemas.BOOLEAN, {"enum": list(LEVELS)}),
          help="enable_thinking for the chat template, a level also reasoning_effort; true and levels for models that "
          "think only"),
    KEEP_ALIVE,
    replace(LOGPROBS, help="log probability of each generated token"),
    Field(name="top_logprobs", kind="int", low=0, high=MAX_TOP_LOGPROBS, default=0,
          help="with logprobs: number of the likeliest tokens with each"),
    Field(name="truncate", kind="bool", default=True,
          help="true: of a conversation that is too long the oldest messages are left out; false: it is an error"),
    Field(name="shift", kind="bool", help="no effect: a text ends where the context does"),
)  # fmt: skip
_ARGUMENTS = schemas.object_of({"function": schemas.object_of({"name": schemas.STRING}, arguments=schemas.OBJECT)})
_MESSAGE = schemas.object_of(
    {"role": schemas.STRING},
    content=schemas.any_of(schemas.STRING, schemas.NULL),
    thinking=schemas.any_of(schemas.STRING, schemas.NULL),
    images=schemas.any_of(schemas.array(schemas.STRING), schemas.NULL),
    tool_calls=schemas.any_of(schemas.array(_ARGUMENTS), schemas.NULL),
)
CHAT = FieldSet((
    *COMMON,
    Field(name="messages", kind="array", schema={"items": _MESSAGE},
          help="conversation: role, content, images, thinking, tool_calls, tool_name, tool_call_id; empty: the model "
          "is loaded, with keep_alive 0 unloaded"),
    Field(name="tools", kind="array", help="functions that the model may call", schema=schemas.TOOLS),
))  # fmt: skip
GENERATE = FieldSet((
    *COMMON,
    Field(name="prompt", kind="string", default="",
          help="message of the user; empty: the model is loaded, with keep_alive 0 unloaded"),
    Field(name="suffix", kind="string", default="", help="the text is what comes between the prompt and this"),
    Field(name="system", kind="string", default="", help="system message"),
    Field(name="raw", kind="bool", default=False, help="true: the prompt goes to the model without its chat template"),
    IMAGES,
    Field(name="context", kind="array", help="token ids of earlier turns, as in the last object of an answer",
          schema=schemas.TOKENS),
    Field(name="template", kind="string", default="", schema={"enum": [""]},
          help="refused: the chat template is the model's"),
))  # fmt: skip
AS_CHAT = GenerationFields((MODEL, STREAM, KEEP_ALIVE, RESPONSE_FORMAT, *SAMPLING))
"""The fields of `translated`."""


def translated(values: Values, model: str, keep_alive: Any) -> tuple[Json, list[str]]:
    """The body of the same request for chat, but for its prompt, and warnings. Raises BadRequest.

    model: the name under which it is served. keep_alive: as it was sent.
    """
    given: Json = values["options"] or {}
    options = read(OPTIONS, given)
    body = {name: options[name] for name in SAME} | {theirs: options[ours] for ours, theirs in RENAMED.items()}
    if (most := options["num_predict"]) is not None and most > 0:
        body["max_tokens"] = most
    if (top_k := options["top_k"]) is not None:
        body["top_k"] = top_k if top_k > 0 else -1
    if (seed := options["seed"]) is not None and seed >= 0:
        body["seed"] = seed
    body |= {"model": model, "stream": values["stream"], "keep_alive": keep_alive, "response_format": values["format"]}
    body["include_stop_str_in_output"] = False
    without_effect = [name for name in given if name in OF_SAMPLERS or name not in OPTIONS.names]
    return body, [f"options.{safe(name, 40)} has no effect" for name in without_effect]


def template_variables(think: bool | str | None) -> Json:
    """Variables for the chat template that `think` sets."""
    if think is None:
        return {}
    return {"enable_thinking": bool(think)} | ({"reasoning_effort": think} if isinstance(think, str) else {})
