"""Request fields that several endpoints share, among them those without an effect; sampling has its own file.

Each field is declared once, with its name, kind, range, default and meaning. OVMS and vLLM ignore many fields. Here the
response gets a Warning header for a field that the engine cannot support, and for an unknown name that is similar to a
known one. A value of the wrong type is a 400 error, as in whichever of the two has the field.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from ...composition import compose
from ...errors import BadRequest
from ...manifest import ANSWER_RULES
from ...observability.logging import safe
from ...types import Json, SamplingParams
from .. import schemas
from ..fields import UINT32_MAX, Field, FieldSet, Values, read_one
from ..response import MAX_REQUEST_ID, is_safe_id
from ..schemas import BOOLEAN, JSON_TEXT, NULL, OBJECT, SOME_TEXT, STRING, any_of, array

MODEL = Field(
    "model",
    "string",
    "name of a served model; optional if only one model generates text",
    wrong="model field is not a string",
)
STREAM = Field(
    "stream", "bool", "send the response as server-sent events", wrong="stream field is not a boolean", default=False
)


def _flag(name: str, help: str) -> Field:  # noqa: A002 - as in Field
    return Field(name, "bool", help, wrong=f"stream_options.{name} is not a boolean", default=False)


INCLUDE_USAGE = _flag("include_usage", "send the token counts in an additional last chunk")
INCLUDE_OBFUSCATION = _flag(
    "include_obfuscation", "pad the events, so that their sizes do not reveal the lengths of tokens"
)
STREAM_OPTIONS = Field(
    "stream_options",
    "object",
    "options of a stream: include_usage, continuous_usage_stats, include_obfuscation",
    fields=(
        INCLUDE_USAGE,
        _flag("continuous_usage_stats", "send the token counts with every chunk"),
        INCLUDE_OBFUSCATION,
    ),
)


def _request_id(value: str) -> str:
    if not is_safe_id(value):
        raise BadRequest(f"request_id must have 1 to {MAX_REQUEST_ID} printable ASCII characters", param="request_id")
    return value


TOKEN_IDS = (
    Field("return_token_ids", "bool", "return prompt_token_ids and token_ids", default=False),
    Field("return_tokens_as_token_ids", "bool", "write tokens in logprobs as token_id:NUMBER", default=False),
)
REQUEST_ID = Field(
    "request_id",
    "string",
    "(vLLM) end of the response's id",
    read=_request_id,
    schema={"pattern": f"^[ -~]{{1,{MAX_REQUEST_ID}}}$"},
)
TIMINGS = (
    Field("timings", "bool", "return llama.cpp's timings; in a stream, at its end", default=False),
    Field("timings_per_token", "bool", "(llama.cpp) send timings with every chunk of text", default=False),
    Field("return_progress", "bool",
        "(llama.cpp) send the progress of the prompt in a stream; needs --pipeline_type PAGED",
        needs="progress", default=False),
)  # fmt: skip
_NUMBER = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_UNIT = "(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(_NUMBER + _UNIT)
_KEEP_ALIVE = re.compile(f"[-+]?({_NUMBER}|({_NUMBER}{_UNIT})+)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_KEEP_S = 1e9


def _keep_alive(value: Any) -> float:
    """Returns the seconds of a duration, a number or a text such as "5m" or "1h30m"; a negative one means forever."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return min(float(value), MAX_KEEP_S)
    value = value.strip() if isinstance(value, str) and len(value) <= MAX_DURATION else ""
    if not _KEEP_ALIVE.fullmatch(value):
        raise BadRequest('keep_alive must be a number of seconds, or a duration such as "5m"', param="keep_alive")
    sign, parts = -1.0 if value.startswith("-") else 1.0, _DURATION.findall(value)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else abs(float(value))
    return min(sign * seconds, MAX_KEEP_S)


MAX_DURATION = 64
KEEP_ALIVE = Field(
    "keep_alive",
    "any",
    "(Ollama) how long a model that was loaded on demand stays in memory after the request; 0 unloads it at once, a "
    "negative value keeps it",
    read=_keep_alive,
    schema=schemas.any_of(
        schemas.NUMBER, {"type": "string", "maxLength": MAX_DURATION, "pattern": f"^{_KEEP_ALIVE.pattern}$"}
    ),
)
RESPONSE_FIELDS = (MODEL, STREAM, STREAM_OPTIONS, *TOKEN_IDS, *TIMINGS, KEEP_ALIVE, REQUEST_ID)
"""The fields of chat and completions that decide the form of the response."""

