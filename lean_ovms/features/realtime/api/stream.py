"""One stream of audio, from its first block to its commit, and its transcription."""

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
        """Creates a stream without audio.

        Args:
            settings: The settings of the client.
            model: The model that transcribes it.
            params: The parameters of the transcription.
            offset_s: The beginning of the stream, in seconds of the session.
            ahead_s: The most seconds of audio that may wait for the engine.
        """
        self.settings = settings
        self.model = model
        self.params = params
        self.offset_s = offset_s
        self.item_id = new_id("item")
        self.audio = AudioQueue(ahead_s)
        self.reader = AudioReader(settings.format)
        self.committed = asyncio.Event()
        """Set once the client has asked for the text. Before that the text is computed, but not sent."""
        self.task: asyncio.Task[None] | None = None
        """The task of the transcription; None before it has begun."""
        self.closed = self.cancelled = False

    def close(self) -> None:
        """Ends the audio of the stream; its text may be sent from now on."""
        if not self.closed:
            self.closed = True
            self.audio.put(self.reader.flush())
            self.audio.close()
        self.committed.set()

    def cancel(self) -> None:
        """Drops the audio and the text of the stream."""
        self.closed = self.cancelled = True
        self.audio.end()
        self.audio.close()
        self.committed.set()
        if self.task is not None:
            self.task.cancel()
