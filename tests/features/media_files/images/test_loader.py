"""Images of one request: what is fetched at once, and what their memory waits for. Nothing is fetched or decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.images import loader as module
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob, DecoderPool
from lean_ovms.features.media_files.images.fetch import HttpFetcher
from lean_ovms.features.media_files.images.loader import ImageLoader, ImageRequest
from lean_ovms.features.media_files.images.source import Url
from lean_ovms.types import Image
from tests.waiting import cancel, until


class Web:
    """A web server whose files arrive when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        """The paths that were fetched, in order."""
        self.arrived = asyncio.Event()
        monkeypatch.setattr(HttpFetcher, "fetch", lambda _, url: self.fetch(url))
        monkeypatch.setattr(DecoderPool, "decode", self.decode)

    async def fetch(self, url: Url) -> bytes:
        self.asked.append(url.target)
        await self.arrived.wait()
        if url.target == "/missing":
            raise BadRequest("Image downloading failed")
        return url.target.encode()

    @staticmethod
    async def decode(_: DecoderPool, job: DecodeJob) -> Image:
        return Image(1, 1, bytes(3), seconds=len(job.data))


@pytest.fixture
async def web(monkeypatch: pytest.MonkeyPatch) -> Web:
    return Web(monkeypatch)


@pytest.fixture
async def loader() -> AsyncIterator[ImageLoader]:
    made = ImageLoader(Config(fake_engine=True, max_image_bytes=100, max_video_bytes=100))
    yield made
    assert (made._pixels.used, made._fetched.used) == (0, 0)
    await made.close()


def named(*paths: str, video: bool = False) -> list[ImageRequest]:
    return [ImageRequest(url=f"http://a.example/{path}", param=path, video=video) for path in paths]


async def test_the_images_of_a_request_are_fetched_together_and_keep_no_pixels_from_others(
    web: Web, loader: ImageLoader
) -> None:
    loading = asyncio.create_task(loader.load(named("a", "bb", "a", "ccc")))
    await until(lambda: web.asked == ["/a", "/bb", "/ccc"])
    assert (loader._pixels.used, loader._fetched.used) == (0, 300)
    web.arrived.set()
    images, lease = await loading
    assert [image.seconds for image in images] == [2, 3, 2, 4]
    assert (loader._pixels.used, loader._fetched.used) == (3, 0)
    lease.release()


async def test_no_more_files_are_in_memory_than_fit(
    web: Web, loader: ImageLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FETCHED_BYTES", 200)
    loading = asyncio.create_task(loader.load(named("a", "bb", "ccc", video=True)))
    await until(lambda: web.asked == ["/a", "/bb"])
    assert loader._fetched.used == 200
    web.arrived.set()
    images, lease = await loading
    assert (len(images), web.asked) == (3, ["/a", "/bb", "/ccc"])
    lease.release()


async def test_an_error_names_the_first_image_that_has_one_and_everything_is_returned(
    web: Web, loader: ImageLoader
) -> None:
    web.arrived.set()
    with pytest.raises(BadRequest, match="Video downloading failed") as caught:
        await loader.load(named("a", "missing", video=True))
    assert caught.value.param == "missing"
    web.arrived.clear()
    left = asyncio.create_task(loader.load(named("a", "b")))
    await until(lambda: len(web.asked) == 4)
    await cancel(left)
    assert not loader._fetches.used
