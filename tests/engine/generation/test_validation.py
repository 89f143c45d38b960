"""Every number and every id has a range of its own before the engine sees it; each refusal names its field."""

import math
from dataclasses import asdict, fields

import pytest

from lean_ovms.engine.generation import validation
from lean_ovms.errors import BadRequest
from lean_ovms.types import SamplingParams

VOCAB = 1000
GOOD = asdict(SamplingParams())


def look(**changes):
    return validation.sampling({**GOOD, **changes}, VOCAB, 20)


def test_the_defaults_pass_unchanged():
    assert look() == SamplingParams()


def test_lists_from_json_become_tuples():
    asked = look(n=2, seeds=[1, 2], stop_token_ids=[5])
    assert (asked.seeds, asked.stop_token_ids) == ((1, 2), (5,))


def test_missing_fields_have_their_defaults():
    assert validation.sampling({"max_tokens": 4}, VOCAB, 20) == SamplingParams(max_tokens=4)


def test_every_field_of_sampling_is_looked_at():
    looked_at = {*validation.COUNTS, *validation.NUMBERS, *validation.FLAGS, *validation.LISTS, *validation.OTHERS}
    assert {f.name for f in fields(SamplingParams)} == looked_at


@pytest.mark.parametrize("name", [*validation.COUNTS, *validation.NUMBERS])
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 1e308, -1, -(2**31), 2**31, 2**63, 2**64, 10**30, "1", True, [], {}, 1e-400j],
)
def test_no_number_out_of_range_or_of_another_type_passes(name, value):
    if name in validation.NUMBERS and value == -1 and validation.NUMBERS[name].low <= -1:
        assert getattr(look(**{name: value}), name) == -1
        return
    with pytest.raises(BadRequest) as caught:
        look(**{name: value})
    assert caught.value.param == name
    assert caught.value.message.startswith(name)


@pytest.mark.parametrize(
    "name", [name for name in validation.COUNTS if name not in validation.OPTIONAL] + [*validation.NUMBERS]
)
def test_null_is_no_number(name):
    with pytest.raises(BadRequest) as caught:
        look(**{name: None})
    assert caught.value.param == name


