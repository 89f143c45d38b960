"""A fake image model for --fake_engine: images of one color, which depends on all parameters of the request."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from dataclasses import asdict

from ....errors import BadRequest
from ....types import Image
from ....types.engine import ModelInfo
from ..params import ImageInfo, ImageParams

RAISE = "<|raise|>"
"""A prompt with this fails after a step."""
MULTIPLE = 8


class FakeImagePipeline:
    """An ImagePipeline without a model."""

    def __init__(self) -> None:
        images = ImageInfo(width=64, height=64, steps=4, edits=True, masks=True)
        self.info = ModelInfo(vocab_size=0, context_length=0, versions={"engine": "fake"}, of_task=asdict(images))

    def generate(
        self, prompt: str, params: ImageParams, images: Sequence[Image] = ()
    ) -> Generator[bytes | None, None, bytes]:
        if params.width % MULTIPLE or params.height % MULTIPLE:
            raise BadRequest(f"Both 'width' and 'height' must be divisible by {MULTIPLE}", param="size")
        for done in range(1, params.steps + 1):
            shown = params.due(done, params.steps) > params.due(done - 1, params.steps)
            yield bytes([done]) * (3 * params.width * params.height) if shown else None
            if RAISE in prompt:
                raise RuntimeError("the fake engine was asked to raise")
        seen = " ".join([prompt, str(params.seed), *(image.content() for image in images)])
        color = zlib.crc32(seen.encode()).to_bytes(4, "little")[:3]
        return color * (params.width * params.height)
