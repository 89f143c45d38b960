"""A pool of processes that decode images. They are started when needed, and killed if a job takes too long.

Decoding must not be on the event loop: a photograph of 12 megapixels takes 0.5 s.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ....errors import BadRequest, install_command
from ....media.file_slice import FileSlice
from ....types import Image
from ....util.concurrency import Budget
from ..helper import IDLE_S, Helper, HelperPool
from .frame_limits import FrameLimits

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


class _Decoder(Helper):
    """One decoder process."""

    name, work, invalid = "image decoder", "decoding the image", "Image parsing failed"
    unavailable = "Images cannot be decoded at the moment.", "decoder_unavailable"

    async def decode(self, job: DecodeJob, timeout_s: float) -> Image:
        """Sends a job to the process, and returns the image. Raises RequestError."""
        return await self.answered(self._exchange(job, timeout_s), timeout_s)

    async def _exchange(self, job: DecodeJob, timeout_s: float) -> Image:
        limits: dict[str, Any] = {"max_pixels": job.max_pixels, "box": job.box, "mask": job.mask, "seconds": timeout_s}
        limits["video"] = asdict(job.video) if job.video is not None else None
        await self.send({"base64": isinstance(job.data, str), **limits}, job.data, job.start)
        answer = await self.read_answer()
        height, width = int(answer["height"]), int(answer["width"])
        times = tuple(map(float, answer.get("times", ())))
        most = 3 * (job.max_pixels if job.video is None else job.video.total_pixels)
        pixels = await self.read_bytes(3 * height * width * (len(times) or 1), most)
        self.reusable = True
        return Image(height, width, pixels, times=times, seconds=float(answer.get("length", 0)))


class DecoderPool(HelperPool[_Decoder]):
    """A pool of at most max_processes decoder processes, which end after idle_s seconds without a job."""

    def __init__(
        self, max_processes: int, timeout_s: float, idle_s: float = IDLE_S, command: Sequence[str] = COMMAND
    ) -> None:
        super().__init__(_Decoder, command, Budget(max_processes), kept=max_processes, idle_s=idle_s)
        self._timeout_s = timeout_s

    async def decode(self, job: DecodeJob) -> Image:
        """Decodes the image or video of a job. Raises BadRequest, or Unavailable if there is no process."""
        if importlib.util.find_spec("PIL") is None:
            raise BadRequest(f"Images need Pillow, which is not installed on this server: {install_command('vision')}")
        async with self.lent() as process:
            return await process.decode(job, self._timeout_s)
