"""One stream of audio, from its first block to its commit, and its transcription by the engine."""

from __future__ import annotations

import asyncio

from ....api.response import new_id
from ...speech.model import SpeechModel
from ...speech.params import TranscribeParams
from .audio import AudioQueue, AudioReader
from .settings import Settings


class Stream:
    """A stream of audio that is transcribed as one request."""

    def __init__(
        self, settings: Settings, model: SpeechModel, params: TranscribeParams, offset_s: float, ahead_s: float
    ) -> None:
        """Begins without audio.

        Args:
            settings: What the client has set.
            model: Transcribes it.
            params: How it is transcribed.
            offset_s: The seconds from the beginning of the session to that of the stream.
            ahead_s: The seconds of audio that may wait for the engine.
        """
        self.settings = settings
        self.model = model
        self.params = params
        self.offset_s = offset_s
        self.item_id = new_id("item")
        self.audio = AudioQueue(ahead_s)
        self.reader = AudioReader(settings.format)
        self.committed = asyncio.Event()
        """Set once the client has asked for the text; until then it is computed, and not sent."""
        self.task: asyncio.Task[None] | None = None
        """The transcription, once it has begun."""
        self.closed = self.cancelled = False

    def close(self) -> None:
        """Ends the audio of this stream; its text is sent from now on."""
        if not self.closed:
            self.closed = True
            self.audio.put(self.reader.flush())
            self.audio.close()
        self.committed.set()

    def cancel(self) -> None:
        """Drops the audio and the text of this stream."""
        self.closed = self.cancelled = True
        self.audio.end()
        self.audio.close()
        self.committed.set()
        if self.task is not None:
            self.task.cancel()