MESSAGES = Field(
    "messages",
    "any",
    "the conversation: objects with role, content, tool_calls, tool_call_id and name",
    schema=schemas.MESSAGES,
)
TOOLS = (
    Field(
        "tools",
        "any",
        "functions that the model may call; OpenAI's built-in tools are not supported",
        schema=schemas.TOOLS,
    ),
    Field(
        "tool_choice",
        "any",
        "none, auto, required, an object that names one function, or allowed_tools",
        schema=schemas.TOOL_CHOICE,
    ),
    Field(
        "parallel_tool_calls",
        "bool",
        "false: at most one tool call in the response; true: several also with the tool parser generic",
    ),
)
LOGPROBS = Field("logprobs", "bool", "return the log probability of each generated token", default=False)
NUM_LOGPROBS = Field(
    "logprobs",
    "int",
    "return the log probability of each generated token and of this many of the likeliest tokens, at most "
    "--max_logprobs; -1 for all. With echo, the prompt is included. Alternatives need --pipeline_type PAGED",
    low=-1,
    wrong="logprobs accepts integer values",
)
TOP_LOGPROBS = Field(
    "top_logprobs",
    "int",
    "return this many of the likeliest tokens for each generated one, at most --max_logprobs; -1 for all; "
    "ignored with a warning unless the pipeline is PAGED",
    low=-1,
)
PROMPT_LOGPROBS = Field(
    "prompt_logprobs",
    "int",
    "(vLLM) return the log probability of each token of the prompt and of this many of the likeliest "
    "tokens; -1 for all; not allowed in streams; ignored with a warning unless the pipeline is PAGED",
    needs="alternatives",
    low=-1,
)
TEMPLATE_KWARGS = Field(
    "chat_template_kwargs",
    "object",
    "variables for the chat template, such as enable_thinking",
    wrong="chat_template_kwargs must be an object",
)
ADD_GENERATION_PROMPT = Field(
    "add_generation_prompt", "bool", "end the prompt with the beginning of the assistant's message (default true)"
)


def _documents(value: list[Any]) -> list[Any]:
    if not all(isinstance(document, dict) for document in value):
        raise BadRequest("documents is not an array of objects", param="documents")
    return value


DOCUMENTS = Field(
    "documents",
    "array",
    "documents for chat templates that support retrieval",
    read=_documents,
    schema={"items": schemas.OBJECT},
)


CHAT_TEMPLATE = Field(
    "chat_template",
    "string",
    "Jinja template used instead of the model's; needs --trust_request_chat_template, as in vLLM",
)
CONTINUE_FINAL_MESSAGE = Field(
    "continue_final_message", "bool", "continue the last message instead of starting a new one", default=False
)
OF_TEMPLATE = (TOOLS[0], ADD_GENERATION_PROMPT, CONTINUE_FINAL_MESSAGE, TEMPLATE_KWARGS, DOCUMENTS, CHAT_TEMPLATE)
"""The fields, besides the messages, that the chat template reads; for endpoints that apply it without generating."""


RESPONSE_FORMAT = Field(
    "response_format",
    "object",
    "text, json_object, json_schema, or an XGrammar format (regex, sequence, structural_tag, ...)",
    wrong="response_format is not an object",
)


def _gbnf(value: Any) -> str | None:
    """Returns the grammar, or None for an empty string, which llama.cpp's clients send."""
    if value == "":
        return None
    if not isinstance(value, str):
        raise BadRequest("grammar is not a non-empty string", param="grammar")
    return value


