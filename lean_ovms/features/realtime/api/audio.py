"""The audio of a session: decodes what a client sends, and passes it to the engine in a queue of limited length."""

from __future__ import annotations

import asyncio
import base64
import binascii
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....errors import BadRequest
from ....types.audio import SAMPLE_BYTES, SAMPLE_RATE

if TYPE_CHECKING:
    from ..live_decoder import LiveDecoder

RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
"""The sample rates of PCM that clients may use."""
G711_RATE = 8000
BYTES_PER_S = SAMPLE_RATE * SAMPLE_BYTES


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """The format in which a client sends audio."""

    encoding: str = "pcm"
    """The encoding: "pcm" (16 bits, little-endian), "pcmu" or "pcma" (G.711)."""
    rate: int = SAMPLE_RATE
    """The samples per second."""


class AudioReader:
    """Decodes base64 audio of one format. The result does not depend on where the audio is divided between samples."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self.format = audio_format
        self._decoder: LiveDecoder | None = None
        self._working = threading.Lock()  # a decoder must not be used by two threads

    @property
    def ready(self) -> bool:
        """Whether `read` can be called without `prepare`: there is a decoder, or the engine accepts the format."""
        return self.format == AudioFormat() or self._decoder is not None

    def prepare(self) -> None:
        """Imports and creates the decoder for the format; meant to be called in a thread."""
        from ..live_decoder import LiveDecoder

        self._decoder = LiveDecoder(self.format.encoding, self.format.rate, SAMPLE_RATE)

    def read(self, text: str) -> bytes:
        """Decodes base64 audio to samples for the engine. Raises BadRequest."""
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise _invalid("it is not base64") from None
        if not data:
            raise _invalid("it is empty")
        if len(data) % (SAMPLE_BYTES if self.format.encoding == "pcm" else 1):
            raise _invalid("its last sample is incomplete")
        with self._working:
            return data if self._decoder is None else self._decoder.feed(data)

    def flush(self) -> bytes:
        """Returns the samples that are still in the decoder at the end of the audio.

        If a thread still decodes a message of a session that ends, there are none.
        """
        if self._decoder is None or not self._working.acquire(blocking=False):
            return b""
        try:
            return self._decoder.flush()
        finally:
            self._working.release()


def _invalid(why: str) -> BadRequest:
    return BadRequest(f"Invalid audio data: {why}", param="audio", code="invalid_audio")


class AudioQueue:
    """The queue of a stream's audio between the session and the engine, which iterates over it.

    Audio of many small messages is passed on in blocks of up to a second, since each block costs the engine the same.
    """

    def __init__(self, ahead_s: float) -> None:
        """Creates an empty queue, which is full with so many seconds of audio."""
        self.seconds = 0.0
        """The duration of all audio so far."""
        self.ended = False
        """Whether no more audio is taken."""
        self._most = int(ahead_s * BYTES_PER_S)
        self._audio = bytearray()
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, block: bytes) -> None:
        """Appends audio; it is dropped if no more blocks are taken."""
        self.seconds += len(block) / BYTES_PER_S
        if block and not self.ended:
            self._audio += block
            self._changed.set()

    @property
    def full(self) -> bool:
        """Whether the queue holds as much audio as may be read ahead."""
        return len(self._audio) >= self._most

    def close(self) -> None:
        """Ends the audio: the iteration stops after what is in the queue."""
        self._closed = True
        self._changed.set()

    def end(self) -> None:
        """Drops all audio, since no more is taken."""
        self.ended = True
        self._audio.clear()
        self._changed.set()

    async def room(self) -> None:
        """Waits until the queue is not full."""
        await self._until(lambda: not self.full)

    def __aiter__(self) -> AudioQueue:
        return self

    async def __anext__(self) -> bytes:
        await self._until(lambda: bool(self._audio) or self._closed)
        if not self._audio:
            raise StopAsyncIteration
        block = bytes(self._audio[:BYTES_PER_S])
        del self._audio[:BYTES_PER_S]
        self._changed.set()
        return block

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition is true.

        At most two tasks wait, one for audio and one for room; each checks its condition after every change.
        """
        while not condition():
            self._changed.clear()
            await self._changed.wait()
