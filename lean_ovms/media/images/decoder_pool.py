"""Our side of the decoder processes: start them when needed, hand them jobs, kill them when they take too long.

An image is decoded off the event loop because it takes as long as it likes (0.5 s for a photograph of 12 megapixels),
and in a process because a thread cannot be stopped. Knows no formats.
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
"""Of our environment; the API key and whatever else is there is none of its business."""
START_S = 30.0
"""On top of the time of its first job, for importing Pillow (0.1 s) on a machine that is busy."""
NO_PILLOW = f"Images need Pillow, which is not installed on this server: {install_command('vision')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Bytes to make an image of. box: shrink it into a square of so many pixels; 0: as it is."""

    data: bytes
    most_pixels: int
    base64: bool = False
    box: int = 0


class Decoders:
    """At most so many decoder processes, kept while they are used."""

    def __init__(self, most: int, timeout_s: float, idle_s: float = 120.0, command: Sequence[str] = COMMAND) -> None:
        self._free = asyncio.Semaphore(most)
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._command = command
        self._resting: list[_Process] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> list[int]:
        """Of those that wait for a job."""
        return [process.pid for process in self._resting]

    async def decode(self, job: Job) -> Image:
        """The image. Raises BadRequest for what is none, is too large or takes too long; Unavailable."""
        if importlib.util.find_spec("PIL") is None:
            raise BadRequest(NO_PILLOW)
        async with self._free:
            process = self._rested() or _Process(self._command)
            try:
                image = await process.work(job, self._timeout_s)
            except BaseException:
                if not process.usable:
                    process.kill()
                else:
                    self._rest(process)
                raise
            self._rest(process)
            return image

    def _rested(self) -> _Process | None:
        """One that waits for a job. Not one that somebody has ended meanwhile: the image would be blamed for it."""
        while self._resting:
            process = self._resting.pop()
            if process.alive:
                return process
            process.kill()
        return None

    def _rest(self, process: _Process) -> None:
        self._resting.append(process)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._idle_s, self.stop)

    def stop(self) -> None:
        """End those that have nothing to do; the next job starts one again."""
        if self._timer is not None:
            self._timer.cancel()
        while self._resting:
            self._resting.pop().kill()


class _Process:
    """One decoder process. usable: it waits for a job, and nothing of the last one is left on the pipe."""

    def __init__(self, command: Sequence[str]) -> None:
        self.usable = False
        self._command = command
        self._popen: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen is not None else 0

    @property
    def alive(self) -> bool:
        """It was started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    async def work(self, job: Job, timeout_s: float) -> Image:
        """Raises RequestError."""
        self.usable = False
        allowed_s = timeout_s if self._popen is not None else timeout_s + START_S
        try:
            image = await asyncio.wait_for(self._ask(job, timeout_s), allowed_s)
        except asyncio.TimeoutError:
            raise BadRequest(f"unpacking the image takes longer than {timeout_s:g} s") from None
        except (OSError, EOFError) as error:
            raise self._died(error) from None
        if isinstance(image, RequestError):
            raise image
        return image

    async def _ask(self, job: Job, timeout_s: float) -> Image | RequestError:
        if self._popen is None:
            await self._start()
        assert self._reader is not None
        assert self._writer is not None
        head = {"bytes": len(job.data), "base64": job.base64, "most_pixels": job.most_pixels, "box": job.box}
        self._writer.write(json.dumps({**head, "seconds": timeout_s}).encode() + b"\n")
        self._writer.write(job.data)
        await self._writer.drain()
        line = await self._reader.readuntil(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.usable = True
            return BadRequest(str(answer["error"]))
        height, width = int(answer["height"]), int(answer["width"])
        pixels = await self._reader.readexactly(3 * height * width)
        self.usable = True
        return Image(height, width, pixels)

    async def _start(self) -> None:
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._popen, ours = spawn_with_socket(  # a fork of 1 ms
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what libraries say about broken files is of no use to anybody
            env={**kept, **import_path()},
        )
        try:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

    def _died(self, error: Exception) -> RequestError:
        if self._popen is None:
            log.error("the image decoder does not start: %s", error)
            return Unavailable("Images cannot be decoded at the moment.", code="decoder_unavailable")
        log.warning("the image decoder ended with status %s on an image", self._popen.poll())
        return BadRequest("Image parsing failed: unpacking it takes too much memory or time")

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._writer is not None:
            self._writer.transport.abort()
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