_JSON_SCHEMA = any_of(OBJECT, BOOLEAN, JSON_TEXT)
_CHOICES = array(SOME_TEXT, 1)
_ABSENT = any_of(NULL, {"enum": [False, 0]})
_form = partial(Field, seam=ANSWER_RULES)
STRUCTURED = (
    _form("structured_outputs", "object",
        "(vLLM) one of json, json_object, regex, choice, grammar (EBNF, Lark), structural_tag",
        schema={"properties": {
            "json": any_of(_JSON_SCHEMA, _ABSENT), "json_object": any_of({"const": True}, _ABSENT),
            "regex": any_of(SOME_TEXT, _ABSENT), "choice": any_of(_CHOICES, _ABSENT),
            "grammar": any_of(SOME_TEXT, _ABSENT), "structural_tag": any_of(OBJECT, JSON_TEXT, _ABSENT)}}),
    _form("guided_json", "any", "(vLLM, older form) JSON Schema that the answer follows", schema=_JSON_SCHEMA),
    _form("guided_regex", "string", "(vLLM, older form) regular expression that the answer matches", schema=SOME_TEXT),
    _form("guided_choice", "array", "(vLLM, older form) strings, one of which is the answer", schema=_CHOICES),
    _form("guided_grammar", "string",
        "(vLLM, older form) grammar that the answer follows (EBNF, Lark)", schema=SOME_TEXT),
    _form("json_schema", "any", "(llama.cpp) JSON Schema that the answer follows", schema=_JSON_SCHEMA),
    _form("grammar", "any", "(llama.cpp) grammar that the answer follows (GBNF)", read=_gbnf, schema=STRING),
    _form("regex", "string", "(SGLang) regular expression that the answer matches", schema=SOME_TEXT),
    _form("ebnf", "string", "(SGLang) grammar that the answer follows (EBNF)", schema=SOME_TEXT),
)  # fmt: skip
"""The fields of every generating endpoint that constrain its text, such as to a JSON Schema or a grammar."""
FORMATS = ("response_format", "text.format", "output_config.format", "format")
"""The fields that constrain the text in OpenAI's form, in chat, the Responses API, Anthropic's API and Ollama's."""
FORMS = (*FORMATS, *(field.name for field in STRUCTURED))
"""The names of all fields that constrain the text."""


def template_kwargs(values: Values) -> Json:
    """Returns the variables for the chat template: those of chat_template_kwargs, and those that other fields set."""
    kwargs = dict(values["chat_template_kwargs"] or {})
    if kwargs.get("add_generation_prompt") is None:
        kwargs.pop("add_generation_prompt", None)
    for name in ("documents", "verbosity"):
        if values.get(name) is not None:
            kwargs.setdefault(name, values[name])
    if values.get("reasoning_effort") is not None:
        effort = values["reasoning_effort"]  # in vLLM and OVMS any value but "none" turns reasoning on
        kwargs = {"enable_thinking": effort != "none", "reasoning_effort": effort} | kwargs
    return kwargs


def token_limit(name: str, help: str) -> Field:  # noqa: A002 - as in Field
    """Returns the field that limits the number of generated tokens."""
    outside = f"{name} value can't be greater than {UINT32_MAX}"
    return Field(name, "uint", help, high=UINT32_MAX, outside=outside)


def stream_options(field: Field, values: Values) -> dict[str, bool]:
    """Returns every option of stream_options by name, its default where absent or null. Raises BadRequest."""
    given, found = values[field.name], {option.name: option.default for option in field.fields}
    if given is None:
        return found
    if not values["stream"]:
        raise BadRequest("stream_options provided, but stream not set to true", param=field.name)
    if not given.keys() <= found.keys():
        text = f"Found unexpected stream options. Properties accepted in stream_options: {', '.join(sorted(found))}"
        raise BadRequest(text, param=field.name)
    for name, value in given.items():
        if value is not None:
            if not isinstance(value, bool):
                wrong = next(option.wrong for option in field.fields if option.name == name)
                raise BadRequest(wrong, param=f"{field.name}.{name}")
            found[name] = value
    return found


# --- fields without an effect

AUDIO_FORMATS = ("wav", "pcm16")


def _modalities(value: list[Any]) -> list[str]:
    """Returns the requested output modalities other than text."""
    if not all(isinstance(modality, str) for modality in value):
        raise BadRequest("modalities array must contain strings", param="modalities")
    return [modality for modality in value if modality != "text"]


def audio_in(formats: Sequence[str]) -> Callable[[Json], Json]:
    """Returns the reader of a field `audio` whose format must be one of these, if it has one."""

    def read_audio(value: Json) -> Json:
        if value.get("format") not in (None, *formats):
            raise BadRequest(f"audio.format must be one of: {', '.join(formats)}", param="audio.format")
        return value

    return read_audio


