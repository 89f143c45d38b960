"""Hostile requests for vectors: huge lists, huge texts, impossible ids, floods. See docs/security.md."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.threats.house import EmbeddingHouse, in_use, open_house, read_answer, request

EMBEDDINGS = "/v1/embeddings"
EXTREMES = [-(2**63), -(2**31) - 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 1e308]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingHouse]:
    flags = ("--task", "embeddings", "--max_body_bytes", str(8 << 20), "--max_queued_requests", "16")
    with open_house(tmp_path_factory.mktemp("embeddings"), *flags, kind=EmbeddingHouse) as house:
        house.settle()
        yield house


@pytest.fixture
def house(shared: EmbeddingHouse) -> Iterator[EmbeddingHouse]:
    """The shared server, in use by a bystander; when the test is over, it must be as it was before."""
    with in_use(shared) as house:
        yield house


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        (["a"] * 1_000_000, "too_many_values"),
        ([[1]] * 500_000, "too_many_values"),
        (["a"] * 2_049, "too_many_inputs"),
        ([[1]] * 100_000, "too_many_inputs"),
        ([1] * 250_000, "context_length_exceeded"),
        ("a" * (7 << 20), "context_length_exceeded"),
    ],
    ids=["million texts", "half a million lists", "texts", "lists", "ids of one input", "one text"],
)
def test_t01_a_million_inputs_are_refused_before_the_engine(house: EmbeddingHouse, inputs: Any, code: str) -> None:
    answer = house.embed(inputs)
    assert answer.status == 400
    assert answer.error["code"] == code


def test_t01_more_tokens_than_one_request_may_have(house: EmbeddingHouse) -> None:
    answer = house.embed(["a" * 500] * 1000)
    assert answer.status == 400
    assert "more than 300000" in answer.error["message"]


def test_t01_as_many_documents_for_one_query(house: EmbeddingHouse) -> None:
    for path, body in (
        ("/rerank", {"query": "a", "documents": ["b"] * 100_000}),
        ("/v3/rerank", {"query": "a", "documents": [{"text": "b"}] * 50_000}),
        ("/score", {"text_1": ["a"] * 50_000, "text_2": ["b"] * 50_000}),
        ("/v2/embed", {"texts": ["a"] * 100_000}),
    ):
        answer = house.post(path, {"model": "m", **body})
        assert (answer.status, answer.error["code"]) == (400, "too_many_inputs")


@pytest.mark.parametrize("inputs", ["", [""] * 100, "\0" * 100, "<bos><eos>" * 20, [257, 256], [256] * 500])
def test_t02_empty_inputs_and_special_tokens_alone(house: EmbeddingHouse, inputs: Any) -> None:
    assert house.embed(inputs).status == 200
    if inputs == "":
        assert house.embed(inputs, add_special_tokens=False).status == 400


@pytest.mark.parametrize("token", [-1, 268, 2**31 - 1, -(2**31), 2**31, 2**63, 2**80])
def test_t03_ids_outside_the_vocabulary(house: EmbeddingHouse, token: int) -> None:
    for inputs in ([1, token], [[1], [token]]):
        answer = house.embed(inputs)
        assert answer.status == 400
        assert answer.error["message"]
    assert house.post("/detokenize", {"model": "m", "tokens": [token]}).status == 400


@pytest.mark.parametrize("field", ["dimensions", "truncate_prompt_tokens", "priority"])
def test_t20_every_number_has_a_range(house: EmbeddingHouse, field: str) -> None:
    for value in EXTREMES:
        answer = house.embed(**{field: value})
        assert answer.status in (200, 400)
        if answer.status == 400:
            assert answer.error["param"] in (field, None)


def test_t23_a_client_that_leaves_a_long_list(house: EmbeddingHouse) -> None:
    """The bystander is served meanwhile, and afterwards nothing waits."""
    for _ in range(4):
        sock = house.connect()
        sock.sendall(request(EMBEDDINGS, {"model": "m", "input": ["b" * 140] * 2000}))
        sock.close()


def test_t28_a_flood_of_inputs_of_one_token(shared: EmbeddingHouse) -> None:
    """Each is answered: served, or refused because the queue is full."""
    body = request(EMBEDDINGS, {"model": "m", "input": [[97]] * 1000})
    sockets: list[socket.socket] = [shared.connect() for _ in range(60)]
    for sock in sockets:
        sock.sendall(body)
    statuses = {read_answer(sock).status for sock in sockets}
    for sock in sockets:
        sock.close()
    assert 200 in statuses
    assert statuses <= {200, 429}
    shared.settle()
