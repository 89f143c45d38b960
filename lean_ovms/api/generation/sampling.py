"""Sampling fields of every generating endpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from ...errors import BadRequest
from ...manifest import TEXT_SEARCH
from ...types import Json
from ..fields import INT64_MAX, UINT32_MAX, Field, FieldSet, whole
from ..schemas import NOT_ZERO, SOME_TEXT, TOKENS, any_of, array

MAX_BIAS = MAX_LORA = 100
MAX_DIGITS = 9
MAX_BAD_WORDS, MAX_BAD_WORD = 256, 256
MAX_LOGPROB_IDS = 128
MAX_PATTERN = 512
MAX_BUDGET = 2147483647


def token_ids(values: list[Any], param: str) -> list[int]:
    """Returns values as token ids, in place, for the engine to check against its vocabulary. Raises BadRequest."""
    for position, value in enumerate(values):
        if type(value) is float:
            value = values[position] = whole(value)
        if type(value) is not int or not 0 <= value <= UINT32_MAX:
            raise BadRequest(f"{param}[{position}] is not a token id", param=param)
    return values


def _logit_bias(value: Json) -> tuple[tuple[int, float], ...]:
    for name, bias in value.items():
        if not (name.isascii() and name.isdecimal() and len(name) <= MAX_DIGITS):
            raise BadRequest(f"logit_bias: {name[:40]!r} is not a token id", param="logit_bias")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise BadRequest(f"logit_bias[{name}] is not a number in [-{MAX_BIAS}, {MAX_BIAS}]", param="logit_bias")
    return tuple((int(name), float(bias)) for name, bias in value.items())


def _allowed(value: list[Any]) -> tuple[int, ...]:
    if not value:
        raise BadRequest("allowed_token_ids must not be empty", param="allowed_token_ids")
    return tuple(token_ids(value, "allowed_token_ids"))


def _bad_words(value: list[Any]) -> tuple[str, ...]:
    if len(value) > MAX_BAD_WORDS:
        raise BadRequest(f"bad_words must have no more than {MAX_BAD_WORDS} strings", param="bad_words")
    for word in value:
        if not isinstance(word, str) or not 0 < len(word) <= MAX_BAD_WORD:
            raise BadRequest(f"bad_words must contain strings of 1 to {MAX_BAD_WORD} characters", param="bad_words")
    return tuple(value)


def few_ids(name: str, most: int) -> Callable[[list[Any]], tuple[int, ...]]:
    """Returns a function that reads a field with at most `most` token ids."""

    def read(value: list[Any]) -> tuple[int, ...]:
        if len(value) > most:
            raise BadRequest(f"{name} must have no more than {most} token ids", param=name)
        return tuple(token_ids(value, name))

    return read


def _early_stopping(value: Any) -> bool | str:
    if value not in (True, False, "never") or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        raise BadRequest('early_stopping must be true, false or "never"', param="early_stopping")
    return bool(value) if value != "never" else "never"


def _repetition(value: Json) -> tuple[int, int, int] | None:
    """Returns vLLM's RepetitionDetectionParams as a tuple; None if max_pattern_size is 0, which means no check."""
    param = "repetition_detection"
    unknown = sorted(set(value) - set(_REPETITION))
    if unknown:
        raise BadRequest(
            f"{param} has an unknown key {unknown[0][:40]!r}; the keys are {', '.join(_REPETITION)}", param=param
        )
    longest, shortest, times = (0 if value.get(name) is None else whole(value[name]) for name in _REPETITION)
    if any(type(number) is not int or number < 0 for number in (longest, shortest, times)):
        raise BadRequest(f"{', '.join(_REPETITION)} of {param} must be unsigned integers", param=param)
    if not longest and not shortest:
        return None
    if shortest > longest or longest > MAX_PATTERN:
        raise BadRequest(
            f"{param}.max_pattern_size must be at least min_pattern_size and at most {MAX_PATTERN}", param=param
        )
    if not 2 <= times <= UINT32_MAX >> 1:
        raise BadRequest(f"{param}.min_count must be at least 2", param=param)
    return shortest or 1, longest, times


def _lora(value: list[Any]) -> tuple[tuple[int, float], ...]:
    """Reads the ids and scales of adapters. Raises BadRequest."""
    pairs: list[tuple[Any, Any]] = [
        (whole(item.get("id")), item.get("scale")) if isinstance(item, dict) else (-1, 0) for item in value
    ]
    for number, scale in pairs:
        if type(number) is not int or number < 0 or type(scale) not in (int, float) or not abs(scale) <= MAX_LORA:
            raise BadRequest(f"lora needs objects with an id and a scale from -{MAX_LORA} to {MAX_LORA}", param="lora")
    return tuple(sorted(dict(pairs).items()))


