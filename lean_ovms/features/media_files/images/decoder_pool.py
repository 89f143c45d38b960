"""A pool of processes that decode images. They are started when needed, and killed if a job takes too long.

Decoding must not be on the event loop: a photograph of 12 megapixels takes 0.5 s.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ....errors import BadRequest, install_command
from ....media.file_slice import FileSlice
from ....observability.records import current_client
from ....types import Image
from ....util.concurrency import Budget
from ....util.resources import reserve
from ..helper import Helper, IdleHelpers
from .frame_limits import FrameLimits

PIECE_BYTES = 1 << 18
"""Bytes of a file, or of pixels, that one call copies."""
COMMAND = (sys.executable, "-m", "lean_ovms.features.media_files.images.decoder_process")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeJob:
    """An image or a video to decode."""

    data: bytes | str | memoryview | FileSlice
    """The file, or a text with the file in base64."""
    max_pixels: int
    """The most pixels that an image, or a frame, in the file may have."""
    start: int = 0
    """The offset in `data` at which the file begins."""
    box: int = 0
    """The side, in pixels, of the square that an image is shrunk into; 0 if it keeps its size."""
    video: FrameLimits | None = None
    """The limits of the frames to decode from a video; None for an image."""
    mask: bool = False
    """Whether it is an edit's mask: transparent pixels become white and others black; without any, it becomes grey."""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yields the file in pieces, so that no call copies a large file at once."""
        for begin in range(self.start, len(self.data), PIECE_BYTES):
            piece = self.data[begin : begin + PIECE_BYTES]
            yield piece.encode("ascii", "replace") if isinstance(piece, str) else piece


class DecoderPool:
    """A pool of at most max_processes decoder processes, which end after idle_s seconds without a job.

    Clients whose jobs wait take turns.
    """

    def __init__(
        self, max_processes: int, timeout_s: float, idle_s: float = 120.0, command: Sequence[str] = COMMAND
    ) -> None:
        self._slots = Budget(max_processes)
        self._timeout_s = timeout_s
        self._command = command
        self.idle = IdleHelpers[_Decoder](idle_s, max_processes)
        """The processes without a job."""

    async def decode(self, job: DecodeJob) -> Image:
        """Decodes the image or video of a job. Raises BadRequest, or Unavailable if there is no process."""
        if importlib.util.find_spec("PIL") is None:
            raise BadRequest(f"Images need Pillow, which is not installed on this server: {install_command('vision')}")
        with await self._slots.acquire(1, current_client()):
            process = self.idle.acquire() or _Decoder(self._command)
            try:
                return await process.decode(job, self._timeout_s)
            finally:
                self.idle.release(process)

    def stop(self) -> None:
        """Ends the idle processes. The next job starts one again."""
        self.idle.stop()


class _Decoder(Helper):
    """One decoder process."""

    name, work, invalid = "image decoder", "decoding the image", "Image parsing failed"
    unavailable = "Images cannot be decoded at the moment.", "decoder_unavailable"

    async def decode(self, job: DecodeJob, timeout_s: float) -> Image:
        """Sends a job to the process, and returns the image. Raises RequestError."""
        self.reusable = False
        return await self.answered(self._exchange(job, timeout_s), timeout_s)

    async def _exchange(self, job: DecodeJob, timeout_s: float) -> Image:
        head = {"bytes": len(job.data) - job.start, "base64": isinstance(job.data, str)}
        limits: dict[str, Any] = {"max_pixels": job.max_pixels, "box": job.box, "mask": job.mask, "seconds": timeout_s}
        limits["video"] = asdict(job.video) if job.video is not None else None
        await self.send({**head, **limits}, job.pieces())
        answer = await self.read_answer()
        height, width = int(answer["height"]), int(answer["width"])
        times = tuple(map(float, answer.get("times", ())))
        size = 3 * height * width * (len(times) or 1)
        if size > 3 * (job.max_pixels if job.video is None else job.video.total_pixels):
            raise OSError("the image decoder sends more pixels than it was asked for")
        reader, _ = await self.streams()
        pixels = await _read_exactly(reader, size)
        self.reusable = True
        return Image(height, width, pixels, times=times, seconds=float(answer.get("length", 0)))


async def _read_exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    """Reads exactly `size` bytes without copying all in one call, as reader.readexactly does. Raises EOFError."""
    found = reserve(size)
    while missing := size - found.tell():
        piece = await reader.read(min(missing, PIECE_BYTES))
        if not piece:
            raise EOFError
        found.write(piece)
    return found.getvalue()
