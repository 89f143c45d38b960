"""Sampling fields of every generating endpoint, and their conversion to SamplingParams and OutputParams.

Precedence: request, then the model's generation_config.json, then the built-in default, as in OVMS.
`do_sample` and `rng_seed` of generation_config.json are not honoured, as in OVMS: temperature decides, and seeds are
random unless given, or set by an option. n without best_of samples n sequences; best_of > 1 is beam search.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...config import Config
from ...errors import BadRequest
from ...manifest import TEXT_SEARCH
from ...types import Json, OutputParams, SamplingParams
from ..fields import UINT32_MAX, Field, FieldSet, Values, read_one, whole
from ..schemas import NOT_ZERO, SOME_TEXT, TOKENS, any_of, array

MAX_BIAS = 100
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


_REPETITION = ("max_pattern_size", "min_pattern_size", "min_count")
_PAGED = "; ignored with a warning unless the pipeline is PAGED"

TOKEN_FIELDS = (
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


MAX_PRIORITY = (1 << 31) - 1
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
    Field("seed", "int", "seed of the random generator; random if absent", low=0, high=UINT32_MAX),
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
        low=-MAX_PRIORITY, high=MAX_PRIORITY, default=0),
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


_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_BUILTIN = {field.name: field.builtin for field in SAMPLING if field.builtin is not None}
_SAME = SAMPLING.names & SamplingParams.__dataclass_fields__.keys() - _BUILTIN.keys()
"""The fields with the same name in SamplingParams, except numbers that have a default."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults for one model's requests: the numbers of its generation_config.json."""

    values: Json
    max_tokens: int = 0
    """The most new tokens if the file has no such number; 0 for as many as the context holds."""

    def number(self, name: str, field: str = "") -> float:
        """Returns a number from the file, or else the built-in default, or 0.

        Raises BadRequest if the request field `field`, by default of the same name, could not have this number.
        """
        value = self.values.get(name)
        if type(value) not in (int, float):
            return _BUILTIN.get(name, 0)
        try:
            return float(read_one(SAMPLING.named(field or name), value))
        except BadRequest as error:
            raise BadRequest(
                f"the model's generation_config.json is invalid: {error.message}", param=error.param
            ) from None

    def flag(self, name: str) -> bool:
        return self.values.get(name) is True

    @property
    def stop(self) -> tuple[str, ...]:
        value = self.values.get("stop_strings") or ()
        stops = [value] if isinstance(value, str) else value
        return tuple(s for s in stops if isinstance(s, str) and s)


def build_sampling(given: Values, defaults: Defaults, config: Config) -> SamplingParams:
    """Builds SamplingParams from the values of the SAMPLING fields.

    A field with the same name in SamplingParams is passed on unchanged; if it is absent, the model's default is used.

    Args:
        given: The field values by name.
        defaults: The defaults of the model, for fields that the client does not set.
        config: The model's configuration.

    Raises:
        BadRequest: Values are incompatible, or exceed the limits of the model's configuration.
    """
    n, beams = _sequences(given, config)
    max_tokens = _max_tokens(given, defaults, config)
    min_tokens = _min_tokens(given, defaults)
    if max_tokens is not None and min_tokens > max_tokens:
        raise BadRequest(f"min_tokens {min_tokens} exceeds max_tokens {max_tokens}", param="min_tokens")
    found = {name: value for name in _SAME if (value := given[name]) is not None}
    found |= {name: defaults.number(name) if (value := given[name]) is None else float(value) for name in _BUILTIN}
    if beams > 1:
        found |= {name: _BUILTIN[name] for name in _PENALTIES}  # which the engine refuses with beams
    seed, budget = given["seed"], given["thinking_token_budget"]
    if seed is None and type(defaults.values.get("seed")) is int:
        seed = int(defaults.number("seed"))
    first = seed if seed is not None else int.from_bytes(os.urandom(8), "little") % UINT32_MAX + 1
    found |= {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "top_k": min(max(int(found["top_k"]), 0), INT32_MAX) if found["temperature"] > 0 and beams == 1 else 0,
        "n": n,
        "beams": beams,
        # Sequences of one request differ in their seeds, and the first equals a request with n = 1.
        "seeds": tuple((first + i) % (UINT32_MAX + 1) for i in range(n)),
        "ignore_eos": defaults.flag("ignore_eos") if given["ignore_eos"] is None else given["ignore_eos"],
        "repetition": given["repetition_detection"],
        "report_progress": bool(given.get("return_progress") and given["stream"]),
        "thinking_token_budget": budget if budget is not None and budget >= 0 else None,
        **_assistance(given, defaults),
    }
    return SamplingParams(**found)