_REPETITION = ("max_pattern_size", "min_pattern_size", "min_count")
_PAGED = "; ignored with a warning unless the pipeline is PAGED"

TOKEN_FIELDS = (
    Field("lora", "array", f"(llama.cpp) scales of adapters for the model itself: objects with id and scale{_PAGED}",
        needs="adapters", read=_lora,
        schema={"items": {"type": "object", "required": ["id", "scale"], "properties": {
            "id": {"type": "integer", "minimum": 0},
            "scale": {"type": "number", "minimum": -MAX_LORA, "maximum": MAX_LORA}}}}),
    Field("repetition_detection", "object",
        "(vLLM) stop an output that repeats itself: an object with max_pattern_size, min_pattern_size and "
        "min_count", read=_repetition,
        schema={"properties": {name: {"type": "integer", "minimum": 0} for name in _REPETITION},
            "additionalProperties": False}),
    Field("logit_bias", "object",
        f"object whose keys are token ids, and whose values from -{MAX_BIAS} to {MAX_BIAS} are added to their "
        f"logits{_PAGED}",
        needs="logit_edits", read=_logit_bias, schema={"propertyNames": {"pattern": f"^[0-9]{{1,{MAX_DIGITS}}}$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS}}),
    Field("allowed_token_ids", "array",
        f"(vLLM) token ids to which the output is restricted{_PAGED}", needs="logit_edits", read=_allowed,
        schema=TOKENS | {"minItems": 1}),
    Field("bad_words", "array",
        f"(vLLM) words that must not be generated{_PAGED}", needs="logit_edits", read=_bad_words,
        schema={"items": {"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD}, "maxItems": MAX_BAD_WORDS}),
    Field("logprob_token_ids", "array",
        f"(vLLM) report the log probabilities of these token ids instead of those of the likeliest{_PAGED}",
        needs="alternatives", read=few_ids("logprob_token_ids", MAX_LOGPROB_IDS),
        schema=TOKENS | {"maxItems": MAX_LOGPROB_IDS}),
    Field("early_stopping", "any",
        f"when a beam search ends once enough beams are finished: true, false or never{_PAGED}",
        needs="beam_control", seam=TEXT_SEARCH, read=_early_stopping, schema={"enum": [True, False, "never"]}),
    Field("thinking_token_budget", "int",
        f"(vLLM) maximum number of reasoning tokens, after which reasoning is ended; -1 for no limit{_PAGED}",
        needs="logit_edits", low=-1, high=MAX_BUDGET),
)  # fmt: skip


MAX_STOPS = 16
MAX_STOP_LENGTH = 4096
MAX_STOP_CHARACTERS = 16_384
"""The limit for all stop strings together: their automaton is built on the event loop."""
MAX_STOP_IDS = 256
INT32_MAX = 2147483647


def _stop(value: Any) -> tuple[str, ...] | None:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise BadRequest("stop is not a string or array of strings", param="stop")
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"stop array must have no more than {MAX_STOPS} strings", param="stop")
    for stop in stops:
        if not isinstance(stop, str):
            raise BadRequest("stop array contains non string element", param="stop")
        if not stop:
            raise BadRequest("stop strings must not be empty", param="stop")
        if len(stop) > MAX_STOP_LENGTH:
            raise BadRequest(f"each stop string must have no more than {MAX_STOP_LENGTH} characters", param="stop")
    if sum(map(len, stops)) > MAX_STOP_CHARACTERS:
        raise BadRequest(
            f"all stop strings together must have no more than {MAX_STOP_CHARACTERS} characters", param="stop"
        )
    return tuple(dict.fromkeys(stops)) or None


def _truncate(value: int) -> int:
    if value == 0:
        raise BadRequest("truncate_prompt_tokens must be -1 or a positive integer", param="truncate_prompt_tokens")
    return value


def _salt(value: str) -> str:
    if not value:
        raise BadRequest("cache_salt must not be empty", param="cache_salt")
    return value


MAX_SLOT = 4095

_STOP: Json = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
STOPS = array(_STOP) | {"maxItems": MAX_STOPS}

SAMPLING = FieldSet((
    Field("max_tokens", "uint", "maximum number of generated tokens", high=UINT32_MAX,
        outside=f"max_tokens value can't be greater than {UINT32_MAX}"),
    Field("min_tokens", "uint", "minimum number of generated tokens", high=UINT32_MAX),
    Field("temperature", "number",
        "sampling temperature; 0 always takes the likeliest token", low=0, high=2, builtin=1.0),
    Field("top_p", "number", "probability mass for nucleus sampling", above=0, high=1, builtin=1.0),
    Field("top_k", "int", "number of likeliest tokens to sample from; -1 or 0 for all", low=-1, high=UINT32_MAX,
        builtin=40, outside="top_k must be -1 (all tokens) or a positive integer"),
    Field("min_p", "number",
        "minimum probability of a token, as a fraction of that of the likeliest token", low=0, below=1, builtin=0.0),
    Field("repetition_penalty", "number",
        "factor that makes repeated tokens less likely; 1 for none", above=0, high=100, builtin=1.0),
    Field("presence_penalty", "number",
        "penalty for each token that already occurs in the output", low=-2, high=2, builtin=0.0),
    Field("frequency_penalty", "number",
        "penalty for each occurrence of a token in the output", low=-2, high=2, builtin=0.0),
    Field("seed", "int", "seed of the random generator; random if absent or -1", low=-INT64_MAX, high=INT64_MAX),
    Field("n", "uint", "number of choices to return (default 1)", schema={"minimum": 1}),
    Field("best_of", "uint",
        "width of a beam search, which returns the n best texts, if it is above 1", seam=TEXT_SEARCH,
        schema={"minimum": 1}),
    Field("use_beam_search", "bool", "(vLLM) use beam search of width n, instead of setting best_of", seam=TEXT_SEARCH,
        default=False),
    Field("length_penalty", "number",
        "exponent of a text's length in its score; values above 0 favour long texts; only with beam search",
        seam=TEXT_SEARCH, low=-100, high=100, builtin=1.0),
    Field("stop", "any", f"up to {MAX_STOPS} strings that end the output", read=_stop, schema=any_of(_STOP, STOPS)),
    Field("include_stop_str_in_output", "bool", "keep the stop string in the output (default true in streams)"),
    Field("stop_token_ids", "array", "token ids that end the output", read=few_ids("stop_token_ids", MAX_STOP_IDS),
        schema=TOKENS | {"maxItems": MAX_STOP_IDS}),
    Field("ignore_eos", "bool", "continue up to max_tokens, even if the model ends the text"),
    Field("skip_special_tokens", "bool",
        "remove special tokens from the text; false keeps them, and does not parse reasoning or tool calls",
        default=True,
        wrong="skip_special_tokens is not a bool"),
    Field("truncate_prompt_tokens", "int",
        "number of prompt tokens to keep, the last ones unless truncation_side is right; -1 for as many as fit", low=-1,
        high=UINT32_MAX, schema=NOT_ZERO, read=_truncate),
    Field("truncation_side", "string",
        "side of the prompt that truncate_prompt_tokens cuts off: left or right", default="left",
        choices=("left", "right"), outside="truncation_side should be either left or right"),
    Field("priority", "int",
        "(vLLM) among the waiting requests of one client, those with the lowest number start first",
        low=-INT64_MAX, high=INT64_MAX, default=0),
    Field("cache_salt", "string", "(vLLM) share cached prompts only with requests that have the same salt; "
        "ignored with a warning unless the pipeline is PAGED", read=_salt, schema=SOME_TEXT),
    Field("id_slot", "int", "(llama.cpp) slot that keeps the computed prompt, if the server has slots; -1 means slot 0",
        low=-1, high=MAX_SLOT, read=lambda slot: max(0, slot)),
    *TOKEN_FIELDS,
    Field("num_assistant_tokens", "uint", "draft tokens per step; only with a draft model or prompt lookup", high=64),
    Field("assistant_confidence_threshold", "number",
        "the draft model proposes tokens as long as their probability is at least this; only with a draft model",
        low=0, high=1),
    Field("max_ngram_size", "uint",
        "longest sequence of tokens that is looked up in the prompt; only with prompt lookup", high=64),
))  # fmt: skip
"""The sampling parameters of OVMS and vLLM that the engine supports."""


class GenerationFields(FieldSet):
    """The fields of a generating endpoint. Sampling fields that its API lacks always have their defaults."""

    @cached_property
    def defaults(self) -> Json:
        return SAMPLING.defaults | super().defaults
