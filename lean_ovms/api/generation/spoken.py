"""Answers that are spoken, as far as endpoints know of them: what speaks is a part of the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from ...errors import BadRequest
from ...manifest import SPOKEN_ANSWERS
from ...models.generation import DeltaStream
from ...types import Delta, Json
from ..fields import Field, Values
from ..schemas import VOICE
from ..services import Services
from .request import GenerationBody
from .unsupported import UNSUPPORTED

AUDIO_FORMATS = ("wav", "mp3", "flac", "opus", "pcm16")


def _read_audio(value: Json) -> Json:
    if value.get("format") not in (None, *AUDIO_FORMATS):
        raise BadRequest(f"audio.format must be one of {', '.join(AUDIO_FORMATS)}", param="audio.format")
    return value


FIELDS = (
    replace(UNSUPPORTED.named("modalities"), seam=SPOKEN_ANSWERS,
        help='["text", "audio"]: the model, or one that speaks for it, speaks the answer',
        schema={"items": {"enum": ["text", "audio"]}}),
    Field("audio", "object", "voice and format of a spoken answer: wav, mp3, flac, opus or pcm16; in a stream pcm16",
        seam=SPOKEN_ANSWERS, read=_read_audio,
        schema={"properties": {"format": {"enum": list(AUDIO_FORMATS)}, "voice": VOICE}}),
)  # fmt: skip
"""The fields of a chat or a response whose answer is spoken."""


class ChunkedAudio(Protocol):
    """Makes the member `delta` of the chunks of a chat's spoken answer."""

    def transcript(self, text: str) -> bytes:
        """Returns the delta of new text."""

    def of(self, delta: Delta) -> Iterator[bytes]:
        """Yields the deltas of new samples, and of the end."""


class AudioPieces(Protocol):
    """Makes texts of samples, which clients may join before they decode them."""

    def add(self, samples: bytes) -> Iterator[str]:
        """Yields the pieces of new samples."""

    def rest(self) -> str:
        """Returns the last piece, which may be empty."""


class AnswerAudio(Protocol):
    """The voice and the format of an answer that is spoken."""

    def with_speech(self, deltas: DeltaStream) -> DeltaStream:
        """Returns the deltas of an answer with those of its audio."""

    def file(self, samples: bytes) -> bytes:
        """Returns the complete file. Raises BadRequest where its format is not available."""

    def message(self, transcript: str, samples: bytes) -> Json:
        """Returns the member `audio` of a chat's message."""

    def with_audio(self, response: Json, samples: bytes) -> Json:
        """Returns a response object with the audio in its message."""

    def deltas(self) -> ChunkedAudio:
        """Returns what renders the deltas of a chat's answer."""

    def pieces(self) -> AudioPieces:
        """Returns what makes the events of a response's answer."""


def read_spoken(
    values: Values, generation: GenerationBody, services: Services
) -> tuple[GenerationBody, AnswerAudio | None]:
    """Returns the generation, by a model that speaks itself with a voice, and how the answer is spoken; None if it is
    text alone. Raises RequestError."""
    wanted = values["modalities"] or values["audio"]
    read = services.config.part(SPOKEN_ANSWERS) if wanted else None
    found: tuple[GenerationBody, AnswerAudio | None] = (
        (generation, None) if read is None else read(values, generation, services)
    )
    return found


def deltas_of(deltas: DeltaStream, answer: AnswerAudio | None) -> DeltaStream:
    """Returns the deltas of an answer, with those of its audio if it is spoken."""
    return deltas if answer is None else answer.with_speech(deltas)