@pytest.mark.parametrize("name", list(validation.COUNTS))
def test_a_count_is_not_a_float(name):
    with pytest.raises(BadRequest, match=f"{name} is not an integer"):
        look(**{name: 1.0})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_tokens", (1, 2**31 - 1, None), (0,)),
        ("top_p", (1e-9, 1, 0.5), (0, 1.0000001)),
        ("min_p", (0, 0.999), (1,)),
        ("temperature", (0, 1e-30, 100), (100.1, -0.1)),
        ("repetition_penalty", (1e-9, 100), (0, -1, 100.1)),
        ("presence_penalty", (-2, 2), (-2.1, 2.1)),
        ("frequency_penalty", (-2, 2), (-2.1, 2.1)),
        ("length_penalty", (-100, 0, 100), (101,)),
        ("assistant_confidence_threshold", (0, 1), (1.1,)),
        ("num_assistant_tokens", (0, 64), (65,)),
        ("max_ngram_size", (0, 64), (65,)),
        ("top_k", (0, 2**31 - 1), ()),
    ],
)
def test_bounds(name, good, bad):
    for value in good:
        assert getattr(look(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(BadRequest, match=name):
            look(**{name: value})


@pytest.mark.parametrize("name", validation.FLAGS)
@pytest.mark.parametrize("value", [0, 1, None, "true"])
def test_flags_are_booleans(name, value):
    with pytest.raises(BadRequest, match=name):
        look(**{name: value})


@pytest.mark.parametrize("value", [[-1], [VOCAB], [10**30], [1, 2, VOCAB], [True], [1.5], ["a"], [None], "ab", None, 7])
def test_stop_ids_lie_in_the_vocabulary(value):
    with pytest.raises(BadRequest, match="stop_token_ids") as caught:
        look(stop_token_ids=value)
    assert caught.value.param == "stop_token_ids"


def test_the_position_of_a_bad_id_is_in_the_error():
    with pytest.raises(BadRequest, match=r"stop_token_ids: 1000 is not a token id in \[0, 1000\)"):
        look(stop_token_ids=[1, 2, 1000, -1])


def test_stop_ids_have_an_end():
    look(stop_token_ids=[1] * validation.MAX_STOP_IDS)
    with pytest.raises(BadRequest, match="stop_token_ids"):
        look(stop_token_ids=[1] * (validation.MAX_STOP_IDS + 1))


@pytest.mark.parametrize("seeds", [[-1], [2**64], ["1"], [1.0], [None], [True]])
def test_seeds_are_64_bit(seeds):
    with pytest.raises(BadRequest, match="seed"):
        look(seeds=seeds)


def test_a_sampled_request_has_a_seed_for_every_sequence():
    look(n=3, seeds=[1, 2, 3])
    for seeds in ([], [1, 2], [1, 2, 3, 4]):
        with pytest.raises(BadRequest, match="seeds for 3 sequences"):
            look(n=3, seeds=seeds)
    look(temperature=0, seeds=[])
    look(beams=4, n=2, seeds=[])


@pytest.mark.parametrize(("name", "changes"), [("n", {"n": 21}), ("n", {"n": 512}), ("best_of", {"beams": 21})])
def test_sequences_have_a_limit_before_anything_is_made_of_them(name, changes):
    with pytest.raises(BadRequest, match="exceeds the limit of 20") as caught:
        look(**{"seeds": [0] * changes.get("n", 1), **changes})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"beams": 2, "presence_penalty": 0.1}, "best_of"),
        ({"beams": 2, "frequency_penalty": -0.1}, "best_of"),
        ({"beams": 2, "repetition_penalty": 1.1}, "best_of"),
        ({"beams": 2, "n": 3}, "n"),
        ({"num_assistant_tokens": 2, "assistant_confidence_threshold": 0.5}, "num_assistant_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ],
)
def test_what_cannot_go_together_is_refused(changes, param):
    with pytest.raises(BadRequest) as caught:
        look(**changes)
    assert caught.value.param == param


def test_an_unknown_field_is_refused_by_name():
    with pytest.raises(BadRequest, match="num_beam_groups"):
        look(num_beam_groups=0)


@pytest.mark.parametrize("tokens", [[0], [VOCAB - 1], [], list(range(VOCAB))])
def test_ids_in_the_vocabulary_pass(tokens):
    validation.token_ids(tokens, VOCAB, "prompt")


@pytest.mark.parametrize(
    ("tokens", "position"),
    [([VOCAB], 0), ([1, -1], 1), ([1, 2, 10**30], 2), ([True], 0), ([1, None], 1), (["1"], 0), ([[1]], 0), ([1.0], 0)],
)
def test_a_bad_prompt_id_is_in_the_error(tokens, position):
    with pytest.raises(BadRequest) as caught:
        validation.token_ids(tokens, VOCAB, "prompt")
    assert caught.value.message == f"prompt: {tokens[position]} is not a token id in [0, {VOCAB})"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("logprob_token_ids", ((), (0, VOCAB - 1)), ([VOCAB], [-1], [1.0], "1", None)),
        ("allowed_token_ids", (None, (5,)), ([], [VOCAB], [True], {})),
        ("logit_bias", ((), ((1, -100), (2, 0.5))), ([[VOCAB, 1]], [[1, 100.5]], [[1, math.nan]], [[1]], [1], {})),
        ("bad_words", ((), ("x", "a b")), ("x", [1], None)),
        ("thinking_tags", (("<a>", "</a>"),), (["a"] * 3, [1, 2])),
        ("cache_salt", ("", "mine"), (1, None)),
        ("early_stopping", (True, False, "never"), ("always", 2, None)),
        ("repetition", (None, (1, 4, 2)), ([1, 2], [0, 4, 2], [3, 2, 2], [1, 2, 1], [1.0, 2, 2], "123")),
    ],
)
def test_fields_that_change_logits_are_looked_at(name, good, bad):
    for value in good:
        assert getattr(look(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(BadRequest) as caught:
            look(**{name: value})
        assert caught.value.param in (name, "repetition_detection")
