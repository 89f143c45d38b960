"""Two small random models of different tasks in one server, over HTTP, compared with torch's results."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from tests.archives import extract
from tests.e2e.conftest import local_server

ZIP = Path(__file__).parents[1] / "data" / "pooling_models.zip"
NAMES = ("bert_cross", "bert_classes")
EXACT = '{"INFERENCE_PRECISION_HINT": "f32"}'

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(ZIP, tmp_path_factory.mktemp("models"), *NAMES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        local_server(model_repository_path=str(folder), plugin_config=EXACT) as local,
        httpx.AsyncClient(base_url=local.url, timeout=300) as client,
    ):
        yield client


def expected(folder: Path, name: str) -> Any:
    return json.loads((folder / name / "expected.json").read_text())


async def ask(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_cross_encoder_scores_as_torch_does(client: httpx.AsyncClient, folder: Path) -> None:
    """The model's config.json says Identity, so vLLM's paths return logits, and OVMS's the sigmoid of these."""
    right = expected(folder, "bert_cross")
    first, second = ([pair[side] for pair in right["pairs"]] for side in (0, 1))
    body = await ask(client, "/score", model="bert_cross", text_1=first, text_2=second)
    logits = np.array(right["values"]).ravel()
    assert [item["score"] for item in body["data"]] == pytest.approx(logits.tolist(), abs=1e-4)
    assert body["usage"]["prompt_tokens"] == sum(map(len, right["ids"]))
    ranked = await ask(client, "/v3/rerank", model="bert_cross", query=first[0], documents=second[:2])
    scores = {result["index"]: result["relevance_score"] for result in ranked["results"]}
    assert scores == pytest.approx({i: 1 / (1 + math.exp(-logits[i])) for i in (0, 1)}, abs=1e-4)


async def test_a_long_document_counts_as_its_best_piece(client: httpx.AsyncClient) -> None:
    document = " ".join(["the quick brown fox jumps over the lazy dog."] * 20)
    body = await ask(client, "/v3/rerank", model="bert_cross", query="fox", documents=[document, "a lazy dog"])
    assert sorted(result["index"] for result in body["results"]) == [0, 1]
    assert body["usage"]["prompt_tokens"] > 200
    error = await ask(client, "/rerank", 400, model="bert_cross", query="fox", documents=[document])
    assert error["error"]["code"] == "context_length_exceeded"


async def test_a_classifier_classifies_as_torch_does(client: httpx.AsyncClient, folder: Path) -> None:
    right = expected(folder, "bert_classes")
    body = await ask(client, "/classify", model="bert_classes", input=right["inputs"])
    logits = np.array(right["values"])
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert [item["probs"] for item in body["data"]] == pytest.approx(probabilities, abs=1e-4)
    assert [item["label"] for item in body["data"]] == [
        ["negative", "neutral", "positive"][best] for best in probabilities.argmax(axis=1)
    ]
