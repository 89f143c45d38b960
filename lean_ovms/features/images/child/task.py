"""The engine task that generates images: one image at a time, one denoising step in each step of the loop.

The loop reads commands between two steps, so a cancelled image ends there. A request orders its next image once it has
the one before. Clients take turns, by the work that was done for each.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from ....config import EngineConfig
from ....engine.protocol import Cancel, Record
from ....engine.task import Task, check_room
from ....errors import BadRequest, RequestError, StartError, install_command
from ....types import Image
from ....types.engine import ModelInfo
from ..params import ImageParams
from ..records import GeneratedImage, GenerateImage, PartialImage

log = logging.getLogger(__name__)


class ImagePipeline(Protocol):
    """A loaded image model. Only the task calls it, from one thread."""

    info: ModelInfo

    def generate(
        self, prompt: str, params: ImageParams, images: Sequence[Image] = ()
    ) -> Generator[bytes | None, None, bytes]:
        """Generates or edits an image. Closing the generator cancels the work.

        Args:
            prompt: The description of the image.
            params: The size, the number of steps and the other parameters.
            images: Nothing, or the image to edit, or it and its mask, which is white where the image should change.

        Yields:
            After each denoising step the pixels of the unfinished image, if another one is due (params.due), else
                None.

        Returns:
            The pixels of the finished image [height, width, RGB], a byte each.

        Raises:
            BadRequest: The model does not support the parameters.
            RuntimeError: The pipeline fails.
        """


def load(config: EngineConfig, _: Callable[[], None]) -> ImageTask:
    """Loads the model that the options name, or the fake one, and returns its task. Raises StartError."""
    if importlib.util.find_spec("PIL") is None:
        raise StartError(f"image generation needs Pillow: {install_command('vision')}")
    pipeline: ImagePipeline
    if config.without_model:
        from .fake_pipeline import FakeImagePipeline

        pipeline = FakeImagePipeline()
    else:
        from .pipeline import GenAiImagePipeline

        pipeline = GenAiImagePipeline(config)
    return ImageTask(pipeline, config.max_queued_requests, config.max_queued_requests_per_client)


class ImageTask(Task):
    """Generates images with one pipeline."""

    def __init__(self, pipeline: ImagePipeline, max_queued: int, max_queued_per_client: int) -> None:
        """Keeps the pipeline.

        Args:
            pipeline: The pipeline.
            max_queued: The most images that may wait.
            max_queued_per_client: The most of these of one client.
        """
        super().__init__(pipeline.info)
        self.pipeline = pipeline
        self.max_queued = max_queued
        self.max_queued_per_client = max_queued_per_client
        self._queue: list[GenerateImage] = []
        self._running: GenerateImage | None = None
        self._steps_of_image: Generator[bytes | None, None, bytes] | None = None
        self._work: dict[str, int] = {}
        self._steps = self._failures = 0
        self._began_at = 0.0

    @property
    def idle(self) -> bool:
        return self._running is None and not self._queue

    def stats(self) -> dict[str, int]:
        return {
            "running": int(self._running is not None),
            "queued": len(self._queue),
            "steps": self._steps,
            "recoveries": self._failures,
        }

    def _handle(self, command: Record) -> None:
        match command:
            case GenerateImage():
                self._add(command)
            case Cancel():
                self._queue = [one for one in self._queue if one.id != command.id]
                if self._running is not None and self._running.id == command.id:
                    self.close()
            case _:
                raise BadRequest("image models do not tokenize texts for clients")

    def _add(self, command: GenerateImage) -> None:
        """Queues an image. Raises TooManyRequests."""
        waiting = [one.client for one in self._queue]
        if not command.begun:
            own = waiting.count(command.client)
            check_room(len(waiting), self.max_queued, own, self.max_queued_per_client)
        # A client that was idle starts with the least work of the waiting clients, so that idle time does not count.
        least = min((self._work[client] for client in waiting), default=0)
        self._work[command.client] = max(self._work.get(command.client, 0), least)
        self._queue.append(command)

    def _next(self) -> GenerateImage:
        """Removes and returns the oldest image of the waiting client that was charged the least, and charges it."""
        command = min(self._queue, key=lambda one: self._work[one.client])
        self._queue.remove(command)
        least = self._work[command.client]
        waiting = {one.client for one in self._queue}
        self._work = {client: done for client, done in self._work.items() if done > least or client in waiting}
        params = ImageParams(**command.params)
        self._work[command.client] = least + params.width * params.height * params.steps
        return command

    def step(self) -> None:
        """Computes one denoising step of an image, and sends the image after the last one."""
        if self._running is None or self._steps_of_image is None:
            command = self._running = self._next()
            self._began_at = time.monotonic()
            images = [Image(size[0], size[1], data) for size, data in zip(command.images, command.pixels, strict=True)]
            command.pixels = []
            self._steps_of_image = self.pipeline.generate(command.prompt, ImageParams(**command.params), images)
        command = self._running
        self._steps += 1
        try:
            if (pixels := next(self._steps_of_image)) is not None:
                self.out.append(PartialImage(command.id, image_file(pixels, ImageParams(**command.params))))
        except StopIteration as done:
            self.close()
            file = image_file(done.value, ImageParams(**command.params))
            self.out.append(GeneratedImage(command.id, time.monotonic() - self._began_at, file))
        except Exception as error:  # the failure affects only this image
            self.close()
            self._failures += not isinstance(error, RequestError)
            self._refuse(command, error)

    def close(self) -> None:
        """Cancels the image that is being generated."""
        if self._steps_of_image is not None:
            self._steps_of_image.close()
        self._running = self._steps_of_image = None
        if not self._queue:
            self._work.clear()


def image_file(pixels: bytes, params: ImageParams) -> bytes:
    from PIL import Image as Picture

    file = io.BytesIO()
    quality = {} if params.format == "png" else {"quality": params.compression}
    Picture.frombytes("RGB", (params.width, params.height), pixels).save(file, params.format, **quality)
    return file.getvalue()
