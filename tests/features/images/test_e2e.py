"""A tiny random Stable Diffusion with a graph, in an engine process, with OpenAI's client."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import openvino_genai as genai
import pytest
import pytest_asyncio
from PIL import Image

from lean_ovms.features.images.model import ImageModel
from tests.e2e.conftest import LocalServer, local_server, until
from tests.features.images.fakes import image_adapter, unpacked_image_model

NAME = "stable_diffusion_tiny"
GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node: {
  name: "ImageGenExecutor"
  calculator: "ImageGenCalculator"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "IMAGE_GEN_NODE_RESOURCES:pipes"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  node_options: {
      [type.googleapis.com / mediapipe.ImageGenCalculatorOptions]: {
          models_path: "./"
          device: "CPU"
          plugin_config: '{"INFERENCE_PRECISION_HINT": "f32"}'
          default_resolution: "48x32"
          max_resolution: "512x512"
          default_num_inference_steps: 3
      }
  }
}
"""

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalServer]:
    folder = tmp_path_factory.mktemp("models")
    (unpacked_image_model(folder) / "graph.pbtxt").write_text(GRAPH)
    async with local_server(model_repository_path=str(folder)) as local:
        yield local


def image_model(local: LocalServer) -> ImageModel:
    model: Any = local.model
    assert isinstance(model, ImageModel)
    return model


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def pixels(answer: Any) -> np.ndarray[Any, Any]:
    """Returns the pixels of the only image in a response."""
    [entry] = answer.data
    with Image.open(io.BytesIO(base64.b64decode(entry.b64_json))) as file:
        return np.asarray(file)


async def test_the_images_are_those_of_openvino_genai(local: LocalServer) -> None:
    async with local.client() as client:
        answer = await client.images.generate(model=NAME, prompt="a red cat", n=2, extra_body={"rng_seed": 5})
    assert answer.data is not None
    direct = genai.Text2ImagePipeline(image_model(local).config.model_path, "CPU", INFERENCE_PRECISION_HINT="f32")
    for seed, entry in zip((5, 6), answer.data, strict=True):
        wanted = direct.generate("a red cat", width=48, height=32, num_inference_steps=3, rng_seed=seed).data[0]
        with Image.open(io.BytesIO(base64.b64decode(entry.b64_json or ""))) as file:
            assert np.array_equal(np.asarray(file), wanted)


async def test_openais_client_reads_a_stream(local: LocalServer) -> None:
    fields: dict[str, Any] = {"model": NAME, "prompt": "a red cat", "extra_body": {"rng_seed": 5}}
    picture = png(np.zeros((32, 48, 3), np.uint8))
    async with local.client() as client:
        streams = (
            ("image_generation", await client.images.generate(**fields, stream=True, partial_images=1)),
            ("image_edit", await client.images.edit(**fields, image=picture, stream=True, partial_images=1)),
        )
        wholes = await client.images.generate(**fields), await client.images.edit(**fields, image=picture)
        for (name, stream), whole in zip(streams, wholes, strict=True):
            found = [event async for event in stream]
            partial = [event.partial_image_index for event in found if event.type == f"{name}.partial_image"]
            assert partial in ([], [0])  # steps of microseconds may leave no time for partial images
            assert (found[-1].type, found[-1].b64_json) == (f"{name}.completed", whole.data[0].b64_json)
        with pytest.raises(openai.BadRequestError, match="Prompt 2 is not used"):
            await client.images.generate(model=NAME, prompt="x", stream=True, extra_body={"prompt_2": "y"})


async def test_an_adapter_is_a_model_of_its_own(tmp_path: Path) -> None:
    folder = unpacked_image_model(tmp_path)
    adapter = image_adapter(tmp_path / "a.safetensors")
    async with (
        local_server(model_path=str(folder), model_name="plain", lora_modules=f"pixel={adapter}") as local,
        local.client() as client,
    ):
        assert [model.id async for model in client.models.list()] == ["plain", "pixel"]
        size = {"size": "32x32", "extra_body": {"rng_seed": 5, "num_inference_steps": 2}}
        found = [await client.images.generate(model=name, prompt="x", **size) for name in ("plain", "pixel", "plain")]
        plain, adapted, again = (answer.data[0].b64_json for answer in found)
    assert plain == again != adapted


async def test_a_client_that_leaves_stops_the_work_between_two_steps(local: LocalServer) -> None:
    engine = image_model(local).engine
    before = (await engine.stats()).steps
    async with local.client() as client:
        body = {"num_inference_steps": 100}
        request = client.images.generate(model=NAME, prompt="x", n=10, size="128x128", extra_body=body)
        running = asyncio.create_task(request)

        async def begun() -> bool:
            stats = await engine.stats()
            return stats.running == 1 and stats.steps > before

        async def idle() -> bool:
            stats = await engine.stats()
            return stats.running + stats.queued == 0

        await until(begun)
        running.cancel()
        await asyncio.wait([running])
    await until(idle)
    assert (await engine.stats()).steps - before < 1000
    async with local.client() as client:
        assert (await client.images.generate(model=NAME, prompt="x")).data
