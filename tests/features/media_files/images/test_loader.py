"""Large images pass the event loop in pieces; what is the same image is loaded once."""

from __future__ import annotations

import asyncio

import pytest

from lean_ovms.config import Config
from lean_ovms.features.media_files.images import decoder_pool, loader
from lean_ovms.features.media_files.images.decoder_pool import DecodeJob
from lean_ovms.features.media_files.images.loader import ImageLoader, ImageRequest
from lean_ovms.types import Image

LONG = "data:image/png;base64," + "QUJD" * 100_000


def test_a_large_file_is_handed_over_in_pieces() -> None:
    for data, start in (LONG, 22), (LONG[22:].encode(), 0), (b"", 0):
        pieces = list(DecodeJob(data=data, start=start, max_pixels=1).pieces())
        assert b"".join(pieces).decode() == (data if isinstance(data, str) else data.decode())[start:]
        assert all(len(piece) <= decoder_pool.PIECE_BYTES for piece in pieces)


async def test_pixels_are_read_in_pieces() -> None:
    sizes: list[int] = []

    class Reader(asyncio.StreamReader):
        async def read(self, n: int = -1) -> bytes:
            sizes.append(n)
            return await super().read(n)

    reader = Reader()
    reader.feed_data(bytes(700_000))
    reader.feed_eof()
    assert await decoder_pool._read_exactly(reader, 600_000) == bytes(600_000)
    assert max(sizes) <= decoder_pool.PIECE_BYTES
    with pytest.raises(EOFError):
        await decoder_pool._read_exactly(reader, 200_000)


async def test_the_same_image_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones of the same length are compared by a digest, which is computed in pieces; others are not compared."""
    images = ImageLoader(Config(max_images=16))
    decoded: list[object] = []
    digested: list[int] = []

    async def decode(job: DecodeJob) -> Image:
        decoded.append(job.data)
        return Image(1, len(decoded), bytes(3 * len(decoded)))

    def digest(text: str, digest=loader._digest) -> bytes:
        digested.append(len(text))
        return digest(text)

    monkeypatch.setattr(images._images.decoders, "decode", decode)
    monkeypatch.setattr(loader, "_digest", digest)
    other = LONG[:-4] + "QUJE"
    urls = [LONG, other, "".join([LONG]), LONG + "QUJD", "data:,base64,QUJD", "data:,base64,QUJD", LONG]
    details = ["auto"] * 6 + ["low"]
    requested = [ImageRequest(url=url, detail=detail, param="") for url, detail in zip(urls, details, strict=True)]
    found, lease = await images.load(requested)
    lease.release()
    assert [image.width for image in found] == [1, 2, 1, 3, 4, 4, 5]
    assert [image.digest for image in found] == [Image(1, i.width, i.pixels).content() for i in found]
    assert digested == [len(LONG)] * 4
