"""The engine's own check of a request, independent of the front end's. Knows no pipeline.

Values that are legal for openvino_genai's binding and kill or poison the pipeline (a stop id far outside the
vocabulary writes out of bounds, an out-of-range token id with a repetition penalty throws inside the step of all
requests) are refused here as BadRequest that names the field. So every number has a type and a range of its own.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...errors import BadRequest
from ...types import SamplingParams

MAX_COUNT = (1 << 31) - 1
GREEDY_BELOW = 1e-5
"""Temperatures that divide every logit to infinity mean greedy decoding (vLLM's limit too)."""


class Range(NamedTuple):
    """Inclusive bounds, unless low_open or high_open."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def holds(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below


COUNTS = {
    "max_tokens": Range(1, MAX_COUNT),
    "min_tokens": Range(0, MAX_COUNT),
    "top_k": Range(0, MAX_COUNT),
    "n": Range(1, 512),
    "beams": Range(1, 512),
    "num_assistant_tokens": Range(0, 64),
    "max_ngram_size": Range(0, 64),
    "top_logprobs": Range(0, MAX_COUNT),
    "prompt_top_logprobs": Range(0, MAX_COUNT),
    "thinking_token_budget": Range(0, MAX_COUNT),
}
OPTIONAL = ("max_tokens", "thinking_token_budget")
"""Counts that may be None, which is their default."""
NUMBERS = {
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, low_open=True),
    "min_p": Range(0, 1, high_open=True),
    "repetition_penalty": Range(0, 100, low_open=True),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "length_penalty": Range(-100, 100),
    "assistant_confidence_threshold": Range(0, 1),
}
FLAGS = ("ignore_eos", "logprobs", "prompt_logprobs", "report_progress", "thinking_open")
MAX_STOP_IDS = 4096
MAX_IDS = 1 << 19
"""More than the largest vocabularies have tokens; all but one of them may be allowed."""
LISTS = {
    "seeds": MAX_STOP_IDS,
    "stop_token_ids": MAX_STOP_IDS,
    "logprob_token_ids": MAX_STOP_IDS,
    "allowed_token_ids": MAX_IDS,
    "logit_bias": MAX_IDS,
    "bad_words": MAX_STOP_IDS,
    "thinking_tags": 2,
    "repetition": 3,
}
"""Most members of each list."""
NULLABLE = ("allowed_token_ids", "repetition")
TOKENS = ("stop_token_ids", "logprob_token_ids", "allowed_token_ids")
TEXTS = ("bad_words", "thinking_tags")
OTHERS = ("early_stopping", "cache_salt")
MAX_BIAS = 100
MAX_SEED = (1 << 64) - 1


def sampling(fields: dict[str, Any], vocab_size: int, max_sequences: int) -> SamplingParams:
    """The fields of a Submit as SamplingParams. Raises BadRequest with the wrong field."""
    if not fields.keys() <= SamplingParams.__dataclass_fields__.keys():
        for name in fields.keys() - SamplingParams.__dataclass_fields__.keys():
            raise BadRequest(f"{name} is not known to the engine", param=name)
    given = [name for name in LISTS if name in fields and not (name in NULLABLE and fields[name] is None)]
    lists: dict[str, Any] = {name: _list(fields[name], name) for name in given}
    result = SamplingParams(**{**fields, **lists})
    _check_fields(fields, result.seeds)
    for name in TOKENS:
        if ids := getattr(result, name):
            token_ids(list(ids), vocab_size, name)
    _check_logits(result, vocab_size)
    _check_together(result, max_sequences)
    return result


def token_ids(tokens: list[Any], vocab_size: int, param: str) -> None:
    """Every id is an int in [0, vocab_size). Raises BadRequest with the first that is not."""
    # min and max run in C: 4,000 ids in 60 us. A list that passes them can only hide a bool or a float.
    try:
        good = not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size and set(map(type, tokens)) == {int})
    except TypeError:
        good = False
    if good:
        return
    for token in tokens:  # named by itself: a position would be that in one of several prompts, or none of a mapping
        if type(token) is not int or not 0 <= token < vocab_size:
            raise BadRequest(f"{param}: {str(token)[:40]} is not a token id in [0, {vocab_size})", param=param)


def _list(value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or len(value) > LISTS[name]:
        raise BadRequest(f"{name} is not a list of at most {LISTS[name]} members", param=name)
    if name in TEXTS and not all(isinstance(text, str) for text in value):
        raise BadRequest(f"{name} is not a list of strings", param=name)
    if name != "logit_bias":
        return tuple(value)
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        raise BadRequest("logit_bias is not a list of pairs", param=name)
    return tuple(map(tuple, value))


def _check_fields(fields: dict[str, Any], seeds: tuple[Any, ...]) -> None:
    for name, value, span in _given(fields, COUNTS):
        if type(value) is not int:
            raise BadRequest(f"{name} is not an integer", param=name)
        _in_range(name, value, span)
    for name, value, span in _given(fields, NUMBERS):
        if type(value) not in (int, float) or not math.isfinite(value):
            raise BadRequest(f"{name} is not a finite number", param=name)
        _in_range(name, value, span)
    for name in FLAGS:
        if name in fields and type(fields[name]) is not bool:
            raise BadRequest(f"{name} is not a boolean", param=name)
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed <= MAX_SEED:
            raise BadRequest("seed out of range [0, 2^64)", param="seed")


def _given(fields: dict[str, Any], ranges: dict[str, Range]) -> list[tuple[str, Any, Range]]:
    """Fields of the request, with values and ranges."""
    return [
        (name, fields[name], span)
        for name, span in ranges.items()
        if name in fields and not (name in OPTIONAL and fields[name] is None)
    ]


def _check_logits(params: SamplingParams, vocab_size: int) -> None:
    """The fields that change logits or end a text by its tokens. Raises BadRequest."""
    if params.logit_bias:
        token_ids([token for token, _ in params.logit_bias], vocab_size, "logit_bias")
    for token, bias in params.logit_bias:
        if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise BadRequest(f"logit_bias[{token}] out of range(-{MAX_BIAS}, {MAX_BIAS})", param="logit_bias")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise BadRequest("allowed_token_ids is empty", param="allowed_token_ids")
    if not isinstance(params.cache_salt, str):
        raise BadRequest("cache_salt is not a string", param="cache_salt")
    if params.early_stopping not in (True, False, "never"):
        raise BadRequest('early_stopping must be true, false or "never"', param="early_stopping")
    if params.repetition is not None:
        _check_repetition(params.repetition)


def _check_repetition(values: tuple[Any, ...]) -> None:
    if len(values) != 3 or any(type(value) is not int or not 0 < value <= MAX_COUNT for value in values):
        raise BadRequest("repetition_detection is not three positive integers", param="repetition_detection")
    shortest, longest, times = values
    if shortest > longest or times < 2:
        raise BadRequest("repetition_detection is out of range", param="repetition_detection")


def _in_range(name: str, value: float, span: Range) -> None:
    if not span.holds(value):
        raise BadRequest(f"{name} out of range({span.low:g}, {span.high:g})", param=name)


def _check_together(params: SamplingParams, max_sequences: int) -> None:
    """Rules between fields. Some are GenAI's too, where breaking them would poison a step or return a trace."""
    if max(params.n, params.beams) > max_sequences:
        name = "n" if params.n > max_sequences else "best_of"
        raise BadRequest(f"{name} exceeds the limit of {max_sequences}", param=name)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise BadRequest("min_tokens value cannot be greater than max_tokens", param="min_tokens")
    if params.num_assistant_tokens and params.assistant_confidence_threshold:
        raise BadRequest(
            "num_assistant_tokens and assistant_confidence_threshold are mutually exclusive",
            param="num_assistant_tokens",
        )
    if params.beams > 1:
        _check_beams(params)
    elif len(params.seeds) != params.n and (params.n > 1 or params.temperature > 0):
        raise BadRequest(f"{len(params.seeds)} seeds for {params.n} sequences", param="seed")


def _check_beams(params: SamplingParams) -> None:
    if params.n > params.beams:
        raise BadRequest("n value cannot be greater than best_of", param="n")
    if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
        raise BadRequest(
            "presence_penalty, frequency_penalty and repetition_penalty cannot be used with beam search",
            param="best_of",
        )
