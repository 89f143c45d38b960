"""The reader of fields: types, bounds, null, messages, and what a body may be."""

from __future__ import annotations

import orjson
import pytest

from lean_ovms.api.fields import Field, FieldSet, json_body, parsed, read, read_one
from lean_ovms.api.generation.sampling import SAMPLING
from lean_ovms.api.queries import MAX_PARAMETERS, read_query
from lean_ovms.errors import BadRequest, UnsupportedMediaType
from lean_ovms.features.chat import request as chat_request
from lean_ovms.types import Json, Request
from lean_ovms.types.engine import CAPABILITIES
from tests.api.conftest import MakeApp, MakePooling
from tests.api.conftest import post as ask_json
from tests.fakes import say

ALL_FIELDS = {row.name: row for row in SAMPLING}


def post(body: bytes, content_type: str = "application/json") -> Request:
    headers = {"content-type": content_type} if content_type else {}
    return Request("POST", "/", headers=headers, body=body)


def test_a_coded_body_is_refused_by_the_name_of_its_coding() -> None:
    coded = Request("POST", "/", headers={"content-type": "application/json", "content-encoding": "gzip"}, body=b"\x1f")
    with pytest.raises(UnsupportedMediaType, match="Content-Encoding gzip is not supported"):
        json_body(coded)
    plain = Request("POST", "/", headers={"content-encoding": "Identity"}, body=b"{}")
    assert json_body(plain) == {}


def test_a_byte_order_mark_in_front_is_no_part_of_the_body() -> None:
    assert json_body(post("\ufeff{}".encode())) == {}


@pytest.mark.parametrize(
    ("written", "value"),
    [("5", 5), ("5.0", 5), ("1e3", 1000), ("1E+3", 1000), ("0.5e1", 5), ("-0.0", 0), ("25e-1", None)],
)
def test_a_whole_number_is_an_integer_however_it_is_written(written: str, value: int | None) -> None:
    """JSON Schema, with which the OpenAPI document describes the fields, defines integers like this."""
    for name in ("seed", "max_tokens"):
        given = parsed(f'{{"{name}": {written}}}')
        if value is None:
            with pytest.raises(BadRequest, match=f"{name} is not an"):
                read(FieldSet([ALL_FIELDS[name]]), given)
            continue
        found = read(FieldSet([ALL_FIELDS[name]]), given)[name]
        assert (found, type(found)) == (value, int)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [65.0, 66], "max_tokens": 5.0, "seed": 1e3, "stop_token_ids": [3.0]}),
        ("/v1/completions", {"prompt": [[65.0], "x"], "n": 1.0, "allowed_token_ids": [66.0, 67]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1e1,
            "repetition_detection": {"max_pattern_size": 3.0, "min_count": 2.0}}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 16.0, "top_logprobs": 1.0}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2e1,
            "thinking": {"type": "enabled", "budget_tokens": 10.0}}),
        ("/v2/chat", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5.0,
            "thinking": {"type": "enabled", "token_budget": 10.0}}),
        ("/completion", {"prompt": [65.0, "x"], "n_predict": 5.0, "logit_bias": [[66.0, 1]]}),
        ("/tokenize", {"text": "x", "max_length": 5.0}),
        ("/detokenize", {"tokens": [65.0, 66]}),
    ],
)  # fmt: skip
async def test_whole_numbers_in_every_api(make_app: MakeApp, path: str, body: Json) -> None:
    app, engine = await make_app(say("x"), capable=True)
    response = await ask_json(app, path, {"model": "m", **body})
    assert response.status == 200, response.body
    for prompt, sampling in engine.submitted:
        assert type(sampling.max_tokens) in (int, type(None))
        assert not isinstance(prompt, list) or set(map(type, prompt)) == {int}


@pytest.mark.parametrize("given", [[65.0, 66.0], [[65.0], [66]]])
async def test_whole_numbers_in_inputs(make_pooling: MakePooling, given: list[object]) -> None:
    app, engine = await make_pooling()
    assert (await ask_json(app, "/v1/embeddings", {"model": "e", "input": given, "dimensions": None})).status == 200
    assert all(type(token) is int for tokens in engine.asked[-1][0] for token in tokens)


def test_the_parameters_of_a_query_are_limited() -> None:
    limit = FieldSet((Field("limit", "uint", ""),))
    assert read_query(limit, "&".join(["limit=1"] * MAX_PARAMETERS)) == {"limit": 1}
    with pytest.raises(BadRequest, match="more than 100 parameters"):
        read_query(limit, "&".join(["limit=1"] * (MAX_PARAMETERS + 1)))


@pytest.mark.parametrize(("text", "value"), [("5", 5), ("5.0", 5), ("1e1", 10), ("x", None), ("true", None),
    ("-1", None), ("1.5", None), ("", None), ("[5]", None), ("9" * 30, None)])  # fmt: skip
