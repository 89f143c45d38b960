"""What other parts of a server ask of a model that speaks texts, whichever feature serves it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ..types.audio import SpeakParams, VoiceInfo
from .model import Model


class Speaker(Model):
    """A model that speaks texts."""

    task = "text to speech"
    endpoints = ("/v1/audio/speech",)
    wrong_task_status = 404
    output_modalities = ("audio",)

    @property
    def voices(self) -> VoiceInfo:
        """What the model can do. Raises RequestError if it is not loaded."""
        info = self.serving().info.voices
        assert info is not None
        return info

    def speak(self, text: str | AsyncGenerator[str, None], params: SpeakParams) -> AsyncGenerator[bytes, None]:
        """Returns the audio of a text, a block for each sentence: mono, signed 16 bit, little-endian.

        Args:
            text: what is spoken; if it is still being written, each sentence is spoken once it has ended.
            params: how it is spoken; their sample_rate, or else the model's, is that of the audio.

        Raises:
            RequestError: while it is read.
        """
        raise NotImplementedError
