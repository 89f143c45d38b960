"""Loads the images and videos of a request, from the URLs in its messages to pixels, within the server's limits."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ....api.services import Service
from ....config import Config
from ....errors import BadRequest, counted, errors_of
from ....media.file_slice import FileSlice
from ....observability.records import current_client
from ....types import Image, Json
from ....util.concurrency import Budget, Lease
from ..feature import ImageFileOptions
from .decoder_pool import DecodeJob, DecoderPool
from .fetch import HttpFetcher
from .frame_limits import FrameLimits
from .local_files import LocalFiles
from .source import MAX_URL, FilePath, InlineData, Source, Url, about, check_size, parse_source

LOW_DETAIL_SIDE = 512
"""Side in pixels of the square that an image with detail "low" is shrunk into, as at OpenAI."""
DECODERS, VIDEO_DECODERS = 2, 1
WAITING_REQUESTS = 256
"""Requests with images that may wait for others; the next one is a 503."""
DIGEST_CHARS = 1 << 18
FRAME_LIST = "data:video/jpeg;base64,"
"""The beginning of a list of images as the frames of a video, as vLLM has it."""
FETCHES = 32
"""Fetches at once, over all requests; each may take the whole time limit."""
FETCHED_BYTES = 1 << 28
"""The most bytes of files that are fetched at once, or wait to be decoded, over all requests."""
ReadUpload = Callable[[str, int], Awaitable[bytes]]
Key = tuple[str | bytes | int, str]
"""A key of an image among those of a request, and its detail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """An image or a video that a client asks for."""

    url: str = ""
    """The URL of its content part; "" if there is a file, or its id."""
    file_id: str = ""
    """The id of an uploaded file with the image or video."""
    detail: str = "auto"
    """The detail that the client asks for: "auto", "low", "high" or "original"."""
    param: str
    """The field of the request, for errors."""
    video: bool = False
    """Whether it is a video."""
    file: memoryview | FileSlice | None = None
    """The image itself, instead of a URL."""
    mask: bool = False
    """Whether it is an edit's mask: transparent pixels become white and others black; without any, it becomes grey."""


class _MediaReader:
    """The readers and the decoder of images, or of videos."""

    def __init__(self, options: ImageFileOptions, media: str, max_bytes: int, timeout_s: float, decoders: int) -> None:
        self.max_bytes = max_bytes
        self.decoders = DecoderPool(decoders, timeout_s)
        self.fetcher = HttpFetcher(options, media, max_bytes, timeout_s)
        self.files = LocalFiles(options.allowed_local_media_path, max_bytes)


