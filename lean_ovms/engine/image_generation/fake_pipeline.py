"""What --fake_engine selects for image_generation: an image of one color, which depends on prompt and seed."""

from __future__ import annotations

import zlib
from collections.abc import Generator

from ...engine_types import ModelInfo
from ...errors import BadRequest
from ...image_types import ImageInfo, ImageParams

RAISE = "<|raise|>"
"""A prompt with this fails after a step."""
MULTIPLE = 8


class FakeImagePipeline:
    """A task.ImagePipeline without a model."""

    def __init__(self) -> None:
        images = ImageInfo(width=64, height=64, steps=4)
        self.info = ModelInfo(vocab_size=0, context_length=0, versions={"engine": "fake"}, images=images)

    def generate(self, prompt: str, params: ImageParams) -> Generator[None, None, bytes]:
        if params.width % MULTIPLE or params.height % MULTIPLE:
            raise BadRequest(f"Both 'width' and 'height' must be divisible by {MULTIPLE}")
        for _ in range(params.steps):
            yield
            if RAISE in prompt:
                raise RuntimeError("the fake engine was asked to raise")
        color = zlib.crc32(f"{prompt} {params.seed}".encode()).to_bytes(4, "little")[:3]
        return color * (params.width * params.height)
