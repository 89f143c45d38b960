"""Request fields that are accepted without an effect, each with a warning.

OVMS and vLLM ignore many fields. Here the response gets a Warning header for a field that the engine cannot support,
and for an unknown name that is similar to a known one. A value of the wrong type is a 400 error, as in whichever of the
two has the field.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
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


def audio_in(formats: Sequence[str]) -> Callable[[Json], Json]:
    """Returns the reader of a field `audio` whose format must be one of these, if it has one."""

    def read_audio(value: Json) -> Json:
        if value.get("format") not in (None, *formats):
            raise BadRequest(f"audio.format must be one of: {', '.join(formats)}", param="audio.format")
        return value

    return read_audio


def _at_least(least: float) -> Callable[[float], float | None]:
    """Returns the reader of a number that switches a sampler on from `least` on, and off below it."""
    return lambda value: value if value >= least else None


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
    Field("mirostat", "int", "(llama.cpp) version of the Mirostat sampler", default=0),
    Field("dry_multiplier", "number", "(llama.cpp) strength of the DRY penalty of repetitions", default=0),
    Field("xtc_probability", "number", "(llama.cpp) probability of the XTC sampler", default=0),
    Field("typical_p", "number", "(llama.cpp) probability mass of locally typical sampling", default=1),
    Field("top_n_sigma", "number", "(llama.cpp) keep logits within this many standard deviations of the highest",
        read=_at_least(math.ulp(0.0))),
    Field("dynatemp_range", "number", "(llama.cpp) range of a temperature that depends on the entropy", default=0),
    Field("adaptive_target", "number", "(llama.cpp) probability that tokens are chosen near to", read=_at_least(0)),
    Field("repeat_last_n", "int", "(llama.cpp) latest tokens that penalties count; all are counted", default=-1),
    Field("lora", "array", "(llama.cpp) strengths of LoRA adapters; an adapter has its own model name"),
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
    """Yields a warning for each pair of names whose values differ; the first one takes precedence."""
    for first, second in precedence:
        one, other = values.get(first), values.get(second)
        if one is not None and other is not None and one != other:
            yield f"{second} has no effect: {first} has precedence"


@lru_cache(8)
def _unused_drafting(speculative: str) -> tuple[tuple[str, str], ...]:
    """Returns the fields for draft tokens that this kind of speculative decoding ignores, each with the reason."""
    if not speculative:
        return tuple((name, "the model uses no draft tokens") for name in DRAFTING)
    if speculative == "prompt_lookup":
        return (("assistant_confidence_threshold", "the model has no draft model"),)
    return (("max_ngram_size", "draft tokens come from a draft model, not from the prompt"),)
