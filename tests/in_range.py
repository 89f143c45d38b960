"""The engine trusts the front end with this: every submitted SamplingParams is complete and within range."""

from __future__ import annotations

import math

from lean_ovms.types import SamplingParams

MAX_COUNT = (1 << 31) - 1
COUNTS = {
    "max_tokens": (1, MAX_COUNT),
    "min_tokens": (0, MAX_COUNT),
    "top_k": (0, MAX_COUNT),
    "n": (1, 512),
    "beams": (1, 512),
    "num_assistant_tokens": (0, 64),
    "id_slot": (0, 4095),
    "max_ngram_size": (0, 64),
    "top_logprobs": (0, MAX_COUNT),
    "prompt_top_logprobs": (0, MAX_COUNT),
    "thinking_token_budget": (0, MAX_COUNT),
}
OPTIONAL = ("max_tokens", "thinking_token_budget")
TINY = math.ulp(0)
NUMBERS = {
    "temperature": (0, 100),
    "top_p": (TINY, 1),
    "min_p": (0, math.nextafter(1, 0)),
    "repetition_penalty": (TINY, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "length_penalty": (-100, 100),
    "assistant_confidence_threshold": (0, 1),
}
FLAGS = ("ignore_eos", "logprobs", "prompt_logprobs", "report_progress", "thinking_open")
MAX_STOP_IDS = 4096


def assert_complete(params: SamplingParams) -> None:
    """Raises AssertionError for values that could crash an engine, or make it behave unexpectedly."""
    _assert_numbers(params)
    for ids in (params.stop_token_ids, params.logprob_token_ids):
        assert type(ids) is tuple
        assert len(ids) <= MAX_STOP_IDS
        assert all(type(token) is int for token in ids)
    assert params.allowed_token_ids is None or params.allowed_token_ids
    assert all(type(token) is int for token in params.allowed_token_ids or ())
    assert all(type(token) is int and abs(bias) <= 100 for token, bias in params.logit_bias)
    assert all(type(adapter) is int and abs(scale) <= 100 for adapter, scale in params.lora)
    texts = (*params.bad_words, *params.thinking_tags, params.cache_salt, params.speaker or "")
    assert all(type(text) is str for text in texts)
    assert params.sampler_chain is None or type(params.sampler_chain) is dict
    assert params.early_stopping is True or params.early_stopping in (False, "never")
    if params.repetition is not None:
        shortest, longest, times = params.repetition
        assert 0 < shortest <= longest <= MAX_COUNT
        assert 2 <= times <= MAX_COUNT
    if params.max_tokens is not None:
        assert params.min_tokens <= params.max_tokens
    assert not (params.num_assistant_tokens and params.assistant_confidence_threshold)
    if params.beams > 1:
        assert params.n <= params.beams
        assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0, 0, 1)
    else:
        assert len(params.seeds) == params.n or (params.n == 1 and params.temperature == 0)
    assert all(type(seed) is int and 0 <= seed < 1 << 64 for seed in params.seeds)


def _assert_numbers(params: SamplingParams) -> None:
    for name, (low, high) in COUNTS.items():
        value = getattr(params, name)
        assert type(value) is int or (value is None and name in OPTIONAL), name
        assert value is None or low <= value <= high, name
    for name, (least, most) in NUMBERS.items():
        value = getattr(params, name)
        assert type(value) in (int, float), name
        assert least <= value <= most, name
    for name in FLAGS:
        assert type(getattr(params, name)) is bool, name
