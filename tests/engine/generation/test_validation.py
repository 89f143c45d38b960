"""All ids in a request must be in the vocabulary before the engine gets them; each error names its field."""

from dataclasses import asdict, fields

import pytest

from lean_ovms.engine.generation import request_validator
from lean_ovms.errors import BadRequest
from lean_ovms.types import SamplingParams
from tests import in_range

VOCAB = 1000


def look(**changes):
    return request_validator.read_sampling({**asdict(SamplingParams()), **changes}, VOCAB)


def test_the_defaults_pass_unchanged_and_are_complete():
    assert look() == SamplingParams()
    in_range.assert_complete(look())


def test_lists_from_json_become_tuples():
    asked = look(n=2, seeds=[1, 2], stop_token_ids=[5], logit_bias=[[5, 1.5]], repetition=[1, 2, 3])
    assert (asked.seeds, asked.stop_token_ids) == ((1, 2), (5,))
    assert (asked.logit_bias, asked.repetition) == (((5, 1.5),), (1, 2, 3))


def test_missing_fields_have_their_defaults():
    assert request_validator.read_sampling({"max_tokens": 4}, VOCAB) == SamplingParams(max_tokens=4)


@pytest.mark.parametrize("field", fields(SamplingParams), ids=lambda field: field.name)
def test_no_field_is_complete_with_a_value_of_another_type(field):
    with pytest.raises((AssertionError, TypeError)):
        in_range.assert_complete(look(**{field.name: object()}))


@pytest.mark.parametrize("name", [*request_validator.TOKENS, "logit_bias"])
@pytest.mark.parametrize("ids", [[-1], [VOCAB], [10**30], [1, 2, VOCAB]])
def test_ids_lie_in_the_vocabulary(name, ids):
    with pytest.raises(BadRequest, match=rf"{name}: {ids[-1]} is not a token id in \[0, {VOCAB}\)") as caught:
        look(**{name: [[token, 1.0] for token in ids] if name == "logit_bias" else ids})
    assert caught.value.param == name


@pytest.mark.parametrize("tokens", [[0], [VOCAB - 1], [], list(range(VOCAB))])
def test_ids_in_the_vocabulary_pass(tokens):
    request_validator.check_token_ids(tokens, VOCAB, "prompt")


@pytest.mark.parametrize(("tokens", "wrong"), [([VOCAB], VOCAB), ([1, -1], -1), ([1, 2, 10**30, -1], 10**30)])
def test_the_first_bad_id_of_a_prompt_is_in_the_error(tokens, wrong):
    with pytest.raises(BadRequest) as caught:
        request_validator.check_token_ids(tokens, VOCAB, "prompt")
    assert caught.value.message == f"prompt: {wrong} is not a token id in [0, {VOCAB})"
