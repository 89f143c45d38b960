"""The images of a request: from what the client said to pixels, within the server's limits. The room's front.

Knows the policy's options and who does what; neither protocols nor formats.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ...config import Config
from ...errors import BadRequest
from ...types import Image
from .decoder_pool import Decoders, Job
from .fetch import HttpFetcher
from .local_files import Shelf
from .source import Inline, Path, parse

LOW_SIDE = 512
"""Sides of the square that an image of low detail fits in, as OpenAI has it."""
DECODERS = 2
FETCHES = 32
"""At once, of all requests; each may wait for its server until the time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An image as a client asks for it. url: what image_url.url says. param: which field said it."""

    url: str
    detail: str
    param: str


class ImageLoader:
    """Gets images. One for a server; close it at the end."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._decoders = Decoders(DECODERS, config.image_timeout_s)
        self._fetching = asyncio.Semaphore(FETCHES)
        self._web = HttpFetcher(config)
        self._shelf = Shelf(config.allowed_local_media_path, config.max_image_bytes)

    async def load(self, wanted: list[Wanted]) -> list[Image]:
        """The images in order. Raises BadRequest that names the field at fault."""
        most = self._config.max_images
        if len(wanted) > most:
            raise BadRequest(
                f"{len(wanted)} images are more than this server's limit: {most}", param=wanted[most].param
            )
        found: dict[tuple[str, str], Image] = {}
        left = self._config.max_image_pixels
        for one in wanted:
            key = one.url, one.detail
            if key not in found:
                found[key] = image = await self._one(one, left)
                left -= image.height * image.width
        return [found[one.url, one.detail] for one in wanted]

    async def _one(self, wanted: Wanted, most_pixels: int) -> Image:
        try:
            job = await self._job(wanted, max(0, most_pixels))
            return await self._decoders.decode(job)
        except BadRequest as error:
            error.param = error.param or wanted.param
            raise

    async def _job(self, wanted: Wanted, most_pixels: int) -> Job:
        box = self._config.max_image_side
        if wanted.detail == "low":
            box = min(box or LOW_SIDE, LOW_SIDE)
        source = parse(wanted.url)
        if isinstance(source, Inline):
            if len(source.data) // 4 * 3 > self._config.max_image_bytes:
                raise BadRequest(f"the image is larger than this server's limit: {self._config.max_image_bytes} bytes")
            data = source.data.encode("ascii", "replace")
            return Job(data=data, most_pixels=most_pixels, base64=True, box=box)
        if isinstance(source, Path):
            return Job(data=await self._shelf.read(source.path), most_pixels=most_pixels, box=box)
        async with self._fetching:
            return Job(data=await self._web.fetch(source), most_pixels=most_pixels, box=box)

    def close(self) -> None:
        """End the decoder processes."""
        self._decoders.stop()
