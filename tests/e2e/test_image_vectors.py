"""CLIP and SigLIP, small and random, over HTTP and with clients: vectors of texts and of images in one space."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from PIL import Image

from tests.archives import extract
from tests.e2e.conftest import local_server
from tests.features.vision.child.models import unpacked
from tests.pictures import data_url, file, part, user

ZIP = Path(__file__).parents[1] / "data" / "pooling_models.zip"
NAMES = ("clip", "siglip", "bert_mean")
EXACT = '{"INFERENCE_PRECISION_HINT": "f32"}'

TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}{{ part.text }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = extract(ZIP, tmp_path_factory.mktemp("models"), *NAMES)
    (path / "qwen-embed").mkdir()
    (Path(unpacked("qwen3_vl", path / "qwen-embed")) / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(folder: Path) -> AsyncIterator[str]:
    options: dict[str, Any] = {"plugin_config": EXACT, "max_images": 4, "max_image_pixels": 1 << 20}
    async with local_server(model_repository_path=str(folder), **options) as local:
        yield local.url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        yield client


def expected(folder: Path, name: str) -> tuple[list[str], list[str], np.ndarray[Any, Any]]:
    """Returns texts, images as URLs, and the vectors of both."""
    right = json.loads((folder / name / "expected.json").read_text())
    urls = []
    for height, width, data in right["images"]:
        image = Image.frombytes("RGB", (width, height), base64.b64decode(data))
        urls.append(f"data:image/png;base64,{base64.b64encode(file(image)).decode()}")
    vectors = np.array(right["values"])
    return right["inputs"], urls, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


async def ask(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def alike(rows: Any, wanted: Any) -> bool:
    return bool((np.sum(np.array(rows) * wanted, axis=1) > 0.9999).all())


@pytest.mark.parametrize("name", ["clip", "siglip"])
async def test_openais_client_gets_what_torch_computes(url: str, folder: Path, name: str) -> None:
    texts, images, vectors = expected(folder, name)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as openai:
        found = await openai.embeddings.create(model=name, input=texts)
        assert alike([one.embedding for one in found.data], vectors[: len(texts)])
        for address, vector in zip(images, vectors[len(texts) :], strict=True):
            one = await openai.embeddings.create(  # vLLM's form
                model=name, input=None, extra_body={"messages": [user(part(address))]}, encoding_format="float"
            )
            assert alike([one.data[0].embedding], vector)
            assert one.usage.prompt_tokens == 1
        spoken = await openai.embeddings.create(model=name, input=None, extra_body={"messages": [user(texts[0])]})
        assert alike([spoken.data[0].embedding], vectors[0])  # with special tokens and without a template


async def test_texts_and_images_in_jinas_form(client: httpx.AsyncClient, folder: Path) -> None:
    texts, images, vectors = expected(folder, "clip")
    given = [{"text": texts[0]}, {"image": images[1]}, texts[1]]
    body = await ask(client, "/v1/embeddings", model="clip", input=given)
    assert alike([one["embedding"] for one in body["data"]], vectors[[0, len(texts) + 1, 1]])
    wrong = await ask(client, "/v1/embeddings", 400, model="clip", input=["a", {"image": "data:image/png;base64,AAAA"}])
    assert wrong["error"]["param"].startswith("input[1]")


async def test_coheres_client_embeds_images(url: str, folder: Path) -> None:
    texts, images, vectors = expected(folder, "siglip")
    async with cohere.AsyncClientV2(api_key="none", base_url=url) as client:
        found = await client.embed(model="siglip", images=images, input_type="image", embedding_types=["float", "int8"])
        assert alike(found.embeddings.float_, vectors[len(texts) :])
        assert found.meta is not None
        assert found.meta.billed_units is not None
        assert found.meta.billed_units.image_tokens == len(images)
    async with httpx.AsyncClient(base_url=url, timeout=300) as plain:
        inputs = [{"content": [{"type": "text", "text": texts[0]}]}, {"content": [part(images[2])]}]
        body = await ask(plain, "/v2/embed", model="siglip", inputs=inputs, input_type="search_document")
        assert alike(body["embeddings"]["float"], vectors[[0, len(texts) + 2]])
        assert body["meta"]["billed_units"]["image_tokens"] == 1


async def test_a_language_model_embeds_texts_with_images(client: httpx.AsyncClient) -> None:
    """tests/features/pooling/child/test_images_in_text.py compares the numbers."""

    async def vector(status: int = 200, **body: Any) -> Any:
        found = await ask(client, "/v1/embeddings", status, model="qwen-embed", **body)
        return np.array(found["data"][0]["embedding"]) if status == 200 else found["error"]

    red, blue = part(data_url()), part(data_url("blue"))
    one = await vector(messages=[user(red, "Which colors?")], add_generation_prompt=True)
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-4)
    assert alike([await vector(messages=[user(red, "Which colors?")], add_generation_prompt=True)], one)
    for other in ([blue, "Which colors?"], ["Which colors?", red], [red, blue, "Which colors?"], ["Which colors?"]):
        assert not alike([await vector(messages=[user(*other)], add_generation_prompt=True)], one)
    embedded = await ask(client, "/v2/embed", model="qwen-embed", images=[data_url()], input_type="image")
    assert alike(embedded["embeddings"]["float"], await vector(messages=[user(red)]))
    assert embedded["meta"]["billed_units"]["image_tokens"] > 4
    error = await vector(400, messages=[user(red, "<|image_pad|>")])
    assert error["message"] == "Message contains <|image_pad|>, the placeholder of an image"