def _tier(value: str) -> str | None:
    """Returns the service tier that a client requests; None if it is one that this server has anyway."""
    return None if value in ("auto", "default", "standard_only") else value


ACCEPTED = FieldSet((
    Field("user", "string", "(OpenAI) the end user; accepted without effect"),
    Field("safety_identifier", "string", "(OpenAI) the newer name of user; accepted without effect"),
    Field("prompt_cache_key", "string", "(OpenAI) accepted without effect: equal prompts are found without it"),
    Field("prompt_cache_retention", "string",
        "(OpenAI) accepted without effect: prompts stay cached as long as there is room"),
))  # fmt: skip
"""Fields of every generating endpoint that are checked, but do not change the answer."""

UNSUPPORTED = FieldSet((
    Field("store", "bool", "(OpenAI) whether the answer is stored; only the Responses API stores answers"),
    Field("metadata", "object", "(OpenAI) data stored with the answer; only the Responses API stores answers"),
    Field("service_tier", "string", "(OpenAI) processing tier; this server has only one", read=_tier),
    Field("prediction", "object", "(OpenAI) expected text of the answer"),
    Field("modalities", "array", "(OpenAI) types of the output; this endpoint only generates text", read=_modalities),
    Field("audio", "object", "(OpenAI) voice and format of a spoken answer", read=audio_in(AUDIO_FORMATS)),
    Field("chunk_frames", "uint", "(OVMS) frames in each chunk of speech", low=1,
        wrong="chunk_frames must be a positive integer", outside="chunk_frames must be >= 1"),
    Field("functions", "array", "(OpenAI) the older form of tools"),
    Field("function_call", "any", "(OpenAI) the older form of tool_choice"),
    Field("web_search_options", "object", "(OpenAI) options of a web search",
        read=lambda value: True),  # an empty object requests an effect, too
    Field("moderation", "object", "(OpenAI) moderation of the input and the output"),
    Field("personality", "string", "(OpenAI) style of the answers"),
    Field("echo", "bool", "(vLLM) begin the answer of a chat with the last message"),
    Field("prompt_logprobs", "int", "(vLLM) log probabilities of the prompt; only for chat and completions"),
    Field("timings", "bool", "(llama.cpp) timings; only where text is generated"),
    Field("timings_per_token", "bool", "(llama.cpp) timings in every event; only where text is generated"),
    Field("return_progress", "bool", "(llama.cpp) progress of the prompt; only where text is generated"),
    Field("logits_processors", "array", "(vLLM) functions that change the logits"),
    Field("prompt_embeds", "any", "(vLLM) the prompt as embeddings"),
    Field("mm_processor_kwargs", "object", "(vLLM) arguments of the image processor"),
    Field("media_io_kwargs", "object", "(vLLM) arguments of the media loaders; only for chat"),
    Field("return_prompt_text", "bool", "(vLLM) return the text of the prompt"),
    Field("kv_transfer_params", "object", "(vLLM) parameters of a KV cache transfer"),
    Field("vllm_xargs", "object", "(vLLM) arguments of extensions"),
    Field("detokenize", "bool", "(vLLM) false returns token ids without text", default=True),
    Field("spaces_between_special_tokens", "bool", "(vLLM) false puts no spaces between special tokens", default=True),
    Field("enable_response_messages", "bool", "(vLLM) return the model's raw messages"),
    Field("return_token_offsets", "bool", "(vLLM) return the positions of the tokens in the prompt"),
    Field("return_weight_versions", "bool", "(vLLM) return the version of the weights"),
    Field("routed_experts_prompt_start", "uint",
        "(vLLM) first prompt token whose routed experts are returned", default=0),
    Field("watermarking", "bool", "(vLLM) add a watermark to the text"),
    Field("ec_transfer_params", "object", "(vLLM) parameters of an encoder cache transfer"),
    Field("late_chunking_params", "object", "(vLLM) return one vector for each part of a text"),
    Field("late_chunking", "bool", "(Jina) treat the inputs as parts of one text"),
    Field("lora_alphas", "any", "(OVMS, images) strengths of LoRA adapters"),
    Field("return_mm_kwargs", "bool", "(vLLM) return the inputs of the image encoder"),
    Field("n_cmpl", "int", "(llama.cpp) number of answers; only for chat and completions, as n", default=1),
    Field("reasoning_control", "bool", "(llama.cpp) let another request end the reasoning"),
    Field("reasoning_budget_message", "string", "(llama.cpp) text at the end of reasoning that is cut off"),
    Field("verbose", "bool", "(llama.cpp) return the prompt and the settings"),
))  # fmt: skip
"""Unsupported fields of every generating endpoint that does not declare them itself."""

