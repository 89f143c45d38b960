"""Declares what other parts of a server ask of models that speak or transcribe, whichever feature serves them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from ...models.model import Model
from ...types.audio import SpeakParams, VoiceInfo


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
            text: What is spoken; if it is still being written, each sentence is spoken once it has ended.
            params: How it is spoken; their sample_rate, or else the model's, is that of the audio.

        Raises:
            RequestError: While it is read.
        """
        raise NotImplementedError


class Transcriber(Model):
    """A model that writes down what is said."""

    task = "speech to text"
    endpoints = ("/v1/audio/transcriptions", "/v1/audio/translations")
    routed_as = "speech"
    wrong_task_status = 404
    input_modalities = ("audio",)

    async def transcript(self, audio: AsyncIterator[bytes]) -> str:
        """Returns the text of audio: mono, signed 16 bit, little-endian. Closes the audio. Raises RequestError."""
        raise NotImplementedError
