"""A pool of decoder processes: started when needed, given jobs, killed when a job takes too long.

An image is decoded off the event loop because that takes long, 0.5 s for a photograph of 12 megapixels. Knows no
formats.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import BadRequest, RequestError, Unavailable, install_command
from ...types import Image
from ..helper import Helper, IdleHelpers

log = logging.getLogger("lean_ovms.media")

COMMAND = (sys.executable, "-m", "lean_ovms.media.images.decoder_process")
START_S = 30.0
"""Added to the time limit of a process's first job, for importing Pillow (0.1 s) on a busy machine."""
NO_PILLOW = f"Images need Pillow, which is not installed on this server: {install_command('vision')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeJob:
    """Bytes to decode. box: side in pixels of the square that the image is shrunk into; 0: as it is."""

    data: bytes
    max_pixels: int
    base64: bool = False
    box: int = 0


class DecoderPool:
    """At most max_processes decoder processes. They end after idle_s seconds without a job."""

    def __init__(
        self, max_processes: int, timeout_s: float, idle_s: float = 120.0, command: Sequence[str] = COMMAND
    ) -> None:
        self._slots = asyncio.Semaphore(max_processes)
        self._timeout_s = timeout_s
        self._command = command
        self._idle = IdleHelpers[_Decoder](idle_s, max_processes)

    @property
    def pids(self) -> list[int]:
        """Of the idle processes."""
        return self._idle.pids

    async def decode(self, job: DecodeJob) -> Image:
        """The image. Raises BadRequest if it is none, too large or takes too long; Unavailable."""
        if importlib.util.find_spec("PIL") is None:
            raise BadRequest(NO_PILLOW)
        async with self._slots:
            process = self._idle.take() or _Decoder(self._command)
            try:
                return await process.decode(job, self._timeout_s)
            finally:
                self._idle.give_back(process)

    def stop(self) -> None:
        """End the idle processes; the next job starts one again."""
        self._idle.stop()


class _Decoder(Helper):
    """One decoder process."""

    async def decode(self, job: DecodeJob, timeout_s: float) -> Image:
        """Raises RequestError."""
        self.reusable = False
        allowed_s = timeout_s if self.pid else timeout_s + START_S
        try:
            image = await asyncio.wait_for(self._exchange(job, timeout_s), allowed_s)
        except asyncio.TimeoutError:
            raise BadRequest(f"unpacking the image takes longer than {timeout_s:g} s") from None
        except (OSError, EOFError) as error:
            raise self._exit_error(error) from None
        if isinstance(image, RequestError):
            raise image
        return image

    async def _exchange(self, job: DecodeJob, timeout_s: float) -> Image | RequestError:
        reader, writer = await self.streams()
        head = {"bytes": len(job.data), "base64": job.base64, "max_pixels": job.max_pixels, "box": job.box}
        writer.write(json.dumps({**head, "seconds": timeout_s}).encode() + b"\n")
        writer.write(job.data)
        await writer.drain()
        line = await reader.readuntil(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.reusable = True
            return BadRequest(str(answer["error"]))
        height, width = int(answer["height"]), int(answer["width"])
        pixels = await reader.readexactly(3 * height * width)
        self.reusable = True
        return Image(height, width, pixels)

    def _exit_error(self, error: Exception) -> RequestError:
        if not self.pid:
            log.error("the image decoder does not start: %s", error)
            return Unavailable("Images cannot be decoded at the moment.", code="decoder_unavailable")
        log.warning("the image decoder ended with status %s on an image", self.exit_status)
        return BadRequest("Image parsing failed: unpacking it takes too much memory or time")
