"""Queues requests whose images are not encoded yet. A thread encodes them, image by image, while steps are computed.

The clients take turns. An image that several requests wait for is encoded once, or not at all if all of them are
cancelled before its turn. Everything except the encoding runs in the loop's thread and never blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ....engine.generation.fair_queue import GenerationRequest
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
    missing: set[KnownImage]
    """The images that are not encoded yet."""
    tokens: int = 0
    """The number of image tokens that were encoded for it."""


@dataclass(slots=True, eq=False)
class _Job:
    """An image to encode."""

    known: KnownImage
    """The entry of the image in the cache."""
    image: Image | None
    """The pixels; None after all requests that waited for them were cancelled."""
    number: int
    """The id of the request to which the image's tokens are charged."""
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    """The requests that wait for the image, by their ids."""
    begun: bool = False
    """Whether the thread has the image."""


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
        self._jobs: dict[KnownImage, _Job] = {}
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
        item = _Waiting(request, images, [image.param for image in content], set(images.missing()))
        self._waiting[request.id] = item
        for (_, known), image in zip(images.images, content, strict=True):
            if known not in item.missing:
                continue
            job = self._jobs.get(known)
            if job is None:
                job = self._jobs[known] = _Job(known, image, request.id)
                self._thread.add(request.client or str(request.id), job)
            if not job.waiting:  # all that waited before were cancelled
                job.image, job.number = job.image or image, request.id
            job.waiting[request.id] = item
        self._thread.start()

    def cancel(self, number: int) -> bool:
        """Removes a request that its client cancelled, and pixels that no other needs. Returns whether it waited."""
        item = self._waiting.pop(number, None)
        for known in item.missing if item is not None else ():
            job = self._jobs[known]
            del job.waiting[number]
            if not job.waiting and not job.begun:
                job.image = None
        return item is not None

    def poll(self) -> list[ReleasedRequest]:
        """Stores the embeddings that the thread has computed; returns the requests that no longer wait."""
        outcomes: list[ReleasedRequest] = []
        for job, result in self._thread.poll():
            del self._jobs[job.known]
            if not isinstance(result, RequestError):
                self._cache.store(job.known, result)
            for number, item in job.waiting.items():
                item.missing.remove(job.known)
                if isinstance(result, RequestError):
                    outcomes.append(ReleasedRequest(item.request, 0, _named(item, job.known, result)))
                    self.cancel(number)
                    continue
                item.images.keep(job.known, result)
                item.tokens += len(result) if number == job.number else 0
                if not item.missing:
                    outcomes.append(ReleasedRequest(item.request, item.tokens, None))
                    del self._waiting[number]
        self._thread.start()
        return outcomes

    def _is_wanted(self, job: _Job) -> bool:
        job.begun = bool(job.waiting)
        if not job.begun:  # all requests were cancelled
            del self._jobs[job.known]
        return job.begun

    def _encode(self, job: _Job) -> Rows:
        assert job.image is not None
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
