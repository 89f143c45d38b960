"""A model that makes images of texts. Knows no HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from ..engine.protocol import GenerateImage
from ..image_types import ImageInfo, ImageParams
from ..observability.records import current_client
from .model import Model, UsageRecorder, too_slow


class ImageModel(Model):
    """Each method that serves a request resolves the model once (`hold`)."""

    task = "image generation"
    endpoints = "/v1/images/generations"
    wrong_task_status = 404
    output_modalities = ("image",)

    @property
    def images(self) -> ImageInfo:
        """What the model makes without further wishes. Raises RequestError if it is not loaded."""
        info = self.serving().info.images
        assert info is not None
        return info

    @property
    def summary(self) -> str:
        return f"{self.task}, {self.images.width}x{self.images.height}, {self.images.steps} steps"

    async def generate(self, prompt: str, wanted: Sequence[ImageParams]) -> list[bytes]:
        """Returns the file of each image, which are made one after the other.

        Stopped in the engine, after the step that is being computed, when the task is cancelled. Raises RequestError.
        """
        with await self.hold() as model, model.recorded(UsageRecorder()) as usage:
            files: list[bytes] = []
            limit_s, client = self.config.request_timeout_s, current_client()
            for params in wanted:
                record = partial(GenerateImage, prompt=prompt, params=asdict(params), begun=bool(files), client=client)
                left_s = usage.started + limit_s - time.monotonic() if limit_s else None
                try:
                    files.append(await asyncio.wait_for(model.engine.call(record), left_s))
                except asyncio.TimeoutError:
                    raise too_slow() from None
                usage.first = usage.first or time.monotonic()
            return files