def build_output(given: Values, defaults: Defaults, *, stream: bool) -> OutputParams:
    """Builds OutputParams from the values of a request, whose text is not parsed.

    Args:
        given: The field values by name.
        defaults: The defaults of the model, for fields that the client does not set.
        stream: Whether the response is a stream, whose text includes stop strings by default.
    """
    include = given["include_stop_str_in_output"]
    return OutputParams(
        stop=given["stop"] or defaults.stop,
        include_stop=stream or defaults.flag("include_stop_str_in_output") if include is None else include,
        min_tokens=given["min_tokens"] or 0,
        skip_special_tokens=given["skip_special_tokens"],
    )


def _sequences(given: Values, config: Config) -> tuple[int, int]:
    n, best_of = given["n"], given["best_of"]
    for name, value in (("n", n), ("best_of", best_of)):
        if value == 0:
            raise BadRequest(f"{name} value should be greater than 0", param=name)
        if value is not None and value > config.best_of_limit:
            raise BadRequest(f"{name} exceeds limit of this server: {config.best_of_limit}", param=name)
    n = n or 1
    if best_of is None:
        return n, n if given["use_beam_search"] and n > 1 else 1
    if n > best_of:
        raise BadRequest("n value cannot be greater than best_of", param="n")
    return n, best_of


def _max_tokens(given: Values, defaults: Defaults, config: Config) -> int | None:
    requested, limit = given["max_tokens"], config.max_tokens_limit
    if requested is None:
        if not limit:
            limit = int(defaults.number("max_new_tokens", "max_tokens")) or defaults.max_tokens
        return min(limit, INT32_MAX) or None
    check_max_tokens("max_tokens", requested, config)
    return min(int(requested), limit or INT32_MAX, INT32_MAX)  # the engine counts in 32 bits; no output is that long


def check_max_tokens(name: str, value: int, config: Config) -> None:
    """Raises BadRequest if the value of a field exceeds the server's token limit, unless the server clamps it."""
    if config.max_tokens_limit and value > config.max_tokens_limit and not config.clamp_max_tokens:
        raise BadRequest(f"{name} exceeds limit of this server: {config.max_tokens_limit}", param=name)


def _min_tokens(given: Values, defaults: Defaults) -> int:
    """Returns min_tokens. Of the two names in generation_config.json, vLLM's takes precedence over transformers'."""
    if (requested := given["min_tokens"]) is None:
        name = "min_new_tokens" if defaults.values.get("min_tokens") is None else "min_tokens"
        requested = defaults.number(name, "min_tokens")
    return min(int(requested), INT32_MAX)


def _assistance(given: Values, defaults: Defaults) -> dict[str, Any]:
    if given["num_assistant_tokens"] and given["assistant_confidence_threshold"]:
        text = "num_assistant_tokens and assistant_confidence_threshold are mutually exclusive"
        raise BadRequest(text, param="assistant_confidence_threshold")
    tokens = given["num_assistant_tokens"] or 0
    threshold = given["assistant_confidence_threshold"] or 0.0
    if not tokens and not threshold:
        tokens = int(defaults.number("num_assistant_tokens"))
        threshold = 0.0 if tokens else defaults.number("assistant_confidence_threshold")
    ngram = given["max_ngram_size"] or int(defaults.number("max_ngram_size"))
    return {"num_assistant_tokens": tokens, "assistant_confidence_threshold": threshold, "max_ngram_size": ngram}