class ImageLoader(Service):
    """Loads images and videos. A server has one object, which is closed at the end."""

    def __init__(self, config: Config) -> None:
        options = self._options = config.of(ImageFileOptions)
        self._images = _MediaReader(options, "image", options.max_image_bytes, options.image_timeout_s, DECODERS)
        self._videos = _MediaReader(options, "video", options.max_video_bytes, options.video_timeout_s, VIDEO_DECODERS)
        self._fetches = Budget(FETCHES)
        self._fetched = Budget(
            FETCHED_BYTES,
            WAITING_REQUESTS * options.max_image_bytes,
            "too many images are being fetched; please try again later",
            "too_many_images",
        )
        self._pixels = Budget(
            max(options.max_pixels_in_work, options.max_image_pixels),
            WAITING_REQUESTS * options.max_image_pixels,
            "too many images are being decoded; please try again later",
            "too_many_images",
        )

    async def load(
        self, requested: list[ImageRequest], frames: Json | None = None, read_upload: ReadUpload | None = None
    ) -> tuple[list[Image], Lease]:
        """Loads images in order. Returns them, and the lease of the memory budget that their pixels take.

        The lease has to be released when the request is done. A request first takes as much of the budget as it may
        need, so that no request waits while others wait for it, and returns the rest when its images are decoded.
        Before that, what web servers have is fetched, as slow ones must not keep the budget from others.

        Args:
            requested: The images. Of those in files, one at a time is in memory.
            frames: The settings for videos (ChatPrompt.frames).
            read_upload: Returns the content of an uploaded file, given its id and the most bytes that it may have.

        Raises:
            RequestError: An image cannot be loaded, in which case its field is named, or too many requests wait.
        """
        limit = self._options.max_images
        if len(requested) > limit:
            many = counted(len(requested), "image is", "images are")
            raise BadRequest(f"{many} more than this server's limit of {limit}", param=requested[limit].param)
        limits, keys = self._frame_limits(frames or {}), await _keys(requested)
        distinct: dict[Key, ImageRequest] = {}
        for key, request in zip(keys, requested, strict=True):
            distinct.setdefault(key, request)
        fetched, held = await self._fetch(distinct)
        with held:
            lease = await self._pixels.acquire(self._options.max_image_pixels, current_client())
            try:
                found = await self._load_all(distinct, fetched, limits, read_upload)
            except BaseException:
                lease.release()
                raise
        lease.shrink(sum(map(_count_pixels, found.values())))
        return [found[key] for key in keys], lease

    async def _fetch(self, distinct: dict[Key, ImageRequest]) -> tuple[dict[Key, bytes], Lease]:
        """Fetches the first files that are on web servers, as many at once as may be in memory; `_read` fetches others.

        Returns them, and the lease of their memory. Raises RequestError.
        """
        urls, most = dict[Key, Url](), 0
        for key, request in distinct.items():
            url, size = _web_url(request), self._reader(request).max_bytes
            if url is not None and (not urls or most + size <= FETCHED_BYTES):
                urls[key], most = url, most + size
        if not urls:
            return {}, Lease(self._fetched, 0)
        lease = await self._fetched.acquire(most, current_client())
        try:
            fetches = [self._fetch_one(url, distinct[key]) for key, url in urls.items()]
            found = dict(zip(urls, await asyncio.gather(*fetches, return_exceptions=True), strict=True))
            if error := next((each for each in found.values() if isinstance(each, BaseException)), None):
                raise error
        except BaseException:
            lease.release()
            raise
        files = {key: each for key, each in found.items() if isinstance(each, bytes)}
        lease.shrink(sum(map(len, files.values())))
        return files, lease

    async def _fetch_one(self, url: Url, requested: ImageRequest) -> bytes:
        with await self._fetches.acquire(1, current_client()):
            try:
                return await self._reader(requested).fetcher.fetch(url)
            except BadRequest as error:
                raise _named(error, requested) from error

    def _reader(self, requested: ImageRequest) -> _MediaReader:
        return self._videos if requested.video else self._images

    def _frame_limits(self, frames: Json) -> FrameLimits:
        """Returns the limits of a video's frames by the settings of a request. Raises BadRequest."""
        most, count = self._options.max_video_frames, frames.get("num_frames")
        if count is not None and count > most:
            raise BadRequest(
                f"{count} frames of a video are more than this server's limit of {most}",
                param="media_io_kwargs.video.num_frames",
            )
        return FrameLimits(
            num_frames=min(most, self._options.video_num_frames) if count is None else count if count > 0 else most,
            fps=frames.get("fps") or 0.0,
            total_pixels=self._options.max_video_pixels,
            max_s=self._options.max_video_s,
            images=False,
        )

    async def _load_all(
        self,
        distinct: dict[Key, ImageRequest],
        fetched: dict[Key, bytes],
        limits: FrameLimits,
        read_upload: ReadUpload | None,
    ) -> dict[Key, Image]:
        """Reads and decodes images, one after the other.

        Args:
            distinct: The images by their keys.
            fetched: The files of those that have been fetched, each of which is removed when its turn comes.
            limits: The limits of videos.
            read_upload: Returns the content of an uploaded file.

        Raises:
            RequestError: An image cannot be read or decoded.
        """
        found: dict[Key, Image] = {}
        left = self._options.max_image_pixels
        for key, request in distinct.items():
            content = fetched.pop(key, None)
            if request.file_id and read_upload is not None:
                with errors_of(request.param):
                    content = await read_upload(request.file_id, self._reader(request).max_bytes)
            if content is not None:
                request = replace(request, file=memoryview(content))
            found[key] = image = await self._load_one(request, max(0, left), limits)
            left -= _count_pixels(image)
        return found

    async def _load_one(self, requested: ImageRequest, max_pixels: int, limits: FrameLimits) -> Image:
        reader, box, video = self._reader(requested), self._options.max_image_side, None
        if requested.detail == "low":
            box = min(box or LOW_DETAIL_SIDE, LOW_DETAIL_SIDE)
        try:
            source = parse_source(requested.url) if requested.file is None else requested.file
            if requested.video:
                images = isinstance(source, InlineData) and source.text[: source.start].lower() == FRAME_LIST
                video = replace(limits, images=images, total_pixels=min(limits.total_pixels, max_pixels))
            data, start = await self._read(source, reader)
            job = DecodeJob(data=data, start=start, max_pixels=max_pixels, box=box, video=video, mask=requested.mask)
            image = await reader.decoders.decode(job)
        except BadRequest as error:
            raise _named(error, requested) from error
        return replace(image, digest=await asyncio.to_thread(image.content))

    async def _read(
        self, source: Source | memoryview | FileSlice, reader: _MediaReader
    ) -> tuple[bytes | str | memoryview | FileSlice, int]:
        """Returns a file, or a text in base64, and the offset at which the file begins in it. Raises BadRequest."""
        if isinstance(source, memoryview | FileSlice):
            check_size(len(source), reader.max_bytes)
            return source, 0
        if isinstance(source, InlineData):
            check_size((len(source.text) - source.start) // 4 * 3, reader.max_bytes)
            return source.text, source.start
        if isinstance(source, FilePath):
            return await reader.files.read(source.path), 0
        with await self._fetches.acquire(1, current_client()):
            return await reader.fetcher.fetch(source), 0

    async def close(self) -> None:
        """Ends the decoder processes."""
        self._images.decoders.stop()
        self._videos.decoders.stop()


def _count_pixels(image: Image) -> int:
    return len(image.pixels) // 3


def _named(error: BadRequest, requested: ImageRequest) -> BadRequest:
    """Returns an error with the field of the image or video, whose kind it names."""
    message = about(error.message, "video") if requested.video else error.message
    return BadRequest(message, param=error.param or requested.param, code=error.code)


def _web_url(requested: ImageRequest) -> Url | None:
    """Returns the URL of an image on a web server; None for one that is elsewhere, or whose URL is not valid."""
    if requested.file is not None or requested.file_id or len(requested.url) > MAX_URL:
        return None
    with contextlib.suppress(BadRequest):  # it is raised again when the image's turn comes
        if isinstance(source := parse_source(requested.url), Url):
            return source
    return None


async def _keys(requested: list[ImageRequest]) -> list[Key]:
    """Returns a key for each image, which is equal for images with the same URL or file and the same detail only.

    Hashing or comparing texts of 27 MB takes 5 to 15 ms in one call. So for long URLs of the same length, a digest is
    computed in a thread, in pieces, so that other threads can run.
    """
    lengths = Counter(len(request.url) for request in requested)
    keys: list[Key] = []
    for number, request in enumerate(requested):
        key: str | bytes | int
        if request.file_id:
            key = request.file_id.encode("utf-8", "surrogatepass")
        elif len(request.url) <= MAX_URL and request.file is None:
            key = request.url
        elif request.file is not None or lengths[len(request.url)] == 1:
            key = number
        else:
            key = await asyncio.to_thread(_digest, request.url)
        keys.append((key, "video" if request.video else request.detail))
    return keys


def _digest(text: str) -> bytes:
    digest = hashlib.sha256()
    for start in range(0, len(text), DIGEST_CHARS):
        digest.update(text[start : start + DIGEST_CHARS].encode("utf-8", "surrogatepass"))
    return digest.digest()
