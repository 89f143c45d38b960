"""Decode audio files in processes of their own, block by block, as fast as the blocks are read.

A process has one file. It waits when its blocks are not read: the pipe holds about 10 s of audio, so the memory that a
request takes here does not depend on its file. Knows no formats beyond their beginnings.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

from ....config import Config
from ....errors import BadRequest, PayloadTooLarge, RequestError, Unavailable
from ....media.file_slice import FileSlice
from ....types.audio import SAMPLE_BYTES, SAMPLE_RATE
from ....util.budget import Budget, Lease
from ..feature import AudioFileOptions
from ..helper import Helper, IdleHelpers
from .formats import READ, AudioLimits, Found, recognise
from .framing import HEAD_BYTES, MAX_BLOCK, parse_head

log = logging.getLogger("lean_ovms.media")

COMMAND = (sys.executable, "-m", "lean_ovms.features.media_files.audio.decoder_process")
START_S = 30.0
"""Added to the time for a process's first block, for importing numpy and the libraries on a busy machine."""
IDLE_S = 120.0
KEPT_PROCESSES = 2
WAITING_FILES = 256
"""Requests that may wait for a process; the next one is a 503."""
PIECE = 1 << 18
"""Bytes of a file in memory that are handed over at once; of one in a file, only its descriptor is."""
PARAM = "file"


class AudioDecoder:
    """Opens audio files. A server has one; close it at the end."""

    def __init__(self, config: Config, command: Sequence[str] = COMMAND) -> None:
        options = config.of(AudioFileOptions)
        self._command = command
        self._max_bytes = options.max_audio_file_bytes
        self._timeout_s = options.audio_timeout_s
        self._limits = AudioLimits(
            max_s=options.max_audio_s,
            max_channels=options.max_audio_channels,
            min_rate=options.min_audio_rate,
            max_rate=options.max_audio_rate,
        )
        self.idle = IdleHelpers[_Process](IDLE_S, KEPT_PROCESSES)
        """The processes without a file."""
        self._slots = Budget(
            options.max_audio_decoders, WAITING_FILES, "too many audio files at once", "too_many_audio_files"
        )

    async def decode(self, data: memoryview | FileSlice) -> AudioStream:
        """Returns the samples of a file, of which the first block has been decoded; close the stream in any case.

        The process then has the whole file: `data` is not needed any more. Raises BadRequest that says what is wrong
        with it, PayloadTooLarge, and Unavailable.
        """
        if len(data) > self._max_bytes:
            raise PayloadTooLarge(
                f"Maximum file size exceeded: {len(data)} bytes, and --max_audio_file_bytes is {self._max_bytes}",
                param=PARAM,
            )
        found = recognise(data)
        if found is None:
            raise BadRequest(f"Invalid or unsupported audio file. This server reads {READ}.", param=PARAM)
        lease = await self._slots.acquire(1)
        process = self.idle.acquire() or _Process(self._command)
        stream = AudioStream(process, self._timeout_s, lambda: self._release(process, lease))
        try:
            await stream.begin(data, found, self._limits)
        except BaseException:
            await stream.aclose()
            raise
        return stream

    def _release(self, process: _Process, lease: Lease) -> None:
        self.idle.release(process)
        lease.release()

    async def drain(self, timeout_s: float) -> None:
        """Does nothing: files are decoded for requests, which the server waits for."""

    async def close(self) -> None:
        """Ends the idle processes; the next file starts one again."""
        self.idle.stop()


class AudioStream:
    """Blocks of samples (types.audio), as an async iterator."""

    def __init__(self, process: _Process, timeout_s: float, release: Callable[[], None]) -> None:
        self.samples = 0
        """How many samples have been read."""
        self._process = process
        self._timeout_s = timeout_s
        self._release: Callable[[], None] | None = release
        self._first: bytes | None = None

    @property
    def seconds(self) -> float:
        """Seconds of audio read so far."""
        return self.samples / SAMPLE_RATE

    async def begin(self, data: memoryview | FileSlice, found: Found, limits: AudioLimits) -> None:
        """Hands over the file and waits for its first block. Raises RequestError."""
        allowed_s = self._timeout_s + (0.0 if self._process.pid else START_S)
        self._first = await self._waited(self._process.begin(data, found, limits, allowed_s))

    def __aiter__(self) -> AudioStream:
        return self

    async def __anext__(self) -> bytes:
        """Returns the next block of samples. Raises RequestError."""
        block, self._first = self._first, None
        if block is None and self._release is not None:
            block = await self._waited(self._process.block(self._timeout_s))
        if not block:
            await self.aclose()
            raise StopAsyncIteration
        self.samples += len(block) // SAMPLE_BYTES
        return block

    async def _waited(self, work: Awaitable[bytes]) -> bytes:
        try:
            return await work
        except asyncio.TimeoutError:
            raise BadRequest(f"decoding the audio takes longer than {self._timeout_s:g} s", param=PARAM) from None
        except (OSError, EOFError) as error:
            raise self._process.exit_error(error) from None

    async def aclose(self) -> None:
        """Ends the work, if it is not done. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


class _Process(Helper):
    """One decoder process."""

    async def begin(self, data: memoryview | FileSlice, found: Found, limits: AudioLimits, seconds: float) -> bytes:
        """Hands over a file. Returns its first block. Raises as `block`."""
        self.reusable = False
        deadline = asyncio.get_running_loop().time() + seconds
        await self.streams()
        job = {"bytes": len(data) - found.offset, "format": found.format, **asdict(limits)}
        if isinstance(data, FileSlice):
            line = json.dumps(job | {"start": data.start + found.offset}).encode() + b"\n"
            self.send_file(line, data.body.fileno())
        else:
            pieces = (data[at : at + PIECE] for at in range(found.offset, len(data), PIECE))
            await asyncio.wait_for(self.send(job, pieces), seconds)
        return await self.block(deadline - asyncio.get_running_loop().time())

    async def block(self, seconds: float) -> bytes:
        """Returns the next block, b"" at the end. Raises BadRequest, asyncio.TimeoutError, and OSError or EOFError if
        the process has ended."""
        block, is_end = await asyncio.wait_for(self._read(), seconds)
        if not is_end:
            return block
        try:
            end = dict(json.loads(block))
        except (ValueError, TypeError):
            raise OSError("the audio decoder's answer is not understood") from None
        self.reusable = True
        if "error" in end:
            raise BadRequest(str(end["error"]), code=end["code"], param=PARAM)
        return b""

    async def _read(self) -> tuple[bytes, bool]:
        reader, _ = await self.streams()
        size, is_end = parse_head(await reader.readexactly(HEAD_BYTES))
        if size > MAX_BLOCK:
            raise OSError("a block of the audio decoder has a wrong size")
        return await reader.readexactly(size), is_end

    def exit_error(self, error: Exception) -> RequestError:
        """Returns what the end of the process means for the request."""
        if not self.pid:
            log.error("the audio decoder does not start: %s", error)
            return Unavailable("Audio cannot be decoded at the moment.", code="decoder_unavailable")
        log.warning("the audio decoder ended with status %s on a file", self.exit_status)
        return BadRequest("Invalid audio file: decoding it takes too much memory or time", param=PARAM)
