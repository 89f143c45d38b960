"""Queues requests whose images are not encoded yet. A thread encodes them, image by image, while steps are computed.

The clients take turns. An image that several requests wait for is encoded once, or not at all if all of them are
cancelled before its turn. Everything except the encoding runs in the loop's thread and never blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....engine.generation.sequence import GenerationRequest
from ....engine.generation.worker_thread import WorkerThread
from ....engine.paged.network import Rows
from ....engine.paged.parts import ReleasedRequest
from ....errors import RequestError
from ....types import Image
from .family import VideoFamily, VisionFamily
from .image_cache import ImageCache, KnownImage
from .prompt_images import PromptImages


@dataclass(slots=True)
class _Waiting:
    """A request whose images are not all encoded yet."""

    request: GenerationRequest
    """The request."""
    images: PromptImages
    """The images of its prompt."""
    params: list[str]
    """The field of each image in the request, for errors."""
    tokens: int = 0
    """The number of image tokens that were encoded for it."""


class _Job(NamedTuple):
    known: KnownImage
    """The entry of the cache that gets the embeddings."""
    image: Image
    """The pixels."""
    number: int
    """The id of the request that needed the image first."""


class ImageQueue:
    """A `backend.WaitingRequests` with the requests that wait until a thread has encoded their images."""

    def __init__(self, family: VisionFamily, cache: ImageCache, wake: Callable[[], None]) -> None:
        """Creates the queue and its thread, which starts with the first request.

        Args:
            family: Encodes the images.
            cache: Keeps their embeddings.
            wake: Wakes up the engine's loop. The thread calls it.
        """
        self._family = family
        self._cache = cache
        self._waiting: dict[int, _Waiting] = {}
        self._queued: set[KnownImage] = set()
        self._thread: WorkerThread[_Job, Rows] = WorkerThread(
            "vision", self._encode, wake, "the engine failed while it encoded the image", wanted=self._is_wanted
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def waiting_of(self, client: str) -> int:
        return sum(item.request.client == client for item in self._waiting.values())

    def add(self, request: GenerationRequest, images: PromptImages, content: Sequence[Image]) -> None:
        """Queues a request, which `poll` returns once its images are encoded.

        Args:
            request: The request.
            images: The images of its prompt.
            content: The pixels of these images, in the same order.
        """
        self._waiting[request.id] = _Waiting(request, images, [image.param for image in content])
        missing = images.missing()
        for (_, known), image in zip(images.images, content, strict=True):
            if known in missing and known not in self._queued:
                self._queued.add(known)
                self._thread.add(request.client or str(request.id), _Job(known, image, request.id))
        self._thread.start()

    def cancel(self, number: int) -> bool:
        """Removes a request that its client cancelled. Returns whether it was waiting."""
        return self._waiting.pop(number, None) is not None

    def poll(self) -> list[ReleasedRequest]:
        """Stores the embeddings that the thread has computed; returns the requests that no longer wait."""
        outcomes: list[ReleasedRequest] = []
        for job, result in self._thread.poll():
            self._queued.remove(job.known)
            if isinstance(result, RequestError):
                outcomes += [
                    ReleasedRequest(item.request, 0, _named(item, job.known, result)) for item in self._of(job.known)
                ]
            else:
                self._cache.store(job.known, result)
                if (item := self._waiting.get(job.number)) is not None:
                    item.tokens += len(result)
                outcomes += [
                    ReleasedRequest(i.request, i.tokens, None) for i in self._of(job.known) if not i.images.missing()
                ]
        for outcome in outcomes:
            del self._waiting[outcome.request.id]
        self._thread.start()
        return outcomes

    def _of(self, known: KnownImage) -> list[_Waiting]:
        return [item for item in self._waiting.values() if any(one is known for _, one in item.images.images)]

    def _is_wanted(self, job: _Job) -> bool:
        wanted = bool(self._of(job.known))
        if not wanted:  # all requests were cancelled
            self._queued.remove(job.known)
        return wanted

    def _encode(self, job: _Job) -> Rows:
        if not job.image.times:
            return self._family.encode(job.image)
        assert isinstance(self._family, VideoFamily)
        return self._family.encode_frames(job.image, job.known.layout)


def _named(item: _Waiting, known: KnownImage, error: RequestError) -> RequestError:
    """Returns the error of an image with the field that the image has in a request.

    Args:
        item: The request.
        known: The image.
        error: The error.
    """
    param = next(name for name, (_, one) in zip(item.params, item.images.images, strict=True) if one is known)
    return type(error)(f"{param}: {error}", param=param)