_KNOWN = ACCEPTED.names | UNSUPPORTED.names

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""The names of the token limit in three APIs. A warning suggests the first one that the endpoint has."""

MAX_UNKNOWN, MAX_NAME = 8, 40
"""Maximum number and length of the unknown names that are compared with known ones, at about 0.5 ms each."""


def warnings(fields: FieldSet, body: Json, unread: Collection[str] = ()) -> list[str]:
    """Returns a warning for each field of a body that has no effect.

    Args:
        fields: The fields of the endpoint.
        body: The body.
        unread: The names of known fields that this model or this server does not read.

    Raises:
        BadRequest: A value is of the wrong type.
    """
    if body.keys() <= fields.names and body.keys().isdisjoint(unread):
        return []  # as nearly always
    others = [name for name in body if name not in fields.places]
    for name in others:
        if name in ACCEPTED.places:
            read_one(ACCEPTED.named(name), body[name])
    ignored = [UNSUPPORTED.named(name) for name in others if name in UNSUPPORTED.places]
    ignored += [fields.named(name) for name in unread if name in body]
    lines = [
        f"{field.name} is not supported and was ignored"
        for field in sorted(ignored, key=lambda field: field.name)
        if _requests_effect(field, read_one(field, body[field.name]))
    ]
    harmless = compose().harmless
    unknown = [name for name in others if name not in _KNOWN and name not in harmless]
    for name in [name for name in unknown if len(name) <= MAX_NAME and body[name] is not None][:MAX_UNKNOWN]:
        if near := similar(name, fields.names):
            lines.append(f"{safe(name)} is not a field of this endpoint and was ignored; did you mean {near}?")
    return lines


def _requests_effect(field: Field, value: Any) -> bool:
    """Returns whether the value of an unsupported field asks for something that the server does not do."""
    if value is None or value == field.default:
        return False
    empty = value is False or value in ("", [], {}, ())
    return not empty or field.default is True


@lru_cache(1024)
def similar(name: str, known: frozenset[str]) -> str:
    """Returns the most similar known name; "" if none is similar."""
    if name in LIMITS:
        return next((limit for limit in LIMITS if limit in known), "")
    return next(iter(difflib.get_close_matches(name.lower(), known, 1)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableBody:
    """A request body after the fields of other APIs' clients were converted (manifest.BodyRow)."""

    body: Json
    """The body, with the endpoint's own field names."""
    unlimited: bool = False
    """Whether a body without a token limit generates as many tokens as fit, whatever the endpoint's default is."""
    parse_reasoning: bool = True
    """Whether reasoning is separated from the text."""
    parse_calls: bool = True
    """Whether tool calls are separated from the text."""
    notices: tuple[str, ...] = ()
    """Warnings about fields of other APIs that have no effect, as sentences."""
    sent_as: tuple[tuple[str, str], ...] = ()
    """Pairs of a field's name in `body` and the client's other name for it, which errors have."""
    adjust: Callable[[SamplingParams, Collection[str], Json], tuple[SamplingParams, list[str]]] | None = None
    """A function of the sampling parameters, the engine's capabilities and the model's defaults, which returns other
    parameters, and warnings about fields that have no effect, or raises BadRequest; None if the body has none of the
    fields."""


NOT_WITH_BEAMS = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "seed": (),
}
"""Sampling fields that beam search ignores, with the values that have no effect anyway."""


def overruled(values: Values, precedence: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Yields a warning for each pair of names whose values differ; the first one takes precedence."""
    for first, second in precedence:
        one, other = values.get(first), values.get(second)
        if one is not None and other is not None and one != other:
            yield f"{second} has no effect: {first} has precedence"
