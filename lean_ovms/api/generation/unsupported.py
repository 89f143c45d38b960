"""Request fields that are accepted without an effect, each with a warning.

OVMS and vLLM ignore many fields. Here a field that the engine cannot honour, and a name that is close to that of a
field, give a Warning header. Values of a wrong type are a 400, as in OVMS or vLLM, whichever has the field.
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any

from ...errors import BadRequest
from ...observability.logging import safe
from ...types import Json
from ..fields import Field, FieldSet, read_one

AUDIO_FORMATS = ("wav", "pcm16")


def _web_search(value: Json) -> bool:
    """Whether it asks for a search; the empty object does, too."""
    return True


def _modalities(value: list[Any]) -> list[str]:
    """The modalities besides text."""
    if not all(isinstance(modality, str) for modality in value):
        raise BadRequest("modalities array must contain strings", param="modalities")
    return [modality for modality in value if modality != "text"]


def _audio(value: Json) -> Json:
    if value.get("format") not in (None, *AUDIO_FORMATS):
        raise BadRequest('audio.format must be "wav" or "pcm16"', param="audio.format")
    return value


UNSUPPORTED = FieldSet((
    Field(name="logit_bias", kind="object", help="OpenAI's: make tokens likelier or less likely"),
    Field(name="modalities", kind="array", help="OpenAI's: text; anything else is not generated", read=_modalities),
    Field(name="audio", kind="object", help="OpenAI's: voice and format of speech", read=_audio),
    Field(name="chunk_frames", kind="uint", low=1, help="OVMS's: frames in a piece of speech",
        wrong="chunk_frames must be a positive integer", outside="chunk_frames must be >= 1"),
    Field(name="functions", kind="array", help="OpenAI's older form of tools"),
    Field(name="function_call", kind="any", help="OpenAI's older form of tool_choice"),
    Field(name="web_search_options", kind="object", help="OpenAI's: search the web", read=_web_search),
    Field(name="echo", kind="bool", help="vLLM's, of chat: begin with the last message; completions have it"),
    Field(name="prompt_logprobs", kind="int", help="vLLM's: alternatives at each place of the prompt"),
    Field(name="logits_processors", kind="array", help="vLLM's: code that changes logits"),
    Field(name="prompt_embeds", kind="any", help="vLLM's: a prompt as embeddings"),
    Field(name="bad_words", kind="array", help="vLLM's: words that must not be generated"),
    Field(name="allowed_token_ids", kind="array", help="vLLM's: the only tokens that may be generated"),
    Field(name="logprob_token_ids", kind="array", help="vLLM's: more tokens to report log probabilities of"),
    Field(name="early_stopping", kind="any", help="vLLM's: when beam search ends"),
    Field(name="thinking_token_budget", kind="int", help="vLLM's: most tokens of reasoning"),
    Field(name="priority", kind="int", help="vLLM's: which request is scheduled first", default=0),
    Field(name="repetition_detection", kind="object", help="vLLM's: end an answer that repeats itself"),
    Field(name="mm_processor_kwargs", kind="object", help="vLLM's: how images are prepared"),
    Field(name="media_io_kwargs", kind="object", help="vLLM's: how media are read"),
    Field(name="return_prompt_text", kind="bool", help="vLLM's: the rendered prompt in the answer"),
    Field(name="kv_transfer_params", kind="object", help="vLLM's: where a KV cache comes from"),
    Field(name="vllm_xargs", kind="object", help="vLLM's: arguments of extensions"),
    Field(name="detokenize", kind="bool", help="vLLM's: false: no text", default=True),
    Field(name="spaces_between_special_tokens", kind="bool", help="vLLM's: false: none", default=True),
    Field(name="enable_response_messages", kind="bool", help="vLLM's: the model's own messages in a response"),
))  # fmt: skip
"""Fields of every generating endpoint, unless the endpoint has the field itself."""

HARMLESS = frozenset((
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("prompt_cache_options", "prediction"),
))  # fmt: skip
"""OpenAI's fields that change no generated text; the Responses API has some of them."""

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""One limit under the names of three APIs, for the suggestion: the first that the endpoint has."""

MAX_UNKNOWN, MAX_NAME = 8, 40
"""Most unknown names that are compared with known ones, and their length: a comparison takes about 0.5 ms."""


def warnings(fields: FieldSet, body: Json) -> list[str]:
    """A line for each field of body that has no effect; fields: those that have. Raises BadRequest for a wrong type."""
    unread = [name for name in body if name not in fields.places]
    ignored = sorted([UNSUPPORTED.places[name] for name in unread if name in UNSUPPORTED.places])
    lines = [
        f"{field.name} is not supported and was ignored"
        for field in [UNSUPPORTED[place] for place in ignored]
        if _requests_effect(field, read_one(field, body[field.name]))
    ]
    unknown = [name for name in unread if name not in UNSUPPORTED.places and name not in HARMLESS]
    for name in [name for name in unknown if len(name) <= MAX_NAME and body[name] is not None][:MAX_UNKNOWN]:
        if near := _near(name, fields.names):
            lines.append(f"{safe(name)} is not a field of this endpoint and was ignored; there is {near}")
    return lines


def _requests_effect(field: Field, value: Any) -> bool:
    """Whether a value asks for something that has no effect."""
    if value is None or value == field.default:
        return False
    empty = value is False or value in ("", [], {})
    return not empty or field.default is True


@lru_cache(1024)
def _near(name: str, known: frozenset[str]) -> str:
    """The known name that is probably meant; "" if none is close."""
    if name in LIMITS:
        return next((limit for limit in LIMITS if limit in known), "")
    return next(iter(difflib.get_close_matches(name.lower(), known, 1)), "")
