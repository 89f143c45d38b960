"""A pool of decoder processes: started when needed, given jobs, killed when a job takes too long.

An image is decoded off the event loop because that takes long (0.5 s for a photograph of 12 megapixels), and in a
process because a thread cannot be stopped. Knows no formats.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import BadRequest, RequestError, Unavailable, install_command
from ...types import Image
from ...util.child_process import import_path, spawn_with_socket

log = logging.getLogger("lean_ovms.media")

COMMAND = (sys.executable, "-m", "lean_ovms.media.images.decoder_process")
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
"""What a decoder gets of the server's environment: not the API key, and no other secret."""
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
        self._idle_s = idle_s
        self._command = command
        self._idle: list[_Decoder] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> list[int]:
        """Of the idle processes."""
        return [process.pid for process in self._idle]

    async def decode(self, job: DecodeJob) -> Image:
        """The image. Raises BadRequest if it is none, too large or takes too long; Unavailable."""
        if importlib.util.find_spec("PIL") is None:
            raise BadRequest(NO_PILLOW)
        async with self._slots:
            process = self._take_idle() or _Decoder(self._command)
            try:
                image = await process.decode(job, self._timeout_s)
            except BaseException:
                if not process.reusable:
                    process.kill()
                else:
                    self._release(process)
                raise
            self._release(process)
            return image

    def _take_idle(self) -> _Decoder | None:
        """An idle process that is still alive: one that was killed meanwhile would look like a broken image."""
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            process.kill()
        return None

    def _release(self, process: _Decoder) -> None:
        self._idle.append(process)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_s, self.stop)

    def stop(self) -> None:
        """End the idle processes; the next job starts one again."""
        if self._timer is not None:
            self._timer.cancel()
        while self._idle:
            self._idle.pop().kill()


class _Decoder:
    """One decoder process. reusable: it is idle, and nothing of the last job is left on the pipe."""

    def __init__(self, command: Sequence[str]) -> None:
        self.reusable = False
        self._command = command
        self._popen: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen is not None else 0

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    async def decode(self, job: DecodeJob, timeout_s: float) -> Image:
        """Raises RequestError."""
        self.reusable = False
        allowed_s = timeout_s if self._popen is not None else timeout_s + START_S
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
        if self._popen is None:
            await self._start()
        assert self._reader is not None
        assert self._writer is not None
        head = {"bytes": len(job.data), "base64": job.base64, "max_pixels": job.max_pixels, "box": job.box}
        self._writer.write(json.dumps({**head, "seconds": timeout_s}).encode() + b"\n")
        self._writer.write(job.data)
        await self._writer.drain()
        line = await self._reader.readuntil(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.reusable = True
            return BadRequest(str(answer["error"]))
        height, width = int(answer["height"]), int(answer["width"])
        pixels = await self._reader.readexactly(3 * height * width)
        self.reusable = True
        return Image(height, width, pixels)

    async def _start(self) -> None:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._popen, ours = spawn_with_socket(  # a fork of 1 ms
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # messages of libraries about broken files are of no use
            env={**kept, **import_path()},
        )
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

    def _exit_error(self, error: Exception) -> RequestError:
        if self._popen is None:
            log.error("the image decoder does not start: %s", error)
            return Unavailable("Images cannot be decoded at the moment.", code="decoder_unavailable")
        log.warning("the image decoder ended with status %s on an image", self._popen.poll())
        return BadRequest("Image parsing failed: unpacking it takes too much memory or time")

    def kill(self) -> None:
        """Kill it, whatever it is doing."""
        if self._writer is not None:
            self._writer.transport.abort()
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
