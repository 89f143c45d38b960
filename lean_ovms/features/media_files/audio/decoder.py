"""Decodes audio files in separate processes, block by block, as fast as the blocks are read.

A process decodes one file. It waits if its blocks are not read. The pipe holds about 10 s of audio, so the memory of a
request in this process does not depend on its file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from ....config import Config
from ....errors import BadRequest, PayloadTooLarge
from ....media.file_slice import FileSlice
from ....types.audio import SAMPLE_BYTES, SAMPLE_RATE
from ....util.concurrency import Budget
from ..feature import AudioFileOptions
from ..helper import Helper, HelperPool
from .formats import READ, AudioLimits, Found, recognise

COMMAND = (sys.executable, "-m", "lean_ovms.features.media_files.audio.decoder_process")
KEPT_PROCESSES = 2
WAITING_FILES = 256
"""Requests that may wait for a process; the next one is a 503."""
MAX_BLOCK = 1 << 22
"""The most bytes of a block of samples."""
PARAM = "file"


class _Process(Helper):
    """One decoder process."""

    name, work, invalid = "audio decoder", "decoding the audio", "Invalid audio file"
    unavailable = "Audio cannot be decoded at the moment.", "decoder_unavailable"
    param = PARAM

    async def begin(self, data: memoryview | FileSlice, found: Found, limits: AudioLimits) -> bytes:
        """Sends a file to the process, and returns the first block. Raises the errors of `block`."""
        job = {"format": found.format, **asdict(limits)}
        if isinstance(data, FileSlice):
            place = {"bytes": len(data) - found.offset, "start": data.start + found.offset}
            await self.send_open(job | place, data.body.fileno())
        else:
            await self.send(job, data, found.offset)
        return await self.block()

    async def block(self) -> bytes:
        """Waits for the next block, b"" at the end. Raises BadRequest; OSError or EOFError if the process has ended."""
        answer = await self.read_answer()
        block = await self.read_bytes(answer.get("bytes"), MAX_BLOCK)
        self.reusable = not block
        return block


class AudioDecoder(HelperPool[_Process]):
    """Opens audio files. A server has one object, which is closed at the end."""

    def __init__(self, config: Config, command: Sequence[str] = COMMAND) -> None:
        options = config.of(AudioFileOptions)
        slots = Budget(
            options.max_audio_decoders,
            WAITING_FILES,
            "too many audio files are being decoded; please try again later",
            "too_many_audio_files",
        )
        super().__init__(_Process, command, slots, kept=KEPT_PROCESSES)
        self._max_bytes = options.max_audio_file_bytes
        self._timeout_s = options.audio_timeout_s
        self._limits = AudioLimits(
            max_s=options.max_audio_s,
            max_channels=options.max_audio_channels,
            min_rate=options.min_audio_rate,
            max_rate=options.max_audio_rate,
        )

    async def decode(self, data: memoryview | FileSlice) -> AudioStream:
        """Opens a file, and returns the stream of its samples, which must be closed in any case.

        The first block has been decoded then, and the process has the whole file, so `data` is not needed any more.
        Raises BadRequest if the file cannot be decoded, PayloadTooLarge, and Unavailable.
        """
        if len(data) > self._max_bytes:
            raise PayloadTooLarge(
                f"Maximum file size exceeded: the file has {len(data)} bytes, and --max_audio_file_bytes is "
                f"{self._max_bytes}",
                param=PARAM,
            )
        found = recognise(data)
        if found is None:
            raise BadRequest(f"Invalid or unsupported audio file. This server reads {READ}.", param=PARAM)
        process = await self.acquire()
        stream = AudioStream(process, self._timeout_s, lambda: self.release(process))
        try:
            await stream.begin(data, found, self._limits)
        except BaseException:
            await stream.aclose()
            raise
        return stream


class AudioStream:
    """An async iterator of blocks of samples (types.audio)."""

    def __init__(self, process: _Process, timeout_s: float, release: Callable[[], None]) -> None:
        self.samples = 0
        """How many samples have been read."""
        self._process = process
        self._timeout_s = timeout_s
        self._release: Callable[[], None] | None = release
        self._first: bytes | None = None

    @property
    def seconds(self) -> float:
        """The length of the audio read so far, in seconds."""
        return self.samples / SAMPLE_RATE

    async def begin(self, data: memoryview | FileSlice, found: Found, limits: AudioLimits) -> None:
        """Sends the file to the process, and waits for the first block. Raises RequestError."""
        self._first = await self._process.answered(self._process.begin(data, found, limits), self._timeout_s)

    def __aiter__(self) -> AudioStream:
        return self

    async def __anext__(self) -> bytes:
        """Returns the next block of samples. Raises RequestError."""
        block, self._first = self._first, None
        if block is None and self._release is not None:
            block = await self._process.answered(self._process.block(), self._timeout_s)
        if not block:
            await self.aclose()
            raise StopAsyncIteration
        self.samples += len(block) // SAMPLE_BYTES
        return block

    async def aclose(self) -> None:
        """Cancels the decoding if it has not ended. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()
