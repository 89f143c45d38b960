"""What other parts of a server ask of a model that transcribes speech, whichever feature serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from .model import Model


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
