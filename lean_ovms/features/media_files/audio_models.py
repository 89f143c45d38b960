"""The interfaces of models that speak or transcribe, for other features, and the reading of voice names in requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from ...errors import BadRequest
from ...models.model import Model
from ...observability.logging import safe
from ...types.audio import SpeakParams, VoiceInfo

PCM_RATE = 24_000
"""Samples a second of the format pcm: it has no head that could say so, and OpenAI's clients expect this."""
MOST_NAMED = 24
"""Voices that an error names."""


class Speaker(Model):
    """A served model that speaks texts."""

    task = "text to speech"
    endpoints = ("/v1/audio/speech",)
    wrong_task_status = 404
    output_modalities = ("audio",)

    @property
    def voices(self) -> VoiceInfo:
        """The description of the model's voices. Raises RequestError if it is not loaded."""
        info = self.serving().info.voices
        assert info is not None
        return info

    def speak(self, text: str | AsyncGenerator[str, None], params: SpeakParams) -> AsyncGenerator[bytes, None]:
        """Speaks a text, and yields audio for each sentence: mono, signed 16 bit, little-endian.

        Each sentence of a text that is still being generated is spoken once it has ended. The sample rate is that of
        the parameters, or else the model's. Raises RequestError while the audio is read.
        """
        raise NotImplementedError


class Transcriber(Model):
    """A served model that transcribes speech."""

    task = "speech to text"
    endpoints = ("/v1/audio/transcriptions", "/v1/audio/translations")
    routed_as = "speech"
    wrong_task_status = 404
    input_modalities = ("audio",)

    async def transcript(self, audio: AsyncIterator[bytes]) -> str:
        """Transcribes audio (mono, signed 16 bit, little-endian), and closes it. Raises RequestError."""
        raise NotImplementedError


def read_voice(value: Any) -> str:
    """Reads the name of a voice from a text or from OpenAI's object. Raises BadRequest."""
    name = value.get("id") if isinstance(value, dict) else value
    if not isinstance(name, str):
        raise BadRequest("voice is not a string or an object with an id", param="voice")
    return name


def voice_of(name: str | None, info: VoiceInfo, notices: list[str]) -> str:
    """Returns the model's voice with a name, or "" for its default voice.

    A notice is added for a name that has no effect. Raises BadRequest.
    """
    if not name:
        return ""
    if not info.voices:
        notices.append("voice has no effect: this model has only one voice")
        return ""
    if name not in info.voices:
        known = ", ".join(info.voices[:MOST_NAMED]) + (", ..." if len(info.voices) > MOST_NAMED else "")
        text = f"Requested voice {safe(name, 80)!r} not found in available voices: {known}"
        raise BadRequest(text, param="voice", code="voice_not_found")
    return name
