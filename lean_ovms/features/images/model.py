"""The front end's side of a model that generates and edits images."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count

from ...errors import too_slow
from ...models.model import Model, UsageRecorder
from ...observability.records import current_client
from ...types import Image, Json
from ...types.push import Sink
from .feature import QUEUE_SECONDS, SECONDS
from .params import ImageFile, ImageInfo, ImageParams
from .records import GenerateImage, PartialImage


class ImageModel(Model):
    """A served image model. Each method that serves a request holds the model until the request ends (`hold`)."""

    task = "image generation"
    endpoints = ("/v1/images/generations", "/v1/images/edits", "/v1/images/variations")
    wrong_task_status = 404
    output_modalities = ("image",)

    @property
    def images(self) -> ImageInfo:
        """The description and defaults of the model. Raises RequestError if it is not loaded."""
        return ImageInfo(**self.serving().info.of_task)

    @property
    def reported(self) -> Json:
        return {"images": self.info.of_task}

    @property
    def summary(self) -> str:
        return f"{self.task}, {self.images.width}x{self.images.height}, {self.images.steps} steps"

    async def generate(
        self, prompt: str, wanted: Sequence[ImageParams], images: Sequence[Image], sink: Sink[ImageFile]
    ) -> None:
        """Generates images one after the other, and pushes each as soon as it is finished.

        An unfinished image is pushed without waiting for the reader. If the calling asyncio task is cancelled, the
        engine stops after its current step.

        Args:
            prompt: The description of the images.
            wanted: The parameters of each image.
            images: Nothing, or the image to edit, or this image and its mask.
            sink: Gets the images.

        Raises:
            RequestError: The images cannot be made, or take longer than a request may.
        """
        with await self.hold() as model, model.recorded(UsageRecorder()) as usage:
            limit_s = self.config.request_timeout_s
            record = partial(
                GenerateImage,
                prompt=prompt,
                client=current_client(),
                images=[[image.height, image.width] for image in images],
                pixels=[image.pixels for image in images],
            )
            for number, params in enumerate(wanted):
                make = partial(record, params=asdict(params), begun=bool(number))
                begun = time.monotonic()
                left_s = usage.started + limit_s - begun if limit_s else None
                try:
                    made = await asyncio.wait_for(model.engine.call(make, _unfinished(params, sink)), left_s)
                except asyncio.TimeoutError:
                    raise too_slow() from None
                now = time.monotonic()
                usage.first = usage.first or now
                labels = (model.name,)
                model.metrics.observe(QUEUE_SECONDS, labels, now - begun - made.computed_s)
                model.metrics.observe(SECONDS, labels, made.computed_s)
                await sink.send(ImageFile(made.data, params))


def _unfinished(params: ImageParams, sink: Sink[ImageFile]) -> Callable[[PartialImage], object]:
    """Returns a function that pushes the next unfinished file of an image."""
    numbers = count()
    return lambda partial: sink.push(ImageFile(partial.data, params, next(numbers)))
