"""Hostile requests for vectors: huge lists, huge texts, impossible ids, floods. See README.md."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import product

import pytest

from tests.threats.target import EmbeddingTarget, in_use, read_answer, request, start_target

EMBEDDINGS = "/v1/embeddings"
EXTREMES = [-(2**63), -(2**31) - 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 1e308]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingTarget]:
    flags = ("--task", "embeddings", "--max_body_bytes", str(8 << 20), "--max_queued_requests", "16")
    with start_target(tmp_path_factory.mktemp("embeddings"), *flags, kind=EmbeddingTarget) as target:
        target.settle()
        yield target


@pytest.fixture
def target(shared: EmbeddingTarget) -> Iterator[EmbeddingTarget]:
    """The shared server, which a bystander uses. After the test, it must be as it was before."""
    with in_use(shared) as target:
        yield target


def test_t01_a_million_inputs_are_refused_before_the_engine(target: EmbeddingTarget) -> None:
    for inputs, code in (
        (["a"] * 1_000_000, "too_many_values"),
        ([[1]] * 500_000, "too_many_values"),
        (["a"] * 2_049, "too_many_inputs"),
        ([[1]] * 100_000, "too_many_inputs"),
        ([1] * 250_000, "context_length_exceeded"),
        ("a" * (7 << 20), "context_length_exceeded"),
    ):
        answer = target.embed(inputs)
        assert (answer.status, answer.error["code"]) == (400, code)
    answer = target.embed(["a" * 500] * 1000)
    assert answer.status == 400
    assert "more than this server's limit of 300000" in answer.error["message"]


def test_t01_as_many_documents_for_one_query(target: EmbeddingTarget) -> None:
    for path, body in (
        ("/rerank", {"query": "a", "documents": ["b"] * 100_000}),
        ("/v3/rerank", {"query": "a", "documents": [{"text": "b"}] * 50_000}),
        ("/score", {"text_1": ["a"] * 50_000, "text_2": ["b"] * 50_000}),
        ("/v2/embed", {"texts": ["a"] * 100_000}),
    ):
        answer = target.post(path, {"model": "m", **body})
        assert (answer.status, answer.error["code"]) == (400, "too_many_inputs")


def test_t02_empty_inputs_and_special_tokens_alone(target: EmbeddingTarget) -> None:
    for inputs in ("", [""] * 100, "\0" * 100, "<bos><eos>" * 20, [257, 256], [256] * 500):
        assert target.embed(inputs).status == 200
    assert target.embed("", add_special_tokens=False).status == 400


def test_t03_ids_outside_the_vocabulary(target: EmbeddingTarget) -> None:
    for token in (-1, 268, 2**31 - 1, -(2**31), 2**31, 2**63, 2**80):
        for inputs in ([1, token], [[1], [token]]):
            answer = target.embed(inputs)
            assert answer.status == 400
            assert answer.error["message"]
        assert target.post("/detokenize", {"model": "m", "tokens": [token]}).status == 400


def test_t20_every_number_has_a_range(target: EmbeddingTarget) -> None:
    for field, value in product(("dimensions", "truncate_prompt_tokens", "priority"), EXTREMES):
        answer = target.embed(**{field: value})
        assert answer.status == 200 or (answer.status == 400 and answer.error["param"] in (field, None))


def test_t23_a_client_that_leaves_a_long_list(target: EmbeddingTarget) -> None:
    """The bystander is served meanwhile, and nothing waits afterwards."""
    for _ in range(4):
        sock = target.connect()
        sock.sendall(request(EMBEDDINGS, {"model": "m", "input": ["b" * 140] * 2000}))
        sock.close()


def test_t28_a_flood_of_inputs_of_one_token(shared: EmbeddingTarget) -> None:
    """Each is served, or rejected because the queue is full."""
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
