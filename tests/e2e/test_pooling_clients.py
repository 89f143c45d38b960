"""The clients with which applications embed and rank, with servers of the fake engine's pooling tasks."""

from __future__ import annotations

from collections.abc import Iterator

import cohere
import httpx
import openai
import pytest

from tests.e2e.conftest import Process, start_process


def _server(task: str) -> Iterator[Process]:
    with start_process("--fake_engine", "--task", task, "--model_name", "m") as process:
        process.wait_for("ready: m")
        yield process


@pytest.fixture(scope="module")
def embedder() -> Iterator[Process]:
    yield from _server("embeddings")


@pytest.fixture(scope="module")
def ranker() -> Iterator[Process]:
    yield from _server("rerank")


@pytest.fixture
def embeddings(embedder: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=embedder.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """An HTTP client for Cohere's clients, which do not close their own."""
    with httpx.Client(timeout=300) as client:
        yield client


def test_openais_client_decodes_what_it_asks_for(embeddings: openai.OpenAI) -> None:
    """The client requests base64 unless told otherwise."""
    coded = embeddings.embeddings.create(model="m", input=["one", "two"])
    plain = embeddings.embeddings.create(model="m", input=["one", "two"], encoding_format="float")
    assert [item.index for item in coded.data] == [0, 1]
    for one, other in zip(coded.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)
    assert sum(value * value for value in coded.data[0].embedding) == pytest.approx(1)
    assert coded.usage.prompt_tokens == coded.usage.total_tokens == 10
    tokens = embeddings.embeddings.create(model="m", input=[257, *b"one", 256])
    assert tokens.data[0].embedding == coded.data[0].embedding


@pytest.mark.parametrize("base", ["", "/v3"])
def test_coheres_client_embeds(embedder: Process, http: httpx.Client, base: str) -> None:
    client = cohere.ClientV2(api_key="none", base_url=embedder.url + base, httpx_client=http)
    found = client.embed(
        model="m",
        texts=["one", "two"],
        input_type="query",
        embedding_types=["float", "int8", "uint8", "binary", "ubinary"],
    )
    assert found.embeddings.float_ is not None
    assert [len(vector) for vector in found.embeddings.float_] == [16, 16]
    assert found.embeddings.int8 is not None
    assert found.embeddings.int8[0] == [round(value * 127) for value in found.embeddings.float_[0]]
    assert found.embeddings.ubinary is not None
    assert len(found.embeddings.ubinary[0]) == 2
    assert found.meta is not None
    assert found.meta.billed_units is not None
    assert found.meta.billed_units.input_tokens == 24
    with pytest.raises(cohere.BadRequestError, match="Unsupported input_type"):
        client.embed(model="m", texts=["a"], input_type="clustering")


@pytest.mark.parametrize("base", ["", "/v3"])
def test_coheres_clients_rank(ranker: Process, http: httpx.Client, base: str) -> None:
    documents = ["xyz", "abc", "abx"]
    second = cohere.ClientV2(api_key="none", base_url=ranker.url + base, httpx_client=http)
    found = second.rerank(model="m", query="abc", documents=documents, top_n=2)
    assert [result.index for result in found.results] == [1, 2]
    assert found.results[0].relevance_score > 0.99
    first = cohere.Client(api_key="none", base_url=ranker.url + base, httpx_client=http)
    shown = first.rerank(model="m", query="abc", documents=documents, return_documents=True)
    assert [result.document.text for result in shown.results if result.document] == ["abc", "abx", "xyz"]
    hidden = first.rerank(model="m", query="abc", documents=documents, return_documents=False)
    assert [result.document for result in hidden.results] == [None] * 3
