"""Load the images of a request: from the URLs in its messages to pixels, within the server's limits.

Knows the options and calls the other modules here; knows no protocols and no image formats.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass, replace

from ...config import Config
from ...errors import BadRequest
from ...types import Image
from ...util.budget import Budget, Lease
from .decoder_pool import DecodeJob, DecoderPool
from .fetch import HttpFetcher
from .local_files import LocalFiles
from .source import MAX_URL, FilePath, InlineData, check_size, parse_source

LOW_DETAIL_SIDE = 512
"""Side in pixels of the square that an image with detail "low" is shrunk into, as at OpenAI."""
DECODERS = 2
WAITING_REQUESTS = 256
"""Requests with images that may wait for others; the next one is a 503."""
DIGEST_CHARS = 1 << 18
FETCHES = 32
"""Fetches at once, over all requests; each may take the whole time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """An image that a client asks for. url: its image_url.url. param: the field, for errors."""

    url: str
    detail: str
    param: str


class ImageLoader:
    """Loads images. A server has one; close it at the end."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._decoders = DecoderPool(DECODERS, config.image_timeout_s)
        self._fetches = asyncio.Semaphore(FETCHES)
        self._fetcher = HttpFetcher(config)
        self._pixels = Budget(
            max(config.max_pixels_in_work, config.max_image_pixels),
            WAITING_REQUESTS * config.max_image_pixels,
            "too many images at once",
            "too_many_images",
        )
        self._files = LocalFiles(config.allowed_local_media_path, config.max_image_bytes)

    async def load(self, requested: list[ImageRequest]) -> tuple[list[Image], Lease]:
        """Returns the images in order, and their pixels' part of the budget: to be released when the request is done.

        Raises BadRequest that names the field at fault, and Unavailable. A request takes as much as it may need, so
        that none waits while it keeps others waiting, and gives back the rest when its images are decoded.
        """
        limit = self._config.max_images
        if len(requested) > limit:
            raise BadRequest(
                f"{len(requested)} images are more than this server's limit: {limit}", param=requested[limit].param
            )
        lease = await self._pixels.acquire(self._config.max_image_pixels)
        try:
            images = await self._load_all(requested)
        except BaseException:
            lease.release()
            raise
        lease.shrink(sum(image.height * image.width for image in {id(image): image for image in images}.values()))
        return images, lease

    async def _load_all(self, requested: list[ImageRequest]) -> list[Image]:
        found: dict[tuple[str | bytes | int, str], Image] = {}
        left = self._config.max_image_pixels
        keys = [(key, request.detail) for key, request in zip(await _keys(requested), requested, strict=True)]
        for key, request in zip(keys, requested, strict=True):
            if key not in found:
                found[key] = image = await self._load_one(request, left)
                left -= image.height * image.width
        return [found[key] for key in keys]

    async def _load_one(self, requested: ImageRequest, max_pixels: int) -> Image:
        try:
            job = await self._make_job(requested, max(0, max_pixels))
            image = await self._decoders.decode(job)
        except BadRequest as error:
            error.param = error.param or requested.param
            raise
        return replace(image, digest=await asyncio.to_thread(image.content))

    async def _make_job(self, requested: ImageRequest, max_pixels: int) -> DecodeJob:
        box = self._config.max_image_side
        if requested.detail == "low":
            box = min(box or LOW_DETAIL_SIDE, LOW_DETAIL_SIDE)
        source = parse_source(requested.url)
        if isinstance(source, InlineData):
            check_size((len(source.text) - source.start) // 4 * 3, self._config.max_image_bytes)
            return DecodeJob(data=source.text, start=source.start, max_pixels=max_pixels, box=box)
        if isinstance(source, FilePath):
            return DecodeJob(data=await self._files.read(source.path), max_pixels=max_pixels, box=box)
        async with self._fetches:
            return DecodeJob(data=await self._fetcher.fetch(source), max_pixels=max_pixels, box=box)

    def close(self) -> None:
        """End the decoder processes."""
        self._decoders.stop()


async def _keys(requested: list[ImageRequest]) -> list[str | bytes | int]:
    """Returns what is the same for two images with the same URL, and for no others.

    Hashing or comparing texts of 27 MB takes 5 to 15 ms in one call, so of long ones of the same length a digest is
    computed in a thread, in pieces during which other threads run.
    """
    lengths = Counter(len(request.url) for request in requested)
    keys: list[str | bytes | int] = []
    for number, request in enumerate(requested):
        if len(request.url) <= MAX_URL:
            keys.append(request.url)
        elif lengths[len(request.url)] == 1:
            keys.append(number)
        else:
            keys.append(await asyncio.to_thread(_digest, request.url))
    return keys


def _digest(text: str) -> bytes:
    digest = hashlib.sha256()
    for start in range(0, len(text), DIGEST_CHARS):
        digest.update(text[start : start + DIGEST_CHARS].encode("utf-8", "surrogatepass"))
    return digest.digest()
