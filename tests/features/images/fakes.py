"""The worker's own image task with the fake model, run in this process without a child or a clock; and the tiny
model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lean_ovms.config import Config
from lean_ovms.engine import protocol
from lean_ovms.errors import EngineFailure
from lean_ovms.features.images.child.fake_pipeline import FakeImagePipeline
from lean_ovms.features.images.child.task import ImageTask
from lean_ovms.features.images.model import ImageModel
from lean_ovms.features.images.params import ImageParams
from lean_ovms.features.images.records import GeneratedImage, GenerateImage, PartialImage
from tests.archives import extract
from tests.engine_client_fakes import FakeTaskClient
from tests.makers.make_lora import write


def unpacked_image_model(folder: Path, name: str = "stable_diffusion_tiny") -> Path:
    """Unpacks a tiny random model into a folder, and returns its directory."""
    return extract(Path(__file__).with_name(f"{name}.tar.xz"), folder) / name


def image_adapter(file: Path) -> Path:
    """Writes a LoRA adapter of this model, with the names that kohya's scripts write."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for block in ("down_blocks_1_attentions_0", "up_blocks_0_attentions_0"):
        for layer in ("attn1_to_q", "attn1_to_v", "attn2_to_k", "attn2_to_v"):
            name = f"lora_unet_{block}_transformer_blocks_0_{layer}"
            arrays[f"{name}.lora_down.weight"] = random.normal(size=(4, 16)).astype(np.float32)
            arrays[f"{name}.lora_up.weight"] = random.normal(size=(16, 4)).astype(np.float32)
            arrays[f"{name}.alpha"] = np.array(4.0, np.float32)
    return write(file, arrays)


class FakeImageEngine(FakeTaskClient):
    """The parts of an engine that an ImageModel needs.

    `asked` has prompt and parameters of each image, and whether its request had begun; `sources` the sizes of the
    images to edit; `cancelled` the images that nobody waits for. Images wait for `gate`, if it is set. The engine fails
    for the image with `failing_seed`.
    """

    def __init__(self, config: Config) -> None:
        pipeline = FakeImagePipeline()
        task = ImageTask(pipeline, config.max_queued_requests, config.max_queued_requests_per_client)
        super().__init__(task, pipeline.info)
        self.asked: list[tuple[str, ImageParams, bool]] = []
        self.sources: list[list[list[int]]] = []
        self.cancelled = 0
        self.gate: asyncio.Event | None = None
        self.failing_seed = -1

    async def call(
        self, make: Callable[[int], protocol.Record], on_partial: Callable[[PartialImage], object]
    ) -> GeneratedImage:
        command = make(1)
        assert isinstance(command, GenerateImage)
        self.asked.append((command.prompt, ImageParams(**command.params), command.begun))
        self.sources.append(command.images)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if command.params["seed"] == self.failing_seed:
            raise EngineFailure("the engine failed")
        *partial, record = self.run(command)
        for one in partial:
            assert isinstance(one, PartialImage)
            on_partial(one)
        assert isinstance(record, GeneratedImage)
        return record


async def fake_image_model(**options: Any) -> tuple[ImageModel, FakeImageEngine]:
    """Returns a loaded image model and its engine."""
    chosen = {"fake_engine": True, "model_name": "e", "task": "image_generation", "access_log": False, **options}
    engine = FakeImageEngine(Config(**chosen))
    model = ImageModel(Config(**chosen), engine)  # type: ignore[arg-type]
    await model.load()
    return model, engine
