"""Request fields that are accepted without an effect, each with a warning.

OVMS and vLLM ignore many fields. Here the response gets a Warning header for a field that the engine cannot support,
and for an unknown name that is similar to a known one. A value of the wrong type is a 400 error, as in whichever of the
two has the field.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

from ...composition import compose
from ...errors import BadRequest
from ...observability.logging import safe
from ...types import Json, SamplingParams
from ..fields import Field, FieldSet, Values, read_one

AUDIO_FORMATS = ("wav", "pcm16")


def _modalities(value: list[Any]) -> list[str]:
    """Returns the requested output modalities other than text."""
    if not all(isinstance(modality, str) for modality in value):
        raise BadRequest("modalities array must contain strings", param="modalities")
    return [modality for modality in value if modality != "text"]


def _audio(value: Json) -> Json:
    if value.get("format") not in (None, *AUDIO_FORMATS):
        raise BadRequest('audio.format must be "wav" or "pcm16"', param="audio.format")
    return value


def _tier(value: str) -> str | None:
    """Returns the service tier that a client requests; None if it is one that this server has anyway."""
    return None if value in ("auto", "default", "standard_only") else value


ACCEPTED = FieldSet((
    Field("user", "string", "OpenAI's: whom the client asks for; accepted, no effect"),
    Field("safety_identifier", "string", "OpenAI's newer name of user; accepted, no effect"),
    Field("prompt_cache_key", "string", "OpenAI's: accepted, no effect: equal prompts are found without it"),
    Field("prompt_cache_retention", "string", "OpenAI's: accepted, no effect: cached prompts stay while there is room"),
))  # fmt: skip
"""Fields of every generating endpoint that are checked, but do not change the answer."""

UNSUPPORTED = FieldSet((
    Field("store", "bool", "OpenAI's: keep the answer; responses have it"),
    Field("metadata", "object", "OpenAI's: kept with a stored answer; responses have it"),
    Field("service_tier", "string", "OpenAI's: there is only one", read=_tier),
    Field("prediction", "object", "OpenAI's: the text that is expected"),
    Field("modalities", "array", "OpenAI's: output types; only text is generated", read=_modalities),
    Field("audio", "object", "OpenAI's: voice and format of speech", read=_audio),
    Field("chunk_frames", "uint", "OVMS's: frames per chunk of speech", low=1,
        wrong="chunk_frames must be a positive integer", outside="chunk_frames must be >= 1"),
    Field("functions", "array", "OpenAI's older form of tools"),
    Field("function_call", "any", "OpenAI's older form of tool_choice"),
    Field("web_search_options", "object", "OpenAI's: options of a web search",
        read=lambda value: True),  # an empty object requests an effect, too
    Field("moderation", "object", "OpenAI's: moderation of input and output; responses refuse it"),
    Field("personality", "string", "OpenAI's: a style preset of its models"),
    Field("echo", "bool", "vLLM's: begin a chat's answer with the last message; completions have it"),
    Field("prompt_logprobs", "int", "vLLM's, for chat and completions: the prompt's log probabilities"),
    Field("timings", "bool", "where no text is generated: llama.cpp's timings"),
    Field("timings_per_token", "bool", "llama.cpp's, where no text is generated: times in every event"),
    Field("return_progress", "bool", "llama.cpp's, where no text is generated: progress of the prompt"),
    Field("logits_processors", "array", "vLLM's: functions that change logits"),
    Field("prompt_embeds", "any", "vLLM's: prompt as embeddings"),
    Field("mm_processor_kwargs", "object", "vLLM's: arguments of the image processor"),
    Field("media_io_kwargs", "object", "vLLM's: arguments of the media loaders; chat has it"),
    Field("return_prompt_text", "bool", "vLLM's: rendered prompt in the response"),
    Field("kv_transfer_params", "object", "vLLM's: parameters of a KV cache transfer"),
    Field("vllm_xargs", "object", "vLLM's: arguments of extensions"),
    Field("detokenize", "bool", "vLLM's; false: token ids without text", default=True),
    Field("spaces_between_special_tokens", "bool", "vLLM's: false: no spaces", default=True),
    Field("enable_response_messages", "bool", "vLLM's: raw messages of the model in a response"),
    Field("return_token_offsets", "bool", "vLLM's: places of the tokens in the prompt"),
    Field("return_weight_versions", "bool", "vLLM's: the version of the weights"),
    Field("routed_experts_prompt_start", "uint", "vLLM's: start of the routed experts", default=0),
    Field("watermarking", "bool", "vLLM's: a watermark in the text"),
    Field("ec_transfer_params", "object", "vLLM's: parameters of an encoder cache transfer"),
    Field("late_chunking_params", "object", "vLLM's: one vector for each part of a text"),
    Field("late_chunking", "bool", "Jina's: inputs are parts of one text"),
    Field("lora_alphas", "any", "OVMS's, for images: strengths of adapters"),
    Field("return_mm_kwargs", "bool", "vLLM's: inputs of the image encoder in a response"),
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
            lines.append(f"{safe(name)} is not a field of this endpoint and was ignored; there is {near}")
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


PRECEDENCE = (("max_completion_tokens", "max_tokens"),)
"""Pairs of names of the same setting. The first has precedence."""
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
ONLY_WITH_BEAMS = {"length_penalty": (1,), "early_stopping": (False,)}
DRAFTING = ("num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size")


def idle_fields(
    values: Values, sampling: SamplingParams, speculative: str | None, dropped: Collection[str] = ()
) -> list[str]:
    """Returns a warning for each field that is set but has no effect in this request.

    Args:
        values: The values of the fields, by the client's names.
        sampling: The sampling parameters made of these values.
        speculative: The model's kind of speculative decoding, "" if it drafts no tokens; None if that is not known yet.
        dropped: Fields that the engine does not support, about which there is another warning.
    """
    lines = list(overruled(values, PRECEDENCE))
    beams = sampling.beams > 1
    for name, nothing in (NOT_WITH_BEAMS if beams else ONLY_WITH_BEAMS).items():
        if values[name] is not None and values[name] not in nothing and name not in dropped:
            lines.append(f"{name} has no effect {'with' if beams else 'without'} beam search")
    if values["truncation_side"] != "left" and values["truncate_prompt_tokens"] is None:
        lines.append("truncation_side has no effect without truncate_prompt_tokens")
    if speculative is not None:
        lines += [f"{name} has no effect: {why}" for name, why in _unused_drafting(speculative) if values[name]]
    return lines


def overruled(values: Values, precedence: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Yields a warning for each pair of names whose second has another value than the first, which takes
    precedence.
    """
    for first, second in precedence:
        one, other = values.get(first), values.get(second)
        if one is not None and other is not None and one != other:
            yield f"{second} has no effect: {first} has precedence"


@lru_cache(8)
def _unused_drafting(speculative: str) -> tuple[tuple[str, str], ...]:
    """Returns the fields for draft tokens that this kind of speculative decoding ignores, each with the reason."""
    if not speculative:
        return tuple((name, "the model has no drafts") for name in DRAFTING)
    if speculative == "prompt_lookup":
        return (("assistant_confidence_threshold", "the model has no draft model"),)
    return (("max_ngram_size", "drafts are not looked up in the prompt"),)
