"""The request takes precedence over generation_config.json, which does over built-in values; invalid combinations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lean_ovms.api.fields import read
from lean_ovms.api.generation.sampling import INT32_MAX, SAMPLING
from lean_ovms.config import Config
from lean_ovms.errors import BadRequest
from lean_ovms.features.chat.generation import Defaults, build_output, build_sampling
from lean_ovms.types import SamplingParams
from tests.in_range import assert_complete

OPTIONS = Config()


def sampling(body: dict[str, Any], config: dict[str, Any] | None = None, options: Config = OPTIONS) -> SamplingParams:
    return build_sampling(read(SAMPLING, body), Defaults(config or {}), options)


def test_a_bare_request_is_sampled_at_one_with_the_forty_likeliest() -> None:
    result = sampling({})
    assert (result.temperature, result.top_k, result.top_p, result.max_tokens) == (1.0, 40, 1.0, None)


@pytest.mark.parametrize(
    ("name", "config_name", "of_config", "of_request"),
    [
        ("temperature", "temperature", 0.6, 0.2),
        ("top_p", "top_p", 0.9, 0.5),
        ("top_k", "top_k", 20, 7),
        ("min_p", "min_p", 0.05, 0.1),
        ("repetition_penalty", "repetition_penalty", 1.1, 1.3),
        ("max_tokens", "max_new_tokens", 99, 5),
        ("min_tokens", "min_new_tokens", 3, 2),
        ("length_penalty", "length_penalty", 2.0, 0.5),
    ],
)
def test_request_wins_over_config_wins_over_builtin(
    name: str, config_name: str, of_config: float, of_request: float
) -> None:
    assert getattr(sampling({}, {config_name: of_config}), name) == of_config
    assert getattr(sampling({name: of_request}, {config_name: of_config}), name) == of_request


def test_values_of_the_config_that_are_no_numbers_do_not_count_and_others_are_not_read() -> None:
    odd = {"temperature": True, "top_p": "0.5", "top_k": None, "max_new_tokens": [1], "eos_token_id": 10**400}
    assert sampling({"seed": 1}, odd) == sampling({"seed": 1})


def test_do_sample_and_rng_seed_of_the_config_are_not_honoured() -> None:
    result = sampling({}, {"do_sample": False, "rng_seed": 7})
    assert result.temperature == 1.0
    assert len({sampling({}, {"rng_seed": 7}).seeds for _ in range(4)}) > 1


def test_greedy_needs_no_top_k() -> None:
    assert sampling({"temperature": 0}).top_k == 0


@pytest.mark.parametrize("unlimited", [-1, 0])
def test_top_k_can_be_switched_off(unlimited: int) -> None:
    assert sampling({"top_k": unlimited}).top_k == 0


def test_a_budget_of_no_reasoning_is_one_and_a_negative_one_is_none() -> None:
    assert [sampling({"thinking_token_budget": budget}).thinking_token_budget for budget in (0, -1)] == [0, None]


def test_seeds_differ_per_sequence_and_begin_with_the_one_given() -> None:
    assert sampling({"seed": 5, "n": 3}).seeds == (5, 6, 7)
    assert sampling({"seed": 4294967295, "n": 2}).seeds == (4294967295, 0)


def test_seeds_have_64_bits_of_which_32_count_and_minus_one_is_random() -> None:
    for seed, engines in ((2**40 + 5, 5), (2**63 - 1, 2**32 - 1), (-2, 2**32 - 2), (7 - 2**62, 7)):
        assert sampling({"seed": seed}).seeds == (engines,)
    for given, default in (({"seed": -1}, {}), ({"seed": -1}, {"seed": 7}), ({}, {"seed": -1})):
        assert len({sampling(given, default).seeds for _ in range(4)}) > 1


def test_a_default_seed_is_that_of_requests_without_one() -> None:
    assert sampling({"n": 2}, {"seed": 7}).seeds == (7, 8)
    assert sampling({"seed": 5}, {"seed": 7}).seeds == (5,)
    assert sampling({}, {"seed": None}).seeds != sampling({}, {"seed": None}).seeds


def test_a_default_budget_of_reasoning_is_that_of_requests_without_one() -> None:
    default = {"thinking_token_budget": 64}
    assert [sampling(given, default).thinking_token_budget for given in ({}, {"thinking_token_budget": 8})] == [64, 8]
    assert sampling({"thinking_token_budget": -1}, default).thinking_token_budget is None


def test_n_alone_samples_and_best_of_is_a_beam_search() -> None:
    assert (sampling({"n": 3}).n, sampling({"n": 3}).beams) == (3, 1)
    assert (sampling({"n": 2, "best_of": 4}).n, sampling({"n": 2, "best_of": 4}).beams) == (2, 4)
    assert sampling({"n": 3, "use_beam_search": True}).beams == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 3, "best_of": 2}, "n"),
        ({"n": 0}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"n": 1_000_000}, "n"),
        ({"best_of": 21}, "best_of"),
        ({"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.5}, "assistant_confidence_threshold"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ],
)
def test_impossible_together(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        sampling(body)
    assert caught.value.param == param


def test_beam_search_drops_the_penalties() -> None:
    assert sampling({"best_of": 2}, {"repetition_penalty": 1.1}).repetition_penalty == 1.0
    assert sampling({"best_of": 2, "presence_penalty": 1}).presence_penalty == 0.0


def test_the_limit_is_also_the_default_and_may_be_reached() -> None:
    options = Config(max_tokens_limit=10)
    assert sampling({}, options=options).max_tokens == 10
    assert sampling({"max_tokens": 10}, options=options).max_tokens == 10
    with pytest.raises(BadRequest):
        sampling({"max_tokens": 11}, options=options)


def test_stop_strings_stay_in_streams_and_not_in_whole_answers_unless_said() -> None:
    given = read(SAMPLING, {"stop": "x"})
    assert build_output(given, Defaults({}), stream=True).include_stop is True
    assert build_output(given, Defaults({}), stream=False).include_stop is False
    given = read(SAMPLING, {"stop": ["x", "x"], "include_stop_str_in_output": False})
    output = build_output(given, Defaults({}), stream=True)
    assert (output.include_stop, output.stop) == (False, ("x",))


def test_as_many_stop_strings_and_bad_words_as_the_limits_say_are_accepted() -> None:
    stops = [f"{number:x<1024}" for number in range(16)]
    assert build_output(read(SAMPLING, {"stop": stops}), Defaults({}), stream=False).stop == tuple(stops)
    words = [f"{number:x<256}" for number in range(256)]
    assert sampling({"bad_words": words}).bad_words == tuple(words)
    for fields in ({"stop": [*stops, ""]}, {"stop": [*stops[1:], stops[0] + "x"]}, {"bad_words": [*words, "x"]}):
        with pytest.raises(BadRequest):
            read(SAMPLING, fields)


def test_stop_strings_of_the_config_are_replaced_not_merged() -> None:
    config = Defaults({"stop_strings": ["a"]})
    assert build_output(read(SAMPLING, {}), config, stream=False).stop == ("a",)
    assert build_output(read(SAMPLING, {"stop": "b"}), config, stream=False).stop == ("b",)
    assert build_output(read(SAMPLING, {"stop": []}), config, stream=False).stop == ("a",)


NUMBERS = [math.nan, math.inf, -math.inf, 1e308, 1e-308, -(2**31), -1, 0, 0.5, 1, 2**31, 2**32, 2**63, 10**400]


@pytest.mark.parametrize("name", [field.name for field in SAMPLING if field.kind in ("int", "uint", "number")])
def test_no_number_out_of_range_or_of_another_type_reaches_the_engine(name: str) -> None:
    for value in (*NUMBERS, "1", True, []):
        result = error = None
        try:
            result = sampling({name: value})
        except BadRequest as raised:
            error = raised
        if error is not None:
            assert (error.param, error.message[: len(name)]) == (name, name), value
        if result is not None:  # the request's reader rejects max_tokens 0
            assert_complete(replace(result, max_tokens=result.max_tokens or None))


@pytest.mark.parametrize(
    "name", ["ignore_eos", "logprob_token_ids", "stop_token_ids", "bad_words", "allowed_token_ids", "logit_bias"]
)
def test_no_list_or_flag_of_another_type_reaches_the_engine(name: str) -> None:
    for value in (0, 1, "true", [-1], [2**32], [1.5], [None], [True], {"-1": 1}):
        with pytest.raises(BadRequest) as caught:
            sampling({name: value})
        assert caught.value.param == name, value


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 10**400}, "top_k"),
        ({"max_new_tokens": -3}, "max_tokens"),
        ({"min_new_tokens": -3}, "min_tokens"),
        ({"num_assistant_tokens": 65}, "num_assistant_tokens"),
    ],
)
def test_a_number_of_the_config_that_no_request_could_have_is_refused_unless_the_request_has_its_own(
    given: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest, match=r"generation_config\.json") as caught:
        sampling({}, given)
    assert caught.value.param == param
    own = {"temperature": 1, "top_p": 1, "top_k": 1, "max_tokens": 5, "min_tokens": 1, "num_assistant_tokens": 2}
    assert_complete(sampling({param: own[param]}, given))


def test_counts_beyond_32_bits_are_the_largest_that_the_engine_takes() -> None:
    result = sampling({"min_tokens": 4294967295}, {"max_new_tokens": 4294967295})
    assert (result.min_tokens, result.max_tokens) == (INT32_MAX, INT32_MAX)