def test_an_integer_of_a_query(text: str, value: int | None) -> None:
    limit = FieldSet((Field("limit", "uint", "", high=100, outside="limit is not an unsigned integer"),))
    assert read_query(limit, "") == {"limit": None}
    if value is not None:
        assert read_query(limit, f"limit=0&limit={text}") == {"limit": value}
        return
    with pytest.raises(BadRequest, match="limit is not an unsigned integer"):
        read_query(limit, f"limit={text}")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", 2.1, "temperature out of range(0.0, 2.0)"),
        ("temperature", "hot", "temperature is not a valid number"),
        ("top_p", 0, "top_p out of range(0.0, 1.0)"),
        ("min_p", 1.0, "min_p out of range [0.0, 1.0)"),
        ("top_k", -2, "top_k must be -1 (all tokens) or a positive integer"),
        ("seed", 2**63, "seed out of range [-9223372036854775807, 9223372036854775807]"),
        ("seed", 1.5, "seed is not an integer"),
        ("max_tokens", -1, "max_tokens is not an unsigned integer"),
        ("max_tokens", 4294967296, "max_tokens value can't be greater than 4294967295"),
        ("ignore_eos", 1, "ignore_eos accepts values true or false"),
        ("frequency_penalty", 3, "frequency_penalty out of range(-2.0, 2.0)"),
        ("stop", 5, "stop is not a string or array of strings"),
        ("stop", ["a", 5], "stop array contains non string element"),
        ("stop", ["a"] * 17, "stop array must have no more than 16 strings"),
        ("stop", ["a" * 4096] * 5, "all stop strings together must have no more than 16384 characters"),
        ("stop", "", "stop strings must not be empty"),
        ("stop_token_ids", [1, -1], "stop_token_ids[1] is not a token id"),
        ("stop_token_ids", [True], "stop_token_ids[0] is not a token id"),
    ],
)
def test_messages_are_those_of_the_contract(name: str, value: object, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_one(ALL_FIELDS[name], value)
    assert caught.value.message == message
    assert caught.value.param == name


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'"text"', b"[]", b"\xff\xfe{}", b'{"a": NaN}', b'{"a": "\\ud8"}', b"[" * 100_000, b"null"],
    ids=lambda b: repr(b[:12]),
)
def test_what_is_not_a_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(BadRequest):
        json_body(post(body))


def test_content_type_decides_whether_the_body_is_read() -> None:
    assert json_body(post(b"{}", "application/json; charset=utf-8")) == {}
    assert json_body(post(b"{}", "application/vnd.api+json")) == {}
    assert json_body(post(b"{}", "")) == {}
    assert json_body(post(b"{}", "application/octet-stream")) == {}  # aiohttp's for bytes, so that of LiteLLM
    with pytest.raises(UnsupportedMediaType):
        json_body(post(b"a=1", "application/x-www-form-urlencoded"))


def test_a_huge_integer_is_out_of_range_not_a_crash() -> None:
    body = json_body(post(b'{"seed": 123456789012345678901234567890, "max_tokens": 1e308}'))
    for name in ("seed", "max_tokens"):
        with pytest.raises(BadRequest):
            read_one(ALL_FIELDS[name], body[name])


@pytest.mark.parametrize("depth", [130, 300, 1000, 100_000])
def test_a_body_that_is_nested_too_deep_is_refused_in_ovms_words(depth: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        body = f'{{"x": {opened * depth}{"1" if closed == "}" else ""}{closed * depth}}}'
        with pytest.raises(BadRequest) as caught:
            json_body(post(body.encode()))
        assert caught.value.message == "JSON body exceeds maximum nesting depth"


@pytest.mark.parametrize(("depth", "good"), [(1, True), (119, True), (300, False), (100_000, False)])
def test_json_that_could_not_be_written_again_is_not_read(depth: int, good: bool) -> None:
    text = "[" * depth + "]" * depth
    for data in (text, text.encode()):
        if good:
            assert orjson.dumps(parsed(data)) == text.encode()
        else:
            with pytest.raises(ValueError, match=r"deep|depth"):
                parsed(data)


@pytest.mark.parametrize(
    ("body", "few"),
    [
        (b'{"a":"' + b"x" * 3_000_000 + b'"}', True),
        (b'{"a":"' + b"\\n" * 1_500_000 + b'"}', False),  # counted with an eighth of the length
        (b"{" + b",".join(b'"%d":0' % n for n in range(60_000)) + b"}", False),  # colons count
        (b'{"a":[' + b"0," * 90_000 + b"0]}", True),
    ],
)
def test_what_is_slow_to_parse_counts_as_values(body: bytes, few: bool) -> None:
    request = Request("POST", "/", body=body)
    if few:
        assert "a" in json_body(request, 100_000)
    else:
        with pytest.raises(BadRequest, match="more than 100000 values"):
            json_body(request, 100_000)


def test_a_field_needs_what_its_sampling_parameter_needs() -> None:
    names = {"prompt_logprobs": "prompt_top_logprobs", "return_progress": "report_progress"}
    needs = {names.get(name, name): need for name, need in chat_request.ALL_FIELDS.needs.items()}
    assert needs.items() <= CAPABILITIES.items()
    assert CAPABILITIES.keys() - needs.keys() == {
        "top_logprobs",
        "cache_salt",
        "speaker",
        "sampler_chain",
    }  # these fields have warnings of their own
